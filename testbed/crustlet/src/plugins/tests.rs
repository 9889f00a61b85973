use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crust_proto::registration::v1::registration_server::{
    Registration as Service, RegistrationServer,
};
use crust_proto::registration::v1::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::*;

/// The longest wait for an operation of these tests.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// A plugin's registration service. It forwards the status that it gets.
struct RegistrationService {
    info: PluginInfo,
    /// The number of calls that still fail.
    failures: AtomicUsize,
    statuses: mpsc::UnboundedSender<RegistrationStatus>,
}

#[tonic::async_trait]
impl Service for RegistrationService {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        let decrement = |count: usize| count.checked_sub(1);
        let remaining = self
            .failures
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, decrement);
        match remaining {
            Ok(_) => Err(Status::internal("not yet")),
            Err(_) => Ok(Response::new(self.info.clone())),
        }
    }

    async fn notify_registration_status(
        &self,
        status: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        self.statuses.send(status.into_inner()).unwrap();
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

/// A running registration service. Its socket remains when it ends.
struct RunningService {
    task: JoinHandle<()>,
    statuses: mpsc::UnboundedReceiver<RegistrationStatus>,
}

impl RunningService {
    /// Waits until the plugin is notified. Returns the error, or `None` if the driver was registered.
    async fn registration_error(&mut self) -> Option<String> {
        let status = tokio::time::timeout(TEST_TIMEOUT, self.statuses.recv()).await;
        let status = status.expect("the plugin is notified").unwrap();
        assert_eq!(status.plugin_registered, status.error.is_empty());
        (!status.plugin_registered).then_some(status.error)
    }
}

impl Drop for RunningService {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct TestDrivers {
    directory: TempDir,
    drivers: Drivers,
    watcher: JoinHandle<()>,
}

impl Drop for TestDrivers {
    fn drop(&mut self) {
        self.watcher.abort();
    }
}

impl TestDrivers {
    /// Watches a directory that only root can write to. `given` are the drivers that the command line names.
    fn new(given: &[(&str, &str)]) -> Self {
        let directory = tempfile::Builder::new().tempdir_in("/run").unwrap();
        let given: Vec<_> = given
            .iter()
            .map(|&(name, socket)| (name.to_owned(), PathBuf::from(socket)))
            .collect();
        let drivers = Drivers::new(&given, Arc::new(Metrics::new()));
        let registry = directory.path().join("plugins_registry");
        let watcher = tokio::spawn(drivers.clone().watch(registry));
        Self {
            directory,
            drivers,
            watcher,
        }
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.directory.path().join("plugins_registry").join(name)
    }

    fn register(&self, socket: &str, name: &str, endpoint: &str) -> RunningService {
        self.register_after_failures(0, socket, name, endpoint)
    }

    fn register_after_failures(
        &self,
        failures: usize,
        socket: &str,
        name: &str,
        endpoint: &str,
    ) -> RunningService {
        let path = self.socket(socket);
        let mut builder = fs::DirBuilder::new();
        let builder = builder.recursive(true).mode(0o750);
        builder.create(path.parent().unwrap()).unwrap();
        // The socket is renamed into place once the service listens on it.
        let new = self.directory.path().join("new");
        let listener = UnixListener::bind(&new).unwrap();
        fs::rename(new, path).unwrap();
        let (sender, statuses) = mpsc::unbounded_channel();
        let info = PluginInfo {
            r#type: "CSIPlugin".to_owned(),
            name: name.to_owned(),
            endpoint: endpoint.to_owned(),
            supported_versions: vec!["1.0.0".to_owned()],
        };
        let service = RegistrationService {
            info,
            failures: failures.into(),
            statuses: sender,
        };
        let server = Server::builder()
            .add_service(RegistrationServer::new(service))
            .serve_with_incoming(UnixListenerStream::new(listener));
        let task = tokio::spawn(async move { server.await.unwrap() });
        RunningService { task, statuses }
    }

    /// Waits until a driver has this socket. `None` waits until it isn't registered.
    async fn wait_for_socket(&self, name: &str, socket: Option<&Path>) {
        let mut changes = self.drivers.subscribe();
        let wait = async {
            let current = || {
                self.drivers
                    .get(name)
                    .map(|driver| driver.socket().to_owned())
            };
            while current().as_deref() != socket {
                changes.changed().await.unwrap();
            }
        };
        let waited = tokio::time::timeout(TEST_TIMEOUT, wait).await;
        waited.unwrap_or_else(|_| panic!("driver {name} doesn't have the socket {socket:?}"));
    }
}

#[tokio::test]
async fn a_driver_is_registered_as_long_as_its_socket_exists() {
    let test = TestDrivers::new(&[]);
    assert!(test.drivers.get("a.example").is_none());
    let mut service = test.register("sub/a-reg.sock", "a.example", "");
    assert_eq!(service.registration_error().await, None);
    test.wait_for_socket("a.example", Some(&test.socket("sub/a-reg.sock")))
        .await;
    fs::remove_file(test.socket("sub/a-reg.sock")).unwrap();
    test.wait_for_socket("a.example", None).await;
}

#[tokio::test]
async fn a_replaced_driver_registers_again() {
    let test = TestDrivers::new(&[]);
    let mut first = test.register("a-reg.sock", "a.example", "/run/a/1.sock");
    assert_eq!(first.registration_error().await, None);
    test.wait_for_socket("a.example", Some(Path::new("/run/a/1.sock")))
        .await;
    let mut second = test.register("a-reg.sock", "a.example", "unix:///run/a/2.sock");
    assert_eq!(second.registration_error().await, None);
    test.wait_for_socket("a.example", Some(Path::new("/run/a/2.sock")))
        .await;
}

#[tokio::test]
async fn a_driver_registers_once_one_of_the_same_name_is_gone() {
    let test = TestDrivers::new(&[]);
    let mut first = test.register("1.sock", "a.example", "/run/a/1.sock");
    assert_eq!(first.registration_error().await, None);
    let mut second = test.register("2.sock", "a.example", "/run/a/2.sock");
    let error = second.registration_error().await.unwrap();
    let expected = format!(
        "driver a.example has already registered with {}",
        test.socket("1.sock").display()
    );
    assert!(error.starts_with(&expected), "{error}");
    fs::remove_file(test.socket("1.sock")).unwrap();
    test.wait_for_socket("a.example", Some(Path::new("/run/a/2.sock")))
        .await;
}

#[tokio::test]
async fn the_command_line_takes_precedence() {
    let test = TestDrivers::new(&[("a.example", "/run/a/given.sock")]);
    let mut with_other_socket = test.register("1.sock", "a.example", "/run/a/1.sock");
    let error = with_other_socket.registration_error().await.unwrap();
    assert!(
        error.ends_with("--csi names /run/a/given.sock, which takes precedence"),
        "{error}"
    );
    let mut with_same_socket = test.register("2.sock", "a.example", "/run/a/given.sock");
    assert_eq!(with_same_socket.registration_error().await, None);
    test.wait_for_socket("a.example", Some(Path::new("/run/a/given.sock")))
        .await;
}

#[tokio::test]
async fn a_driver_that_others_can_replace_is_refused() {
    let test = TestDrivers::new(&[]);
    let mut service = test.register("a.sock", "a.example", "/tmp/csi.sock");
    let error = service.registration_error().await.unwrap();
    assert!(
        error.contains("/tmp can be written by others than root"),
        "{error}"
    );
    assert!(test.drivers.get("a.example").is_none());
}

#[tokio::test]
async fn a_failed_registration_is_retried() {
    let test = TestDrivers::new(&[]);
    let mut service = test.register_after_failures(1, "a.sock", "a.example", "");
    assert_eq!(service.registration_error().await, None);
    test.wait_for_socket("a.example", Some(&test.socket("a.sock")))
        .await;
}
