//! Parsers for values of command-line flags that several daemons have.

use std::path::{Path, PathBuf};

pub fn parse_absolute_path(text: &str) -> Result<PathBuf, String> {
    let path = Path::new(text);
    if path.is_absolute() {
        Ok(path.to_owned())
    } else {
        Err("must be an absolute path".to_owned())
    }
}

/// Parses the absolute path of a unix socket: `unix:///path`, `unix:/path` or `/path`.
pub fn parse_socket_path(text: &str) -> Result<PathBuf, String> {
    let path = text.strip_prefix("unix:").unwrap_or(text);
    let path = path.strip_prefix("//").unwrap_or(path);
    parse_absolute_path(path).map_err(|_| {
        format!("{text:?} is not an absolute path of a unix socket, such as unix:///csi/csi.sock")
    })
}

/// Returns the host's name, which is the default of a node's name.
#[must_use]
pub fn host_name() -> String {
    let name = rustix::system::uname();
    name.nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_url_or_a_path() {
        for text in [
            "unix:///csi/csi.sock",
            "unix:/csi/csi.sock",
            "/csi/csi.sock",
        ] {
            assert_eq!(
                parse_socket_path(text).as_deref(),
                Ok(Path::new("/csi/csi.sock")),
                "{text}"
            );
        }
        for text in [
            "",
            "csi.sock",
            "unix://csi.sock",
            "tcp://127.0.0.1:1",
            "unix:",
        ] {
            assert!(parse_socket_path(text).is_err(), "{text}");
        }
    }
}
