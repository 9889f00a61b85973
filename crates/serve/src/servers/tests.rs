//! Tests of health, reflection and shutdown, and of the connections that stay open.

use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::Path;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio_stream::StreamExt as _;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus as HealthStatus;
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

/// Returns servers with one socket, `s` in the returned directory.
async fn listening_servers() -> (Servers, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let mut servers = servers();
    let listener = UnixListener::bind(directory.path().join("s")).unwrap();
    let connections = Connections::new("ours", listener);
    let added = servers.add(&NAMES, Routes::default(), connections);
    added.await.unwrap();
    (servers, directory)
}

async fn servers_with_routes() -> (Servers, Routes) {
    let mut servers = servers();
    let routes = servers.add_health_and_reflection(&NAMES, Routes::default());
    let routes = routes.await.unwrap();
    (servers, routes)
}

async fn health(routes: &Routes, service: &str) -> Result<HealthStatus, Code> {
    let service = service.to_owned();
    let response = HealthClient::new(routes.clone())
        .check(HealthCheckRequest { service })
        .await;
    response
        .map(|response| response.into_inner().status())
        .map_err(|status| status.code())
}

#[tokio::test]
async fn each_service_is_serving_until_the_shutdown() {
    let (servers, routes) = servers_with_routes().await;
    let names = || NAMES.into_iter().chain([""]);
    for name in names() {
        assert_eq!(
            health(&routes, name).await,
            Ok(HealthStatus::Serving),
            "{name}"
        );
    }
    assert_eq!(health(&routes, "another").await, Err(Code::NotFound));
    servers.shut_down(Duration::ZERO).await.unwrap();
    for name in names() {
        assert_eq!(
            health(&routes, name).await,
            Ok(HealthStatus::NotServing),
            "{name}"
        );
    }
}

/// The servers wait for a client that doesn't close its connection.
#[tokio::test(start_paused = true)]
async fn sockets_are_listening_until_the_shutdown_is_complete() {
    let (servers, directory) = listening_servers().await;
    let socket = directory.path().join("s");
    // The client stops reading after the first byte.
    let mut client = connect(&socket).await;
    client.read_u8().await.unwrap();
    let mut shutdown = Box::pin(servers.shut_down(Duration::ZERO));
    let result = timeout(DISCONNECT_TIMEOUT / 2, &mut shutdown).await;
    assert!(result.is_err(), "{result:?}");
    StdUnixStream::connect(&socket).unwrap();
    shutdown.await.unwrap();
    let refused = StdUnixStream::connect(&socket).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
}

#[tokio::test]
async fn reflection_lists_each_service() {
    let (_servers, routes) = servers_with_routes().await;
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let responses = ServerReflectionClient::new(routes)
        .server_reflection_info(tokio_stream::once(request))
        .await;
    let mut responses = responses.unwrap().into_inner();
    let response = responses.next().await.unwrap().unwrap();
    let Some(MessageResponse::ListServicesResponse(list)) = response.message_response else {
        panic!("{response:?}");
    };
    let mut services: Vec<String> = list.service.into_iter().map(|it| it.name).collect();
    services.sort_unstable();
    assert_eq!(services, ["grpc.health.v1.Health", NAMES[0], NAMES[1]]);
}

/// Types and flags of HTTP/2 frames (RFC 9113, section 6).
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const ACK: u8 = 1;

/// Connects and sends the preface and an empty SETTINGS frame (RFC 9113, section 3.4).
async fn connect(socket: &Path) -> UnixStream {
    let mut stream = UnixStream::connect(socket).await.unwrap();
    stream.write_all(PREFACE).await.unwrap();
    let settings = [0, 0, 0, SETTINGS, 0, 0, 0, 0, 0];
    stream.write_all(&settings).await.unwrap();
    stream
}

/// Runs a client that makes no call. It reads all frames, and acknowledges them if `acknowledges` is set. Returns the
/// number of PINGs when the connection has ended.
async fn run_idle_client(socket: &Path, acknowledges: bool) -> usize {
    let mut stream = connect(socket).await;
    let mut pings = 0;
    let mut header = [0; 9];
    while stream.read_exact(&mut header).await.is_ok() {
        let mut payload = vec![0; usize::from(header[2])];
        stream.read_exact(&mut payload).await.unwrap();
        let (kind, flags) = (header[3], header[4]);
        pings += usize::from(kind == PING);
        if acknowledges && matches!(kind, SETTINGS | PING) && flags & ACK == 0 {
            let payload = if kind == PING { &payload[..] } else { &[] };
            let length = u8::try_from(payload.len()).unwrap();
            let header = [0, 0, length, kind, ACK, 0, 0, 0, 0];
            stream.write_all(&header).await.unwrap();
            stream.write_all(payload).await.unwrap();
        }
    }
    pings
}

#[tokio::test(start_paused = true)]
async fn a_client_that_answers_no_ping_is_disconnected() {
    let (log, _guard) = captured();
    let (_servers, directory) = listening_servers().await;
    let limit = PING_INTERVAL + PING_TIMEOUT + Duration::from_secs(1);
    let socket = directory.path().join("s");
    let pings = timeout(limit, run_idle_client(&socket, false)).await;
    assert_eq!(pings.expect("the connection is closed"), 1);
    let log = log.text();
    assert_eq!(log.lines().count(), 1, "{log}");
    let client = format!(", pid {} ", std::process::id());
    assert!(log.contains(&client) && log.contains("ping"), "{log}");
}

#[tokio::test(start_paused = true)]
async fn a_client_without_calls_keeps_its_connection() {
    let (_servers, directory) = listening_servers().await;
    let socket = directory.path().join("s");
    let ended = timeout(100 * PING_INTERVAL, run_idle_client(&socket, true)).await;
    assert!(ended.is_err(), "the connection was closed: {ended:?}");
}

/// There is no warning about a client that closes its connection itself, or that sends an invalid frame.
#[tokio::test(start_paused = true)]
async fn connections_that_end_for_other_reasons_are_not_warned_about() {
    let (log, _guard) = captured();
    let (_servers, directory) = listening_servers().await;
    let socket = directory.path().join("s");
    let silent = connect(&socket).await;
    // The PING would count as unacknowledged if the daemon closed the connection now.
    tokio::time::sleep(PING_INTERVAL + PING_TIMEOUT / 2 + Duration::from_secs(1)).await;
    drop(silent);
    let mut invalid = connect(&socket).await;
    // The payload of a PING must have eight bytes (RFC 9113, section 6.7).
    invalid
        .write_all(&[0, 0, 0, PING, 0, 0, 0, 0, 0])
        .await
        .unwrap();
    let mut response = Vec::new();
    invalid.read_to_end(&mut response).await.unwrap();
    tokio::time::sleep(PING_INTERVAL).await;
    assert_eq!(log.text(), "");
}
