//! Whether metrics can be told where they are to be.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use crust_state::check::Finding;

use crate::settings::MetricsAddress;

/// For another one's answer.
const PATIENCE: Duration = Duration::from_secs(2);

const WHAT: &str = "metrics";

pub(super) fn place_for(address: &MetricsAddress) -> Finding {
    let address = match address {
        MetricsAddress::Unix(path) => return super::place_for(WHAT, path),
        MetricsAddress::Tcp(address) => address,
    };
    match TcpListener::bind(address) {
        Ok(_) => Finding::pass(WHAT, address.to_string()),
        Err(error) if error.kind() == ErrorKind::AddrInUse && is_ours(address) => {
            let found = format!("{address}, where a crust_ops answers already");
            Finding::pass(WHAT, found)
        }
        Err(error) => Finding::fail(
            WHAT,
            format!("bind {address}: {error}"),
            "another port in `metrics_listen`; `ss -lntp` tells whose it is",
        ),
    }
}

/// A check beside a daemon that runs finds its port taken, and all is well.
fn is_ours(address: &SocketAddr) -> bool {
    let asked = || {
        let mut stream = TcpStream::connect_timeout(address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
        let mut answer = Vec::new();
        stream.take(1024 * 1024).read_to_end(&mut answer)?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = asked().unwrap_or_default();
    String::from_utf8_lossy(&answer).contains("\ncrust_ops_staged_volumes ")
}
