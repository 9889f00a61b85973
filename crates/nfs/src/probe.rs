//! Probes a server before the kernel contacts it, because the kernel retries for minutes. A probe calls the null
//! procedure (RFC 5531, section 12.1) of each service that the mount needs.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use crust_blockfs::Deadline;

use crate::options::{Contact, Transport};
use crate::server::{NFS_PORT, ServerError, with_port};
use crate::version::NfsVersion;

/// The timeout for all probes of one address.
pub(crate) const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// The pause after which a call over UDP is sent again.
const RETRANSMISSION: Duration = Duration::from_secs(1);

/// A version of an RPC program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Service {
    name: &'static str,
    program: u32,
    version: u32,
}

const NFS_V4: Service = Service {
    name: "NFS version 4",
    program: 100_003,
    version: 4,
};
const NFS_V3: Service = Service {
    name: "NFS version 3",
    program: 100_003,
    version: 3,
};
const MOUNT: Service = Service {
    name: "MOUNT version 3",
    program: 100_005,
    version: 3,
};
/// rpcbind for IPv4 addresses (RFC 1833, section 3). The kernel uses the same version.
const RPCBIND_V2: Service = Service {
    name: "rpcbind",
    program: 100_000,
    version: 2,
};
/// rpcbind for IPv6 addresses (RFC 1833, section 2).
const RPCBIND_V4: Service = Service {
    version: 4,
    ..RPCBIND_V2
};
const RPCBIND_PORT: u16 = 111;

/// The procedure that every program has.
const NULL: u32 = 0;
/// rpcbind's procedure that returns a service's port: `PMAPPROC_GETPORT` or `RPCBPROC_GETADDR`.
const GET_PORT: u32 = 3;

/// A service that a mount calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Target {
    service: Service,
    /// 0 if rpcbind knows the port.
    port: u16,
    is_udp: bool,
}

/// Returns the services that a mount with `version` calls, in this order.
fn targets(contact: Contact, version: NfsVersion) -> Vec<Target> {
    let is_udp = |transport: Option<Transport>| transport.is_some_and(Transport::is_udp);
    let nfs = |service, default_port| Target {
        service,
        port: contact.port.unwrap_or(default_port),
        is_udp: is_udp(contact.transport),
    };
    if version.is_v4() {
        return vec![nfs(NFS_V4, NFS_PORT)];
    }
    let mount = Target {
        service: MOUNT,
        port: contact.mount_port,
        is_udp: is_udp(contact.mount_transport.or(contact.transport)),
    };
    vec![nfs(NFS_V3, 0), mount]
}

/// Fails unless all services that a mount with `version` calls answer at an address before the deadline.
pub(crate) fn probe(
    server: SocketAddr,
    contact: Contact,
    version: NfsVersion,
    deadline: Deadline,
) -> Result<(), ServerError> {
    for target in targets(contact, version) {
        let port = match target.port {
            0 => find_port(with_port(server, RPCBIND_PORT), target, deadline)?,
            port => Some(port),
        };
        if let Some(port) = port {
            let address = with_port(server, port);
            let message = message(target.service, NULL, &[]);
            let _ = call(address, target.service, target.is_udp, &message, deadline)?;
        }
    }
    Ok(())
}

/// Asks rpcbind for the port of a service. Returns `None` if rpcbind refuses the call. The kernel may know more then.
fn find_port(
    rpcbind: SocketAddr,
    target: Target,
    deadline: Deadline,
) -> Result<Option<u16>, ServerError> {
    let Target {
        service, is_udp, ..
    } = target;
    let mut arguments = [service.program, service.version]
        .map(u32::to_be_bytes)
        .concat();
    let version = if rpcbind.is_ipv4() {
        let protocol: u32 = if is_udp { 17 } else { 6 };
        arguments.extend([protocol, 0].map(u32::to_be_bytes).concat());
        RPCBIND_V2
    } else {
        // The netid, and two empty strings: the server's address and an owner.
        let netid = if is_udp { b"udp6" } else { b"tcp6" };
        arguments.extend(4_u32.to_be_bytes());
        arguments.extend(netid);
        arguments.extend([0; 8]);
        RPCBIND_V4
    };
    let message = message(version, GET_PORT, &arguments);
    let reply = call(rpcbind, version, is_udp, &message, deadline)?;
    let port = results(&reply).and_then(|results| {
        if rpcbind.is_ipv4() {
            word(results, 0).and_then(|port| port.try_into().ok())
        } else {
            parse_universal_address(results)
        }
    });
    match port {
        Some(0) => Err(ServerError::NotOffered {
            address: rpcbind.ip(),
            service: service.name,
            protocol: if is_udp { "UDP" } else { "TCP" },
        }),
        port => Ok(port),
    }
}

