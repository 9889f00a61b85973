//! Tests of which connections stay open.

use std::path::Path;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use super::*;
use crate::daemon::tests::DAEMON;
use crate::listen::PREFACE;
use crate::log::tests::captured;

/// Types and flags of frames (RFC 9113, section 6).
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const ACKNOWLEDGES: u8 = 1;

/// Connects a client that has begun HTTP/2 (RFC 9113, section 3.4), with an empty SETTINGS frame.
pub(super) async fn begun(socket: &Path) -> UnixStream {
    let mut stream = UnixStream::connect(socket).await.unwrap();
    stream.write_all(PREFACE).await.unwrap();
    let settings = [0, 0, 0, SETTINGS, 0, 0, 0, 0, 0];
    stream.write_all(&settings).await.unwrap();
    stream
}

/// A client that makes no call: it reads what comes, and acknowledges it if it `answers`. Returns the number of
/// pings once the connection has ended.
async fn idle(socket: &Path, answers: bool) -> usize {
    let mut stream = begun(socket).await;
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
async fn a_client_that_answers_no_ping_is_closed_with_a_warning() {
    let (log, _guard) = captured();
    let (_servers, place) = served().await;
    let limit = KEEP_ALIVE + ACKNOWLEDGEMENT + Duration::from_secs(1);
    let socket = place.path().join("s");
    let pings = timeout(limit, idle(&socket, false)).await;
    assert_eq!(pings.expect("its connection is closed"), 1);
    let log = log.text();
    assert_eq!(log.lines().count(), 1, "{log}");
    let client = format!(", pid {} ", std::process::id());
    assert!(log.contains(&client) && log.contains("ping"), "{log}");
}

#[tokio::test(start_paused = true)]
async fn a_client_without_calls_keeps_its_connection() {
    let (_servers, place) = served().await;
    let socket = place.path().join("s");
    let ended = timeout(100 * KEEP_ALIVE, idle(&socket, true)).await;
    assert!(ended.is_err(), "its connection was closed: {ended:?}");
}

/// Neither a client that closes its connection itself nor one whose frames are wrong has left a PING unanswered.
#[tokio::test(start_paused = true)]
async fn other_ends_of_a_connection_are_no_warning() {
    let (log, _guard) = captured();
    let (_servers, place) = served().await;
    let socket = place.path().join("s");
    let late = begun(&socket).await;
    // Long enough, but for its end.
    tokio::time::sleep(KEEP_ALIVE + ACKNOWLEDGEMENT / 2 + Duration::from_secs(1)).await;
    drop(late);
    let mut wrong = begun(&socket).await;
    // A PING has eight bytes (RFC 9113, section 6.7).
    wrong
        .write_all(&[0, 0, 0, PING, 0, 0, 0, 0, 0])
        .await
        .unwrap();
    let mut answer = Vec::new();
    wrong.read_to_end(&mut answer).await.unwrap();
    tokio::time::sleep(KEEP_ALIVE).await;
    assert_eq!(log.text(), "");
}
