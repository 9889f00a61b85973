//! The directory of a file server that a network volume is: `server:/export`.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The length in bytes of the longest host name (RFC 1035, section 2.3.4).
const MAX_HOST_LENGTH: usize = 253;

/// The length in bytes of the longest path, which is that of the MOUNT protocol (`MNTPATHLEN`, RFC 1813, section
/// 5.1.2). The kernel's own limit for version 4 is higher.
const MAX_PATH_LENGTH: usize = 1024;

/// A directory that a file server exports, in canonical form: texts that mean the same share are equal.
///
/// Is written `server:/export` as text and in JSON. An IPv6 address is in brackets.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Share {
    /// A host name in lower case, or an address, without brackets.
    host: String,
    path: String,
}

impl Share {
    /// Returns the server's name or address, without brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the absolute path on the server.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }
}

/// The error of a text that isn't a share.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseShareError {
    /// There is no `:/` in the text.
    #[error("{0:?} isn't a share; expected SERVER:/PATH, such as files.example.com:/export/data")]
    NotAShare(String),
    /// The part before the path can't be a host.
    #[error(
        "the server {host:?} isn't a host name or an address ({reason}); expected SERVER:/PATH, with an IPv6 address \
         in brackets"
    )]
    Host {
        /// The host as it was given.
        host: String,
        /// The reason as a clause.
        reason: &'static str,
    },
    /// The path can't be an export, or two of its spellings couldn't be recognised as the same directory.
    #[error("the path {path:?} on the server can't be used: {reason}")]
    Path {
        /// The path as it was given.
        path: String,
        /// The reason as a clause.
        reason: &'static str,
    },
}

impl FromStr for Share {
    type Err = ParseShareError;

    fn from_str(text: &str) -> Result<Self, ParseShareError> {
        let not_a_share = || ParseShareError::NotAShare(text.to_owned());
        let end = text.find(":/").ok_or_else(not_a_share)?;
        let (host, path) = (&text[..end], &text[end + 1..]);
        let host = parse_host(host).map_err(|reason| ParseShareError::Host {
            host: host.to_owned(),
            reason,
        })?;
        let path = parse_path(path).map_err(|reason| ParseShareError::Path {
            path: path.to_owned(),
            reason,
        })?;
        Ok(Self { host, path })
    }
}

fn parse_host(host: &str) -> Result<String, &'static str> {
    if let Some(address) = host.strip_prefix('[') {
        let address = address.strip_suffix(']').ok_or("a bracket isn't closed")?;
        return parse_ipv6(address);
    }
    if host.is_empty() {
        return Err("it is empty");
    }
    if host.len() > MAX_HOST_LENGTH {
        return Err("it has more than 253 bytes");
    }
    if host.contains(',') {
        return Err("several servers of one share aren't supported");
    }
    if host.contains(':') {
        return Err("an IPv6 address needs brackets");
    }
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if !host.bytes().all(is_allowed) || host.starts_with(['-', '.']) {
        return Err("it has a character that no host name has");
    }
    Ok(host.to_ascii_lowercase())
}

/// Parses an IPv6 address with or without a zone: a link-local address is only unique with the name of its interface
/// (RFC 4007, section 11).
fn parse_ipv6(text: &str) -> Result<String, &'static str> {
    let (address, zone) = match text.split_once('%') {
        Some((address, zone)) => (address, Some(zone)),
        None => (text, None),
    };
    let address: Ipv6Addr = address.parse().map_err(|_| "it isn't an IPv6 address")?;
    let Some(zone) = zone else {
        return Ok(address.to_string());
    };
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if zone.is_empty() || !zone.bytes().all(is_allowed) {
        return Err("the part after % can't be the name of an interface");
    }
    Ok(format!("{address}%{zone}"))
}

fn parse_path(path: &str) -> Result<String, &'static str> {
    if path.len() > MAX_PATH_LENGTH {
        return Err("it has more than 1024 bytes");
    }
    if path.contains('\0') {
        return Err("it has a NUL byte");
    }
    let names: Vec<&str> = path.split('/').filter(|name| !name.is_empty()).collect();
    if names.iter().any(|name| matches!(*name, "." | "..")) {
        return Err("it has a component . or ..");
    }
    Ok(format!("/{}", names.join("/")))
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.path)
        } else {
            write!(f, "{}:{}", self.host, self.path)
        }
    }
}

impl From<Share> for String {
    fn from(share: Share) -> Self {
        share.to_string()
    }
}

impl TryFrom<String> for Share {
    type Error = ParseShareError;

    fn try_from(text: String) -> Result<Self, ParseShareError> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn spellings_of_one_share_are_equal() {
        for (text, canonical) in [
            ("srv:/export", "srv:/export"),
            ("SRV.Example.com:/Export", "srv.example.com:/Export"),
            ("srv://a///b/", "srv:/a/b"),
            ("srv:/", "srv:/"),
            ("10.0.0.1:/a:b/c,d e\n", "10.0.0.1:/a:b/c,d e\n"),
            ("[FE80:0::1%eth0]:/a", "[fe80::1%eth0]:/a"),
            ("[::1]:/a:/b", "[::1]:/a:/b"),
            ("srv:/...", "srv:/..."),
        ] {
            let share: Share = text.parse().unwrap();
            assert_eq!(share.to_string(), canonical);
            assert_eq!(canonical.parse(), Ok(share));
        }
    }

    #[test]
    fn a_text_that_is_not_a_share_is_refused_with_the_reason() {
        let long_host = format!("{}:/", "a".repeat(254));
        let long_path = format!("srv:/{}", "a".repeat(1024));
        for (text, reason) in [
            ("", "expected SERVER:/PATH"),
            ("/dev/sda", "expected SERVER:/PATH"),
            ("srv:export", "expected SERVER:/PATH"),
            (":/export", "it is empty"),
            (&long_host, "253 bytes"),
            ("one,two:/export", "several servers"),
            ("fe80::1:/export", "needs brackets"),
            ("[fe80::1:/export", "isn't closed"),
            ("[10.0.0.1]:/export", "isn't an IPv6 address"),
            ("[::1%]:/export", "name of an interface"),
            ("a b:/export", "no host name has"),
            ("-o:/export", "no host name has"),
            ("srv:/a/../b", "component . or .."),
            ("srv:/.", "component . or .."),
            ("srv:/a\0", "NUL"),
            (&long_path, "1024 bytes"),
        ] {
            let error = text.parse::<Share>().unwrap_err().to_string();
            assert!(error.contains(reason), "{text:?}: {error}");
        }
    }

    proptest! {
        #[test]
        fn a_share_round_trips_through_its_text(text in "[a-z:\\[\\]%,./ -]{0,20}") {
            if let Ok(share) = text.parse::<Share>() {
                prop_assert_eq!(share.to_string().parse(), Ok(share));
            }
        }
    }
}
