//! Checks of a request's `Host`. A browser can be led to the loopback by a page's own name (DNS
//! rebinding), and the page can then read the answers; the request's `Host` is that name.

use std::net::IpAddr;
use std::sync::Arc;

use hyper::header::HOST;
use hyper::http::uri::Authority;
use hyper::{HeaderMap, StatusCode, Uri};

/// The names that requests to one listener may give.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AllowedHosts {
    /// Any, and none: a socket's path can't be reached from a browser.
    Any,
    /// The loopback's names and addresses, and this address, which is listened on. Where that is the
    /// unspecified one, any address, for none is a name. And the configured names, such as that of a
    /// Kubernetes Service.
    Only(IpAddr, Arc<[String]>),
}

impl AllowedHosts {
    /// Checks the host that a request is for; fails with the status to answer with.
    pub(super) fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), StatusCode> {
        let Self::Only(listens, accepted) = self else {
            return Ok(());
        };
        let mut named = headers.get_all(HOST).iter();
        let (Some(named), None) = (named.next(), named.next()) else {
            // RFC 9112, section 3.2: none, or more than one.
            return Err(StatusCode::BAD_REQUEST);
        };
        // Of a request in absolute form the URI counts (RFC 9112, section 3.2.2).
        let authority = match uri.authority() {
            Some(authority) => authority.clone(),
            None => Authority::try_from(named.as_bytes()).map_err(|_| StatusCode::BAD_REQUEST)?,
        };
        if is_ours(authority.host(), *listens, accepted) {
            Ok(())
        } else {
            Err(StatusCode::MISDIRECTED_REQUEST)
        }
    }
}

fn is_ours(host: &str, listens: IpAddr, names: &[String]) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    if let Ok(address) = address.parse::<IpAddr>() {
        let address = address.to_canonical();
        return listens.is_unspecified()
            || address.is_loopback()
            || address == listens.to_canonical();
    }
    // These names lead to the loopback, whoever resolves them (RFC 6761, section 6.3).
    let name = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    let is_loopback = name == "localhost" || name.ends_with(".localhost");
    is_loopback || names.iter().any(|it| it.eq_ignore_ascii_case(&name))
}

/// Returns true for a text that [`AllowedHosts`] can compare with a request's host: a name without a port, an address or a
/// final dot.
#[must_use]
pub fn is_host_name(text: &str) -> bool {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let is_address = text.parse::<IpAddr>().is_ok();
    !text.is_empty() && !text.ends_with('.') && text.bytes().all(is_name) && !is_address
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(listens: &str, uri: &str, hosts: &[&'static str]) -> u16 {
        let headers = hosts.iter().map(|host| (HOST, host.parse().unwrap()));
        let names = ["metrics.monitoring.svc".to_owned(), "Node-1".to_owned()];
        let hosts = AllowedHosts::Only(listens.parse().unwrap(), names.into());
        let checked = hosts.check(&uri.parse().unwrap(), &headers.collect());
        checked.map_or_else(|status| status.as_u16(), |()| 200)
    }

    #[test]
    fn a_host_must_be_loopback_the_listen_address_or_configured() {
        for (listens, host, expected) in [
            ("127.0.0.1", "localhost", 200),
            ("127.0.0.1", "LocalHost.:9742", 200),
            ("127.0.0.1", "crust.localhost", 200),
            ("127.0.0.1", "127.0.0.1:9742", 200),
            ("127.0.0.1", "127.1.2.3", 200),
            ("127.0.0.1", "[::1]:9742", 200),
            ("127.0.0.1", "[::ffff:127.0.0.1]", 200),
            ("192.0.2.7", "192.0.2.7:9742", 200),
            ("192.0.2.7", "192.0.2.8:9742", 421),
            ("0.0.0.0", "192.0.2.8", 200),
            ("::", "[2001:db8::1]:1", 200),
            ("127.0.0.1", "192.0.2.8", 421),
            ("127.0.0.1", "attacker.example", 421),
            ("0.0.0.0", "attacker.example:9742", 421),
            ("127.0.0.1", "127.0.0.1.attacker.example", 421),
            ("127.0.0.1", "localhost.attacker.example", 421),
            ("127.0.0.1", "notlocalhost", 421),
            ("127.0.0.1", "metrics.monitoring.svc:9742", 200),
            ("0.0.0.0", "Metrics.Monitoring.SVC.", 200),
            ("127.0.0.1", "node-1", 200),
            ("127.0.0.1", "node-1.attacker.example", 421),
            ("127.0.0.1", "a.metrics.monitoring.svc", 421),
            ("127.0.0.1", "", 400),
            ("127.0.0.1", "a b", 400),
        ] {
            assert_eq!(
                checked(listens, "/metrics", &[host]),
                expected,
                "{listens} {host:?}"
            );
        }
    }

    #[test]
    fn it_names_one_host() {
        let of = |uri, hosts: &[&'static str]| checked("127.0.0.1", uri, hosts);
        assert_eq!(of("/metrics", &[]), 400);
        assert_eq!(of("/metrics", &["localhost", "localhost"]), 400);
        assert_eq!(of("http://attacker.example/metrics", &["localhost"]), 421);
        assert_eq!(of("http://localhost/metrics", &["attacker.example"]), 200);
        let any = AllowedHosts::Any.check(&"/metrics".parse().unwrap(), &HeaderMap::new());
        assert_eq!(any, Ok(()));
    }
}
