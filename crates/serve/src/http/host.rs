//! Checks a request's `Host` header, against DNS rebinding: a web page can make its own host name resolve to the
//! loopback address, and can then read the responses that a browser gets from there. The `Host` of such a request is
//! the name of the page's host.

use std::net::IpAddr;
use std::sync::Arc;

use hyper::header::HOST;
use hyper::http::uri::Authority;
use hyper::{HeaderMap, StatusCode, Uri};

/// The hosts that requests to a listener may be addressed to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AllowedHosts {
    /// Any host, or no `Host` header at all, because a browser can't connect to a unix socket.
    Any,
    /// The names and addresses of the loopback, the listening address, and the configured names, such as the name of a
    /// Kubernetes Service. If the listening address is unspecified (`0.0.0.0`, `::`), any address is allowed: DNS
    /// rebinding needs a name.
    Only(IpAddr, Arc<[String]>),
}

impl AllowedHosts {
    /// Checks the host that a request is addressed to. Fails with the status to respond with.
    pub(super) fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), StatusCode> {
        let Self::Only(listening, names) = self else {
            return Ok(());
        };
        let mut hosts = headers.get_all(HOST).iter();
        let (Some(host), None) = (hosts.next(), hosts.next()) else {
            // A request must have exactly one `Host` header (RFC 9112, section 3.2).
            return Err(StatusCode::BAD_REQUEST);
        };
        // The URI takes precedence if it is in absolute form (RFC 9112, section 3.2.2).
        let authority = match uri.authority() {
            Some(authority) => authority.clone(),
            None => Authority::try_from(host.as_bytes()).map_err(|_| StatusCode::BAD_REQUEST)?,
        };
        if is_allowed(authority.host(), *listening, names) {
            Ok(())
        } else {
            Err(StatusCode::MISDIRECTED_REQUEST)
        }
    }
}

fn is_allowed(host: &str, listening: IpAddr, names: &[String]) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    if let Ok(address) = address.parse::<IpAddr>() {
        let address = address.to_canonical();
        return listening.is_unspecified()
            || address.is_loopback()
            || address == listening.to_canonical();
    }
    // Every resolver resolves these names to the loopback (RFC 6761, section 6.3).
    let name = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    let is_loopback = name == "localhost" || name.ends_with(".localhost");
    is_loopback || names.iter().any(|it| it.eq_ignore_ascii_case(&name))
}

/// Returns true for a text that [`AllowedHosts`] can compare with a request's host: a name without a port, an address
/// or a final dot.
#[must_use]
pub fn is_host_name(text: &str) -> bool {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let is_address = text.parse::<IpAddr>().is_ok();
    !text.is_empty() && !text.ends_with('.') && text.bytes().all(is_name) && !is_address
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(listening: &str, uri: &str, hosts: &[&'static str]) -> u16 {
        let headers = hosts.iter().map(|host| (HOST, host.parse().unwrap()));
        let names = ["metrics.monitoring.svc".to_owned(), "Node-1".to_owned()];
        let hosts = AllowedHosts::Only(listening.parse().unwrap(), names.into());
        let checked = hosts.check(&uri.parse().unwrap(), &headers.collect());
        checked.map_or_else(|status| status.as_u16(), |()| 200)
    }

    #[test]
    fn a_host_must_be_loopback_the_listen_address_or_configured() {
        for (listening, host, expected) in [
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
                checked(listening, "/metrics", &[host]),
                expected,
                "{listening} {host:?}"
            );
        }
    }

    #[test]
    fn a_request_must_have_one_host_and_its_uri_takes_precedence() {
        let status = |uri, hosts: &[&'static str]| checked("127.0.0.1", uri, hosts);
        assert_eq!(status("/metrics", &[]), 400);
        assert_eq!(status("/metrics", &["localhost", "localhost"]), 400);
        assert_eq!(
            status("http://attacker.example/metrics", &["localhost"]),
            421
        );
        assert_eq!(
            status("http://localhost/metrics", &["attacker.example"]),
            200
        );
        let any = AllowedHosts::Any.check(&"/metrics".parse().unwrap(), &HeaderMap::new());
        assert_eq!(any, Ok(()));
    }
}
