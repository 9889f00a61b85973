//! Finds a server's addresses, and finds out whether it answers. The kernel wouldn't give up for minutes.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::time::Duration;

use crust_blockfs::Deadline;

use crate::Share;
use crate::options::{Contact, Transport};
use crate::version::NfsVersion;

/// The port of NFS (RFC 7530, section 3.1).
const NFS_PORT: u16 = 2049;
/// The port of rpcbind, which knows the ports of version 3's services (RFC 1833).
const RPCBIND_PORT: u16 = 111;

/// The time for which one address of a server may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The error of a server that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The name can't be resolved.
    #[error(
        "the server's name {host:?} can't be resolved: {source}; hint: check the name in the volume, and /etc/hosts and \
         /etc/resolv.conf of this node"
    )]
    Unresolved {
        /// The name as the share has it.
        host: String,
        /// The error of the resolver, which has no error number.
        source: io::Error,
    },
    /// The name has addresses, but none that the volume's options permit.
    #[error(
        "the server {host:?} has no address of the family that the option proto={transport} asks for; hint: correct the \
         volume's mount options"
    )]
    NoAddress {
        /// The server's name or address.
        host: String,
        /// The value of the option.
        transport: &'static str,
    },
    /// An address of the server doesn't answer.
    #[error(
        "the server doesn't answer at {address}: {source}; hint: check that the server runs and that no firewall is in \
         between"
    )]
    Unreachable {
        /// The address and port.
        address: SocketAddr,
        /// The error of the connection.
        source: io::Error,
    },
}

/// Returns the addresses of a share's server, in the order in which the resolver wants them to be tried. There may be none
/// for the transport protocol. May wait for a name server.
pub(crate) fn resolve(
    share: &Share,
    transport: Option<Transport>,
) -> Result<Vec<SocketAddr>, ServerError> {
    let found = (share.host(), 0).to_socket_addrs();
    let found = found.map_err(|source| ServerError::Unresolved {
        host: share.host().to_owned(),
        source,
    })?;
    let is_permitted =
        |address: &SocketAddr| transport.is_none_or(|it| it.is_ipv6() == address.is_ipv6());
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for address in found.filter(is_permitted) {
        // The resolver may return an address once for each transport protocol.
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    Ok(addresses)
}

/// Returns the error of a server without a permitted address.
pub(crate) fn no_address(share: &Share, transport: Option<Transport>) -> ServerError {
    ServerError::NoAddress {
        host: share.host().to_owned(),
        transport: transport.map_or("", Transport::as_str),
    }
}

/// Returns an address as the kernel parses it, without the port.
pub(crate) fn kernel_text(address: SocketAddr) -> String {
    match address {
        SocketAddr::V6(address) if address.scope_id() != 0 => {
            format!("{}%{}", address.ip(), address.scope_id())
        }
        address => address.ip().to_string(),
    }
}

/// Returns this node's address towards a server, to which the server of version 4.0 connects for callbacks. Sends
/// nothing. Without a route, returns the address that stands for none (nfs(5), "clientaddr").
pub(crate) fn local_address(server: SocketAddr) -> String {
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let own = || {
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect(with_port(server, NFS_PORT))?;
        socket.local_addr()
    };
    own().map_or_else(|_: io::Error| any.to_string(), kernel_text)
}

/// The null procedure of a program (RFC 5531, section 12.1). A server that answers it works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct NullProcedure {
    port: u16,
    program: u32,
    version: u32,
}

/// Returns the procedure to call before a mount; `None` if nothing is known about the server's ports.
fn null_procedure(contact: Contact, version: NfsVersion) -> Option<NullProcedure> {
    const NFS: u32 = 100_003;
    const RPCBIND: u32 = 100_000;
    if contact.transport.is_some_and(Transport::is_udp) {
        return None;
    }
    Some(
        match (version.is_v4(), contact.port.filter(|port| *port != 0)) {
            (true, port) => NullProcedure {
                port: port.unwrap_or(NFS_PORT),
                program: NFS,
                version: 4,
            },
            (false, Some(port)) => NullProcedure {
                port,
                program: NFS,
                version: 3,
            },
            (false, None) => NullProcedure {
                port: RPCBIND_PORT,
                program: RPCBIND,
                version: 2,
            },
        },
    )
}

/// Fails unless the server answers at an address within ten seconds, or until the deadline.
pub(crate) fn check_answers(
    server: SocketAddr,
    contact: Contact,
    version: NfsVersion,
    deadline: Deadline,
) -> Result<(), ServerError> {
    let Some(procedure) = null_procedure(contact, version) else {
        return Ok(());
    };
    let address = with_port(server, procedure.port);
    let answered = call(address, procedure, deadline.at_most(ANSWER_TIMEOUT));
    answered.map_err(|source| ServerError::Unreachable { address, source })
}

fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

/// Calls a procedure over TCP. Any reply will do, also a refusal. Fails with [`io::ErrorKind::InvalidData`] if the other
/// side speaks another protocol, because the kernel would wait for a reply for ever.
fn call(address: SocketAddr, procedure: NullProcedure, deadline: Deadline) -> io::Result<()> {
    let remaining = || match deadline.remaining() {
        Some(Duration::ZERO) => Err(io::Error::from(io::ErrorKind::TimedOut)),
        remaining => Ok(remaining.unwrap_or(ANSWER_TIMEOUT)),
    };
    let mut stream = TcpStream::connect_timeout(&address, remaining()?)?;
    stream.set_write_timeout(Some(remaining()?))?;
    stream.write_all(&message(procedure))?;
    // The record's length, the transaction, and the type of the message.
    let mut answer = [0; 12];
    let mut length = 0;
    while length < answer.len() {
        stream.set_read_timeout(Some(remaining()?))?;
        length += match stream.read(&mut answer[length..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            // The error of a socket whose timeout has passed (socket(7), "SO_RCVTIMEO").
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::ErrorKind::TimedOut.into());
            }
            Err(error) => return Err(error),
        };
    }
    let words = [TRANSACTION, REPLY];
    if answer[4..] == words.map(u32::to_be_bytes).concat() {
        Ok(())
    } else {
        let reason = "what listens there isn't a service of NFS";
        Err(io::Error::new(io::ErrorKind::InvalidData, reason))
    }
}

