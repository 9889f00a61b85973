//! Tests of what the servers answer, and of which connections stay open.

use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::Path;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio_stream::StreamExt as _;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus as Answer;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

use super::*;
use crate::daemon::tests::DAEMON;
use crate::listen::PREFACE;
use crate::log::tests::captured;

const NAMES: [&str; 2] = ["ours.Identity", "ours.Node"];

fn servers() -> Servers {
    let limits = ServerLimits {
        connections: 8,
        calls: 1,
        streams: 1,
    };
    Servers::new(&DAEMON, limits, Arc::new(()))
}

/// Servers with one socket, `s` in the directory.
async fn served() -> (Servers, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let mut servers = servers();
    let listener = UnixListener::bind(directory.path().join("s")).unwrap();
    let connections = Connections::new("ours", listener);
    let added = servers.add(&NAMES, Routes::default(), connections);
    added.await.unwrap();
    (servers, directory)
}

async fn described() -> (Servers, Routes) {
    let mut servers = servers();
    let routes = servers.described(&NAMES, Routes::default()).await.unwrap();
    (servers, routes)
}

async fn health(routes: &Routes, service: &str) -> Result<Answer, Code> {
    let service = service.to_owned();
    let answer = HealthClient::new(routes.clone())
        .check(HealthCheckRequest { service })
        .await;
    answer
        .map(|answer| answer.into_inner().status())
        .map_err(|status| status.code())
}

#[tokio::test]
async fn each_service_of_a_socket_has_its_health_until_the_end() {
    let (servers, routes) = described().await;
    let names = || NAMES.into_iter().chain([""]);
    for name in names() {
        assert_eq!(health(&routes, name).await, Ok(Answer::Serving), "{name}");
    }
    assert_eq!(health(&routes, "another").await, Err(Code::NotFound));
    servers.shut_down(Duration::ZERO).await.unwrap();
    for name in names() {
        assert_eq!(
            health(&routes, name).await,
            Ok(Answer::NotServing),
            "{name}"
        );
    }
}

/// A client that doesn't hear of the end has the servers wait.
#[tokio::test(start_paused = true)]
async fn sockets_are_listened_on_to_the_very_end() {
    let (servers, directory) = served().await;
    let socket = directory.path().join("s");
    // It begins, is answered, and reads no more.
    let mut deaf = begun(&socket).await;
    deaf.read_u8().await.unwrap();
    let mut end = Box::pin(servers.shut_down(Duration::ZERO));
    let ended = timeout(PARTING / 2, &mut end).await;
    assert!(ended.is_err(), "{ended:?}");
    StdUnixStream::connect(&socket).unwrap();
    end.await.unwrap();
    let refused = StdUnixStream::connect(&socket).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
}

#[tokio::test]
async fn each_service_of_a_socket_is_listed() {
    let (_servers, routes) = described().await;
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let answers = ServerReflectionClient::new(routes)
        .server_reflection_info(tokio_stream::once(request))
        .await;
    let answer = answers.unwrap().into_inner().next().await.unwrap().unwrap();
    let Some(MessageResponse::ListServicesResponse(listed)) = answer.message_response else {
        panic!("{answer:?}");
    };
    let mut listed: Vec<String> = listed.service.into_iter().map(|it| it.name).collect();
    listed.sort_unstable();
    assert_eq!(listed, ["grpc.health.v1.Health", NAMES[0], NAMES[1]]);
}

/// Types and flags of frames (RFC 9113, section 6).
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const ACKNOWLEDGES: u8 = 1;

/// Connects a client that has begun HTTP/2 (RFC 9113, section 3.4), with an empty SETTINGS frame.
async fn begun(socket: &Path) -> UnixStream {
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

#[tokio::test(start_paused = true)]
async fn a_client_that_answers_no_ping_is_closed_with_a_warning() {
    let (log, _guard) = captured();
    let (_servers, directory) = served().await;
    let limit = KEEP_ALIVE + ACKNOWLEDGEMENT + Duration::from_secs(1);
    let socket = directory.path().join("s");
    let pings = timeout(limit, idle(&socket, false)).await;
    assert_eq!(pings.expect("its connection is closed"), 1);
    let log = log.text();
    assert_eq!(log.lines().count(), 1, "{log}");
    let client = format!(", pid {} ", std::process::id());
    assert!(log.contains(&client) && log.contains("ping"), "{log}");
}

#[tokio::test(start_paused = true)]
async fn a_client_without_calls_keeps_its_connection() {
    let (_servers, directory) = served().await;
    let socket = directory.path().join("s");
    let ended = timeout(100 * KEEP_ALIVE, idle(&socket, true)).await;
    assert!(ended.is_err(), "its connection was closed: {ended:?}");
}

/// Neither a client that closes its connection itself nor one whose frames are wrong has left a PING unanswered.
#[tokio::test(start_paused = true)]
async fn other_ends_of_a_connection_are_no_warning() {
    let (log, _guard) = captured();
    let (_servers, directory) = served().await;
    let socket = directory.path().join("s");
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
