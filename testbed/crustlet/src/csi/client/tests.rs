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

/// Tells its name, refuses to tell what it can do, and never tells whether it is well.
struct Moody {
    asked: Arc<Notify>,
}

#[tonic::async_trait]
impl Identity for Moody {
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
        self.asked.notify_one();
        pending().await
    }
}

struct Lab {
    directory: TempDir,
    metrics: Arc<Metrics>,
    /// Whether it is well.
    asked: Arc<Notify>,
}

impl Lab {
    fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
            metrics: Arc::new(Metrics::new()),
            asked: Arc::default(),
        }
    }

    fn driver(&self) -> Driver {
        let socket = self.directory.path().join("csi.sock");
        Driver::new("csi.example", &socket, Arc::clone(&self.metrics))
    }

    /// Until the runtime ends, and with it every connection.
    fn serve(&self) -> Runtime {
        let runtime = Runtime::new().unwrap();
        let _inside = runtime.enter();
        let listener = UnixListener::bind(self.driver().socket()).unwrap();
        let asked = Arc::clone(&self.asked);
        let served = Server::builder()
            .add_service(IdentityServer::new(Moody { asked }))
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
        assert!(text.lines().any(|it| it == line), "{line} isn't in {text}");
    }
}

#[tokio::test]
async fn a_driver_is_asked_and_its_answers_are_counted() {
    let lab = Lab::new();
    let server = lab.serve();
    let driver = lab.driver();
    let answer = driver.call(GetPluginInfoRequest {}).await.unwrap();
    assert_eq!(answer.name, "csi.example");
    lab.assert_counted("GetPluginInfo", "OK");
    let error = driver.call(GetPluginCapabilitiesRequest {}).await;
    let error = error.unwrap_err();
    assert!(error.is_final());
    assert_eq!(
        error.to_string(),
        "driver csi.example: GetPluginCapabilities: FailedPrecondition: not today; hint: tomorrow"
    );
    lab.assert_counted("GetPluginCapabilities", "FailedPrecondition");
    server.shutdown_background();
}

#[tokio::test]
async fn where_nobody_listens_nothing_is_final() {
    let lab = Lab::new();
    let error = lab.driver().call(ProbeRequest {}).await.unwrap_err();
    assert_eq!((error.code(), error.is_final()), (Code::Unavailable, false));
    let told = error.to_string();
    assert!(
        told.starts_with("driver csi.example: Probe: Unavailable: "),
        "{told}"
    );
    assert!(told.contains("No such file or directory"), "{told}");
    assert!(
        told.contains("; hint: does it run, and listen on "),
        "{told}"
    );
    lab.assert_counted("Probe", "Unavailable");
}

/// Whatever a lost connection looks like from here: nobody knows what became of the call.
#[tokio::test]
async fn a_driver_that_ends_meanwhile_leaves_its_call_uncertain() {
    let lab = Lab::new();
    let server = lab.serve();
    let driver = lab.driver();
    let calling = tokio::spawn({
        let driver = driver.clone();
        async move { driver.call(ProbeRequest {}).await }
    });
    lab.asked.notified().await;
    server.shutdown_background();
    let error = calling.await.unwrap().unwrap_err();
    assert_eq!((error.code(), error.is_final()), (Code::Unavailable, false));
    // Another one in its place is found without ado.
    std::fs::remove_file(driver.socket()).unwrap();
    let server = lab.serve();
    driver.call(GetPluginInfoRequest {}).await.unwrap();
    server.shutdown_background();
}

#[tokio::test(start_paused = true)]
async fn a_silent_driver_gets_kubelets_timeout() {
    let lab = Lab::new();
    // Takes no connection, which is made all the same.
    let _listener = UnixListener::bind(lab.driver().socket()).unwrap();
    let begun = tokio::time::Instant::now();
    let error = lab.driver().call(ProbeRequest {}).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "driver csi.example: Probe: DeadlineExceeded: no answer within 120 s"
    );
    assert_eq!(begun.elapsed().as_secs(), 120);
    lab.assert_counted("Probe", "DeadlineExceeded");
}

#[test]
fn what_is_final_is_kubelets() {
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