/// The number of the only transaction of a connection.
const TRANSACTION: u32 = 0x7263_7275;
/// The type of a message that is a reply.
const REPLY: u32 = 1;

/// Returns a call message (RFC 5531, section 9) in a record (section 11), without credentials.
fn message(procedure: NullProcedure) -> Vec<u8> {
    const LAST_FRAGMENT: u32 = 1 << 31;
    const LENGTH: u32 = 40;
    const RPC_VERSION: u32 = 2;
    let words = [
        LAST_FRAGMENT | LENGTH,
        TRANSACTION,
        0, // a call
        RPC_VERSION,
        procedure.program,
        procedure.version,
        0, // the procedure
        0, // AUTH_NONE
        0,
        0, // no verifier
        0,
    ];
    words.into_iter().flat_map(u32::to_be_bytes).collect()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use crust_blockfs::options::parse;

    use super::*;
    use crate::options::normalize;

    fn contact(options: &str) -> Contact {
        Contact::new(
            &normalize(&parse(&[options]).unwrap(), "nfs").unwrap(),
            "nfs",
        )
    }

    #[test]
    fn addresses_are_those_of_the_requested_family() {
        let share: Share = "[::1]:/a".parse().unwrap();
        for (transport, expected) in [
            (None, &["::1"][..]),
            (Some(Transport::Tcp6), &["::1"]),
            (Some(Transport::Tcp), &[]),
        ] {
            let found = resolve(&share, transport).unwrap().into_iter();
            let found: Vec<String> = found.map(kernel_text).collect();
            assert_eq!(found, expected, "{transport:?}");
        }
        let error = no_address(&share, Some(Transport::Tcp)).to_string();
        assert!(error.contains("proto=tcp"), "{error}");
    }

    #[test]
    fn a_link_local_address_keeps_its_interface() {
        let address = "[fe80::1%3]:0".parse().unwrap();
        assert_eq!(kernel_text(address), "fe80::1%3");
    }

    #[test]
    fn a_name_that_does_not_exist_is_named() {
        let share: Share = "no-such-host.invalid:/a".parse().unwrap();
        let error = resolve(&share, None).unwrap_err().to_string();
        assert!(error.contains("\"no-such-host.invalid\""), "{error}");
    }

    #[test]
    fn the_port_to_ask_depends_on_version_and_options() {
        use NfsVersion::{V3, V4_2};
        let port = |options, version| null_procedure(contact(options), version).map(|it| it.port);
        assert_eq!(port("", V4_2), Some(2049));
        assert_eq!(port("port=20490", V4_2), Some(20490));
        assert_eq!(port("", V3), Some(111));
        assert_eq!(port("port=20490", V3), Some(20490));
        assert_eq!(port("udp", V3), None);
    }

    /// Runs a server that answers one connection with `answer`, and returns the result of the check.
    fn check_against(
        answer: impl FnOnce(TcpStream) + Send,
        limit: Duration,
    ) -> Result<(), ServerError> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let contact = contact(&format!("port={}", address.port()));
        std::thread::scope(|scope| {
            scope.spawn(|| answer(listener.accept().unwrap().0));
            check_answers(address, contact, NfsVersion::V4_2, Deadline::after(limit))
        })
    }

    #[test]
    fn a_server_that_replies_is_accepted() {
        let reply = |mut stream: TcpStream| {
            let mut request = [0; 44];
            stream.read_exact(&mut request).unwrap();
            assert_eq!(request[16..20], 100_003_u32.to_be_bytes());
            // The message becomes a reply.
            request[11] = 1;
            // In two parts, as a network may deliver it.
            stream.write_all(&request[..3]).unwrap();
            stream.write_all(&request[3..]).unwrap();
        };
        check_against(reply, ANSWER_TIMEOUT).unwrap();
    }

    #[test]
    fn a_service_of_another_protocol_is_refused() {
        let calls_back = |mut stream: TcpStream| {
            let mut request = [0; 44];
            stream.read_exact(&mut request).unwrap();
            stream.write_all(&request).unwrap();
        };
        let greets = |mut stream: TcpStream| stream.write_all(b"220 mail.example.com\r\n").unwrap();
        for error in [
            check_against(calls_back, ANSWER_TIMEOUT).unwrap_err(),
            check_against(greets, ANSWER_TIMEOUT).unwrap_err(),
        ] {
            let error = error.to_string();
            assert!(error.contains("isn't a service of NFS"), "{error}");
        }
    }

    #[test]
    fn a_server_that_does_not_reply_is_unreachable() {
        let closes = check_against(drop, ANSWER_TIMEOUT).unwrap_err().to_string();
        assert!(closes.contains("doesn't answer at 127.0.0.1:"), "{closes}");
        // Reads until the other side has closed the connection.
        let silent = |mut stream: TcpStream| {
            let _ = io::copy(&mut stream, &mut io::sink());
        };
        let silent = check_against(silent, Duration::from_millis(50)).unwrap_err();
        let ServerError::Unreachable { source, .. } = silent else {
            panic!("{silent}");
        };
        assert_eq!(source.kind(), io::ErrorKind::TimedOut);
    }
}