/// Returns the port of an address such as `fd00::1.8.1`, which is a string of XDR; 0 if it is empty.
fn parse_universal_address(results: &[u8]) -> Option<u16> {
    let length = word(results, 0)?.try_into().ok()?;
    let address = std::str::from_utf8(results.get(4..)?.get(..length)?).ok()?;
    if address.is_empty() {
        return Some(0);
    }
    let mut bytes = address.rsplit('.').map(str::parse::<u8>);
    let (low, high) = (bytes.next()?.ok()?, bytes.next()?.ok()?);
    Some(u16::from_be_bytes([high, low]))
}

/// Returns the results in a reply; `None` if the call was refused.
fn results(reply: &[u8]) -> Option<&[u8]> {
    const ACCEPTED: u32 = 0;
    const SUCCESS: u32 = 0;
    let verifier_length: usize = word(reply, 16)?.try_into().ok()?;
    let status = 20_usize.checked_add(verifier_length.checked_next_multiple_of(4)?)?;
    let is_success = word(reply, 8)? == ACCEPTED && word(reply, status)? == SUCCESS;
    is_success.then(|| reply.get(status + 4..)).flatten()
}

fn word(bytes: &[u8], offset: usize) -> Option<u32> {
    let bytes = bytes.get(offset..)?.first_chunk()?;
    Some(u32::from_be_bytes(*bytes))
}

/// Sends a call to a service, and returns the reply. Any reply will do, also a refusal.
fn call(
    address: SocketAddr,
    service: Service,
    is_udp: bool,
    message: &[u8],
    deadline: Deadline,
) -> Result<Vec<u8>, ServerError> {
    let reply = if is_udp {
        call_over_udp(address, message, deadline)
    } else {
        call_over_tcp(address, message, deadline)
    };
    reply.map_err(|source| ServerError::Unreachable {
        address,
        service: service.name,
        source,
    })
}

/// Fails with [`io::ErrorKind::InvalidData`] if the other side speaks another protocol, because the kernel would wait
/// for a reply for ever.
fn call_over_tcp(address: SocketAddr, message: &[u8], deadline: Deadline) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&address, remaining(deadline)?)?;
    stream.set_write_timeout(Some(remaining(deadline)?))?;
    let mark = LAST_FRAGMENT | u32::try_from(message.len()).unwrap_or_default();
    stream.write_all(&[&mark.to_be_bytes(), message].concat())?;
    let mut mark = [0; 4];
    read_exact(&mut stream, &mut mark, deadline)?;
    let length = u32::from_be_bytes(mark) & !LAST_FRAGMENT;
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if length > MAX_REPLY_LENGTH {
        return Err(other_protocol());
    }
    let mut reply = vec![0; length];
    read_exact(&mut stream, &mut reply, deadline)?;
    if is_reply(&reply) {
        Ok(reply)
    } else {
        Err(other_protocol())
    }
}

fn read_exact(stream: &mut TcpStream, buffer: &mut [u8], deadline: Deadline) -> io::Result<()> {
    let mut length = 0;
    while length < buffer.len() {
        stream.set_read_timeout(Some(remaining(deadline)?))?;
        length += match stream.read(&mut buffer[length..]) {
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
    Ok(())
}

/// Sends the message again until a reply arrives. Other datagrams are ignored.
fn call_over_udp(address: SocketAddr, message: &[u8], deadline: Deadline) -> io::Result<Vec<u8>> {
    let socket = match address {
        SocketAddr::V4(_) => UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)),
    }?;
    socket.connect(address)?;
    let mut reply = [0; MAX_REPLY_LENGTH];
    loop {
        let _ = socket.send(message)?;
        socket.set_read_timeout(Some(remaining(deadline)?.min(RETRANSMISSION)))?;
        match socket.recv(&mut reply) {
            Ok(length) if is_reply(&reply[..length]) => return Ok(reply[..length].to_vec()),
            Ok(_) => {}
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => {}
                _ => return Err(error),
            },
        }
    }
}

