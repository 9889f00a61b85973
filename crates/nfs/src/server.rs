//! Finds the addresses of a server, and this node's address towards it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};

use crate::Share;
use crate::options::Transport;

/// The port of NFS (RFC 7530, section 3.1).
pub(crate) const NFS_PORT: u16 = 2049;

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
        "the server doesn't answer at {address} ({service}): {source}; hint: check that the server runs and that no \
         firewall is in between"
    )]
    Unreachable {
        /// The address and port.
        address: SocketAddr,
        /// The name of the service that was called.
        service: &'static str,
        /// The error of the connection.
        source: io::Error,
    },
    /// A service of version 3 doesn't run on the server, according to its rpcbind.
    #[error(
        "the server at {address} doesn't offer {service} over {protocol}, according to its rpcbind; hint: start the \
         service on the server, or use version 4"
    )]
    NotOffered {
        /// The address of the server's rpcbind.
        address: IpAddr,
        /// The name of the service.
        service: &'static str,
        /// The transport protocol: `TCP` or `UDP`.
        protocol: &'static str,
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

pub(crate) fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
