//! Tests of whose connection stays and whose doesn't.

use std::path::Path;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use super::*;
use crate::daemon::tests::DAEMON;

/// How HTTP/2 begins (RFC 9113, section 3.4), with a SETTINGS frame.
const BEGINS: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Types and flags of frames (RFC 9113, section 6).
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const ACKNOWLEDGES: u8 = 1;

/// A client that makes no call: it reads what comes, and acknowledges it if it `answers`. Returns the number of
/// pings once the connection has ended.
async fn idle(socket: &Path, answers: bool) -> usize {
    let mut stream = UnixStream::connect(socket).await.unwrap();
    stream.write_all(BEGINS).await.unwrap();
    let mut pings = 0;
    let mut header = [0; 9];
    while stream.read_exact(&mut header).await.is_ok() {
        let mut payload = vec![0; usize::from(header[2])];
        stream.read_exact(&mut payload).await.unwrap();
        let (kind, flags) = (header[3], header[4]);
        pings += usize::from(kind == PING);
        if answers && matches!(kind, SETTINGS | PING) && flags & ACKNOWLEDGES == 0 {
            let payload = if kind == PING { &payload[..] } else { &[] };
            let length = u8::try_from(payload.len()).unwrap();
            let header = [0, 0, length, kind, ACKNOWLEDGES, 0, 0, 0, 0];
            stream.write_all(&header).await.unwrap();
            stream.write_all(payload).await.unwrap();
        }
    }
    pings
}

async fn served() -> (Servers, tempfile::TempDir) {
    let place = tempfile::tempdir().unwrap();
    let limits = Limits {
        connections: 8,
        calls: 1,
        streams: 1,
    };
    let mut servers = Servers::new(&DAEMON, limits, Arc::new(()));
    let listener = UnixListener::bind(place.path().join("s")).unwrap();
    let connections = Connections::new("ours", listener);
    let added = servers.add(&["ours.Node"], Routes::default(), connections);
    added.await.unwrap();
    (servers, place)
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_gone_is_noticed() {
    let (_servers, place) = served().await;
    let limit = KEEP_ALIVE + ACKNOWLEDGEMENT + Duration::from_secs(1);
    let socket = place.path().join("s");
    let pings = timeout(limit, idle(&socket, false)).await;
    assert_eq!(pings.expect("its connection is closed"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_client_without_calls_keeps_its_connection() {
    let (_servers, place) = served().await;
    let socket = place.path().join("s");
    let ended = timeout(100 * KEEP_ALIVE, idle(&socket, true)).await;
    assert!(ended.is_err(), "its connection was closed: {ended:?}");
}