/// Returns the time until the deadline, which isn't zero. Fails with [`io::ErrorKind::TimedOut`].
fn remaining(deadline: Deadline) -> io::Result<Duration> {
    match deadline.remaining() {
        Some(Duration::ZERO) => Err(io::ErrorKind::TimedOut.into()),
        remaining => Ok(remaining.unwrap_or(PROBE_TIMEOUT)),
    }
}

fn other_protocol() -> io::Error {
    let reason = "what listens there isn't a service of NFS";
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

/// The number of the only transaction of a socket.
const TRANSACTION: u32 = 0x7263_7275;
/// The type of a message that is a reply.
const REPLY: u32 = 1;
/// The bit of a record mark that says that the record ends (RFC 5531, section 11).
const LAST_FRAGMENT: u32 = 1 << 31;
/// The length in bytes of the longest reply that is read. A verifier has at most 400 bytes (RFC 5531, section 8.2).
const MAX_REPLY_LENGTH: usize = 1024;

fn is_reply(message: &[u8]) -> bool {
    message.starts_with(&[TRANSACTION, REPLY].map(u32::to_be_bytes).concat())
}

/// Returns a call message (RFC 5531, section 9) without credentials.
fn message(service: Service, procedure: u32, arguments: &[u8]) -> Vec<u8> {
    const CALL: u32 = 0;
    const RPC_VERSION: u32 = 2;
    const AUTH_NONE: [u32; 2] = [0, 0];
    let words = [
        TRANSACTION,
        CALL,
        RPC_VERSION,
        service.program,
        service.version,
        procedure,
    ];
    let words = [&words[..], &AUTH_NONE, &AUTH_NONE].concat();
    let mut message: Vec<u8> = words.into_iter().flat_map(u32::to_be_bytes).collect();
    message.extend(arguments);
    message
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use crust_blockfs::options::parse;

    use super::*;
    use crate::options::normalize;

    fn contact(options: &str) -> Contact {
        let options = normalize(&parse(&[options]).unwrap(), "nfs").unwrap();
        Contact::new(&options, "nfs")
    }

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    #[test]
    fn the_services_to_call_depend_on_version_and_options() {
        use NfsVersion::{V3, V4_2};
        let target = |service, port, is_udp| Target {
            service,
            port,
            is_udp,
        };
        for (options, version, expected) in [
            ("", V4_2, &[target(NFS_V4, 2049, false)][..]),
            ("port=20490", V4_2, &[target(NFS_V4, 20490, false)]),
            ("port=0", V4_2, &[target(NFS_V4, 0, false)]),
            ("mountport=9", V4_2, &[target(NFS_V4, 2049, false)]),
            ("", V3, &[target(NFS_V3, 0, false), target(MOUNT, 0, false)]),
            (
                "port=8,mountport=9,mountproto=udp",
                V3,
                &[target(NFS_V3, 8, false), target(MOUNT, 9, true)],
            ),
            (
                "udp,mountport=9",
                V3,
                &[target(NFS_V3, 0, true), target(MOUNT, 9, true)],
            ),
            (
                "udp,mountproto=tcp",
                V3,
                &[target(NFS_V3, 0, true), target(MOUNT, 0, false)],
            ),
        ] {
            assert_eq!(targets(contact(options), version), expected, "{options}");
        }
    }

    /// Runs a server that answers one connection with `answer`, and returns the result of a probe.
    fn probe_tcp(
        answer: impl FnOnce(TcpStream) + Send,
        limit: Duration,
    ) -> Result<(), ServerError> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let contact = contact(&format!("port={}", address.port()));
        std::thread::scope(|scope| {
            scope.spawn(|| answer(listener.accept().unwrap().0));
            probe(address, contact, NfsVersion::V4_2, Deadline::after(limit))
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
        probe_tcp(reply, PROBE_TIMEOUT).unwrap();
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
            probe_tcp(calls_back, PROBE_TIMEOUT).unwrap_err(),
            probe_tcp(greets, PROBE_TIMEOUT).unwrap_err(),
        ] {
            let error = error.to_string();
            assert!(error.contains("isn't a service of NFS"), "{error}");
        }
    }

    #[test]
    fn a_server_that_does_not_reply_is_unreachable() {
        let closes = probe_tcp(drop, PROBE_TIMEOUT).unwrap_err().to_string();
        assert!(closes.contains("doesn't answer at 127.0.0.1:"), "{closes}");
        assert!(closes.contains("(NFS version 4)"), "{closes}");
        // Reads until the other side has closed the connection.
        let silent = |mut stream: TcpStream| {
            let _ = io::copy(&mut stream, &mut io::sink());
        };
        let silent = probe_tcp(silent, Duration::from_millis(50)).unwrap_err();
        let ServerError::Unreachable { source, .. } = silent else {
            panic!("{silent}");
        };
        assert_eq!(source.kind(), io::ErrorKind::TimedOut);
    }

    /// Probes the services of version 3: NFS over TCP, which answers, and MOUNT over UDP.
    fn probe_v3(
        answer_mount: impl FnOnce(&UdpSocket) + Send,
        limit: Duration,
    ) -> Result<(), ServerError> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (port, mount_port) = (address.port(), socket.local_addr().unwrap().port());
        let contact = contact(&format!(
            "port={port},mountproto=udp,mountport={mount_port}"
        ));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = [0; 44];
                stream.read_exact(&mut request).unwrap();
                request[11] = 1;
                stream.write_all(&request).unwrap();
            });
            scope.spawn(|| answer_mount(&socket));
            probe(address, contact, NfsVersion::V3, Deadline::after(limit))
        })
    }

    #[test]
    fn each_service_of_version_3_is_called() {
        let answer = |socket: &UdpSocket| {
            let mut request = [0; 100];
            // The first call is lost, and another datagram arrives before the reply.
            let _ = socket.recv_from(&mut request).unwrap();
            let (length, client) = socket.recv_from(&mut request).unwrap();
            assert_eq!(request[12..16], 100_005_u32.to_be_bytes());
            let _ = socket.send_to(b"hello", client).unwrap();
            request[7] = 1;
            let _ = socket.send_to(&request[..length], client).unwrap();
        };
        probe_v3(answer, PROBE_TIMEOUT).unwrap();
        let silent = probe_v3(|_| {}, Duration::from_millis(200)).unwrap_err();
        let silent = silent.to_string();
        assert!(silent.contains("(MOUNT version 3): timed out"), "{silent}");
    }

    /// Returns the port that rpcbind names at an address if it replies with these words.
    fn find_port_at(rpcbind: &str, reply: &[u8]) -> Result<Option<u16>, ServerError> {
        let socket = UdpSocket::bind(rpcbind).unwrap();
        let address = socket.local_addr().unwrap();
        let target = Target {
            service: MOUNT,
            port: 0,
            is_udp: true,
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut request = [0; 200];
                let (length, client) = socket.recv_from(&mut request).unwrap();
                let arguments = if address.is_ipv4() {
                    words(&[100_005, 3, 17, 0])
                } else {
                    [&words(&[100_005, 3, 4])[..], b"udp6", &[0; 8]].concat()
                };
                assert_eq!(request[40..length], arguments);
                let message = [&words(&[TRANSACTION, REPLY]), reply].concat();
                let _ = socket.send_to(&message, client).unwrap();
            });
            find_port(address, target, Deadline::after(PROBE_TIMEOUT))
        })
    }

    #[test]
    fn rpcbind_is_asked_for_the_port() {
        let accepted = |results: &[u8]| [&words(&[0, 0, 0, 0]), results].concat();
        let universal =
            |length: u32, address: &[u8]| accepted(&[&words(&[length]), address, &[0; 4]].concat());
        let (v4, v6) = ("127.0.0.1:0", "[::1]:0");
        for (rpcbind, reply, expected) in [
            (v4, accepted(&words(&[20048])), Some(20048)),
            (v4, words(&[0, 1, 3, 7, 0, 20048]), Some(20048)),
            (v4, accepted(&words(&[1 << 16])), None),
            (v4, accepted(&[]), None),
            // The program isn't available, and the call is denied.
            (v4, words(&[0, 0, 0, 1]), None),
            (v4, words(&[1, 0, 2, 2]), None),
            (v4, words(&[0, 0, u32::MAX, 0, 20048]), None),
            (v6, universal(6, b"::.8.1"), Some(2049)),
            (v6, universal(14, b"fd00::1.78.80."), None),
            (v6, universal(13, b"fd00::1.78.80"), Some(20048)),
            (v6, universal(99, b"::.8.1"), None),
        ] {
            let found = find_port_at(rpcbind, &reply).unwrap();
            assert_eq!(found, expected, "{reply:?}");
        }
        for (rpcbind, reply) in [(v4, accepted(&words(&[0]))), (v6, universal(0, b""))] {
            let error = find_port_at(rpcbind, &reply).unwrap_err().to_string();
            let words = "doesn't offer MOUNT version 3 over UDP";
            assert!(error.contains(words), "{error}");
        }
    }
}
