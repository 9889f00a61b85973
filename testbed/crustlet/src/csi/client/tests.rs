use std::future::pending;

use crust_proto::csi::v1::identity_server::{Identity, IdentityServer};
use crust_proto::csi::v1::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest,
    GetPluginInfoResponse, ProbeRequest, ProbeResponse,
};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::*;

/// A driver that answers `GetPluginInfo`, fails `GetPluginCapabilities`, and never answers `Probe`.
struct TestIdentity {
    probe_called: Arc<Notify>,
}

#[tonic::async_trait]
impl Identity for TestIdentity {
    async fn get_plugin_info(
        &self,
        request: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        assert!(request.metadata().contains_key("grpc-timeout"));
        Ok(Response::new(GetPluginInfoResponse {
            name: "csi.example".to_owned(),
            ..GetPluginInfoResponse::default()
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        Err(Status::failed_precondition("not\ntoday; hint: tomorrow"))
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        self.probe_called.notify_one();
        pending().await
    }
}

struct TestDriver {
    directory: TempDir,
    metrics: Arc<Metrics>,
    probe_called: Arc<Notify>,
}

impl TestDriver {
    fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
            metrics: Arc::new(Metrics::new()),
            probe_called: Arc::default(),
        }
    }

    fn driver(&self) -> Driver {
        let socket = self.directory.path().join("csi.sock");
        Driver::new("csi.example", &socket, Arc::clone(&self.metrics))
    }

    /// Serves until the runtime ends, which closes all connections.
    fn serve(&self) -> Runtime {
        let runtime = Runtime::new().unwrap();
        let _guard = runtime.enter();
        let listener = UnixListener::bind(self.driver().socket()).unwrap();
        let probe_called = Arc::clone(&self.probe_called);
        let served = Server::builder()
            .add_service(IdentityServer::new(TestIdentity { probe_called }))
            .serve_with_incoming(UnixListenerStream::new(listener));
        runtime.spawn(served);
        runtime
    }

    #[track_caller]
    fn assert_counted(&self, method: &str, code: &str) {
        let line = format!(
            "csi_operations_seconds_count{{driver_name=\"csi.example\",method_name=\"/csi.v1.Identity/{method}\",grpc_status_code=\"{code}\",migrated=\"false\"}} 1"
        );
        let text = self.metrics.page().body;
        assert!(
            text.lines().any(|found| found == line),
            "{line} isn't in {text}"
        );
    }
}

#[tokio::test]
async fn calls_are_counted() {
    let test = TestDriver::new();
    let server = test.serve();
    let driver = test.driver();
    let response = driver.call(GetPluginInfoRequest {}).await.unwrap();
    assert_eq!(response.name, "csi.example");
    test.assert_counted("GetPluginInfo", "OK");
    let error = driver.call(GetPluginCapabilitiesRequest {}).await;
    let error = error.unwrap_err();
    assert!(error.is_final());
    assert_eq!(
        error.to_string(),
        "driver csi.example: GetPluginCapabilities: FailedPrecondition: not today; hint: tomorrow"
    );
    test.assert_counted("GetPluginCapabilities", "FailedPrecondition");
    server.shutdown_background();
}

#[tokio::test]
async fn a_failed_connection_is_not_final() {
    let test = TestDriver::new();
    let error = test.driver().call(ProbeRequest {}).await.unwrap_err();
    assert_eq!((error.code(), error.is_final()), (Code::Unavailable, false));
    let message = error.to_string();
    assert!(
        message.starts_with("driver csi.example: Probe: Unavailable: "),
        "{message}"
    );
    assert!(message.contains("No such file or directory"), "{message}");
    assert!(
        message.contains("; hint: check that the server is running and listens on "),
        "{message}"
    );
    test.assert_counted("Probe", "Unavailable");
}

/// Any lost connection leaves the result of the call unknown.
#[tokio::test]
async fn a_driver_that_ends_during_a_call_leaves_it_uncertain() {
    let test = TestDriver::new();
    let server = test.serve();
    let driver = test.driver();
    let calling = tokio::spawn({
        let driver = driver.clone();
        async move { driver.call(ProbeRequest {}).await }
    });
    test.probe_called.notified().await;
    server.shutdown_background();
    let error = calling.await.unwrap().unwrap_err();
    assert_eq!((error.code(), error.is_final()), (Code::Unavailable, false));
    // The next call connects to the new driver.
    std::fs::remove_file(driver.socket()).unwrap();
    let server = test.serve();
    driver.call(GetPluginInfoRequest {}).await.unwrap();
    server.shutdown_background();
}

#[tokio::test(start_paused = true)]
async fn a_silent_driver_gets_kubelets_timeout() {
    let test = TestDriver::new();
    // The kernel completes the connection, which is never accepted.
    let _listener = UnixListener::bind(test.driver().socket()).unwrap();
    let start = tokio::time::Instant::now();
    let error = test.driver().call(ProbeRequest {}).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "driver csi.example: Probe: DeadlineExceeded: no answer within 120 s"
    );
    assert_eq!(start.elapsed().as_secs(), 120);
    test.assert_counted("Probe", "DeadlineExceeded");
}

#[test]
fn final_codes_are_kubelets() {
    let table = [
        (Code::Cancelled, false),
        (Code::Unknown, true),
        (Code::InvalidArgument, true),
        (Code::DeadlineExceeded, false),
        (Code::NotFound, true),
        (Code::AlreadyExists, true),
        (Code::PermissionDenied, true),
        (Code::ResourceExhausted, false),
        (Code::FailedPrecondition, true),
        (Code::Aborted, false),
        (Code::OutOfRange, true),
        (Code::Unimplemented, true),
        (Code::Internal, true),
        (Code::Unavailable, false),
        (Code::DataLoss, true),
        (Code::Unauthenticated, true),
    ];
    for (code, expected) in table {
        assert_eq!(is_final(code), expected, "{code:?}");
    }
}
