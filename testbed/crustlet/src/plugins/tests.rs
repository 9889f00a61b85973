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

/// More than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Registers a driver, and is told what became of it.
struct Registrar {
    info: PluginInfo,
    /// So many times it isn't ready to.
    unready: AtomicUsize,
    told: mpsc::UnboundedSender<RegistrationStatus>,
}

#[tonic::async_trait]
impl Service for Registrar {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        let one_less = |times: usize| times.checked_sub(1);
        let unready = self
            .unready
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
        match unready {
            Ok(_) => Err(Status::internal("not yet")),
            Err(_) => Ok(Response::new(self.info.clone())),
        }
    }

    async fn notify_registration_status(
        &self,
        status: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        self.told.send(status.into_inner()).unwrap();
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

/// A registrar that runs; its socket stays when it ends.
struct Running {
    task: JoinHandle<()>,
    told: mpsc::UnboundedReceiver<RegistrationStatus>,
}

impl Running {
    /// The error, or nothing where it is registered.
    async fn outcome(&mut self) -> Option<String> {
        let status = tokio::time::timeout(PATIENCE, self.told.recv()).await;
        let status = status.expect("it is told").unwrap();
        assert_eq!(status.plugin_registered, status.error.is_empty());
        (!status.plugin_registered).then_some(status.error)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Lab {
    directory: TempDir,
    drivers: Drivers,
    watching: JoinHandle<()>,
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

impl Lab {
    /// Only root may put anything there.
    fn new(given: &[(&str, &str)]) -> Self {
        let directory = tempfile::Builder::new().tempdir_in("/run").unwrap();
        let given: Vec<_> = given
            .iter()
            .map(|&(name, socket)| (name.to_owned(), PathBuf::from(socket)))
            .collect();
        let drivers = Drivers::new(&given, Arc::new(Metrics::new()));
        let registry = directory.path().join("plugins_registry");
        let watching = tokio::spawn(drivers.clone().watch(registry));
        Self {
            directory,
            drivers,
            watching,
        }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join("plugins_registry").join(name)
    }

    fn register(&self, socket: &str, name: &str, endpoint: &str) -> Running {
        self.register_after(0, socket, name, endpoint)
    }

    fn register_after(&self, unready: usize, socket: &str, name: &str, endpoint: &str) -> Running {
        let place = self.at(socket);
        let mut missing = fs::DirBuilder::new();
        let made = missing.recursive(true).mode(0o750);
        made.create(place.parent().unwrap()).unwrap();
        // Whoever looks meanwhile finds it listening.
        let new = self.directory.path().join("new");
        let listener = UnixListener::bind(&new).unwrap();
        fs::rename(new, place).unwrap();
        let (tell, told) = mpsc::unbounded_channel();
        let info = PluginInfo {
            r#type: "CSIPlugin".to_owned(),
            name: name.to_owned(),
            endpoint: endpoint.to_owned(),
            supported_versions: vec!["1.0.0".to_owned()],
        };
        let registrar = Registrar {
            info,
            unready: unready.into(),
            told: tell,
        };
        let server = Server::builder()
            .add_service(RegistrationServer::new(registrar))
            .serve_with_incoming(UnixListenerStream::new(listener));
        let task = tokio::spawn(async move { server.await.unwrap() });
        Running { task, told }
    }

    /// Waits until a driver has this socket, or none.
    async fn wait(&self, name: &str, socket: Option<&Path>) {
        let mut changes = self.drivers.changed();
        let found = async {
            let found = || self.drivers.get(name).map(|it| it.socket().to_owned());
            while found().as_deref() != socket {
                changes.changed().await.unwrap();
            }
        };
        let found = tokio::time::timeout(PATIENCE, found).await;
        found.unwrap_or_else(|_| panic!("{name} isn't at {socket:?}"));
    }
}

#[tokio::test]
async fn a_driver_is_there_as_long_as_its_socket() {
    let lab = Lab::new(&[]);
    assert!(lab.drivers.get("a.example").is_none());
    let mut registrar = lab.register("sub/a-reg.sock", "a.example", "");
    assert_eq!(registrar.outcome().await, None);
    lab.wait("a.example", Some(&lab.at("sub/a-reg.sock"))).await;
    fs::remove_file(lab.at("sub/a-reg.sock")).unwrap();
    lab.wait("a.example", None).await;
}

#[tokio::test]
async fn a_driver_that_is_replaced_registers_anew() {
    let lab = Lab::new(&[]);
    let mut first = lab.register("a-reg.sock", "a.example", "/run/a/1.sock");
    assert_eq!(first.outcome().await, None);
    lab.wait("a.example", Some(Path::new("/run/a/1.sock")))
        .await;
    let mut second = lab.register("a-reg.sock", "a.example", "unix:///run/a/2.sock");
    assert_eq!(second.outcome().await, None);
    lab.wait("a.example", Some(Path::new("/run/a/2.sock")))
        .await;
}

#[tokio::test]
async fn a_name_has_one_driver_and_the_next_one_when_that_is_gone() {
    let lab = Lab::new(&[]);
    let mut first = lab.register("1.sock", "a.example", "/run/a/1.sock");
    assert_eq!(first.outcome().await, None);
    let mut second = lab.register("2.sock", "a.example", "/run/a/2.sock");
    let error = second.outcome().await.unwrap();
    let expected = format!(
        "driver a.example has registered by {} already",
        lab.at("1.sock").display()
    );
    assert!(error.starts_with(&expected), "{error}");
    fs::remove_file(lab.at("1.sock")).unwrap();
    lab.wait("a.example", Some(Path::new("/run/a/2.sock")))
        .await;
}

#[tokio::test]
async fn what_the_command_line_names_counts() {
    let lab = Lab::new(&[("a.example", "/run/a/given.sock")]);
    let mut other = lab.register("1.sock", "a.example", "/run/a/1.sock");
    let error = other.outcome().await.unwrap();
    assert!(
        error.ends_with("--csi names /run/a/given.sock, which counts"),
        "{error}"
    );
    let mut same = lab.register("2.sock", "a.example", "/run/a/given.sock");
    assert_eq!(same.outcome().await, None);
    lab.wait("a.example", Some(Path::new("/run/a/given.sock")))
        .await;
}

#[tokio::test]
async fn a_driver_that_others_can_replace_is_refused_with_why() {
    let lab = Lab::new(&[]);
    let mut registrar = lab.register("a.sock", "a.example", "/tmp/csi.sock");
    let error = registrar.outcome().await.unwrap();
    assert!(
        error.contains("/tmp can be written by others than root"),
        "{error}"
    );
    assert!(lab.drivers.get("a.example").is_none());
}

#[tokio::test]
async fn a_plugin_that_is_not_ready_is_asked_again() {
    let lab = Lab::new(&[]);
    let mut registrar = lab.register_after(1, "a.sock", "a.example", "");
    assert_eq!(registrar.outcome().await, None);
    lab.wait("a.example", Some(&lab.at("a.sock"))).await;
}
