//! A private `crust-csi`, and the requests of an orchestrator.

mod calls;
mod leftovers;
mod paths;
mod relay;
mod volume;

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use crust_proto::csi::v1::{CreateVolumeRequest, VolumeCapability};
use tonic::Status;

pub use self::calls::{CsiClient, CsiRequest};
use self::leftovers::remove_leftovers;
pub use self::relay::CsiRelay;
pub use self::volume::{CsiVolume, block, capability, create_request, filesystem, mount_of};
use crate::cleanup::{Cleanup, OperationGuard};
use crate::daemon::Daemon;
pub use crate::relay::Moment;
use crate::{Node, Ops, Run, binary, wait_until};

/// The longest time that the driver may take to start or end.
const DRIVER_TIMEOUT: Duration = Duration::from_secs(30);

/// The driver's default name in tests.
pub const DRIVER: &str = "csi.tests.crust.dev";

/// The name of the driver's node.
pub const NODE: &str = "node-of-a-test";

/// The driver on a [`Node::trusted`], with its own data directory. It defers to the node's crust directory and
/// `crust_ops`. On drop it is killed, and its mounts and loop devices are removed.
#[derive(Debug)]
pub struct Csi {
    daemon: Daemon,
    client: CsiClient,
    settings: Vec<String>,
    data: PathBuf,
    kubelet: PathBuf,
    _cleanup: Cleanup,
}

impl Csi {
    /// Starts a driver with the default settings, except for paths.
    #[track_caller]
    pub fn start(node: &Node) -> Self {
        Self::with(node, &[])
    }

    /// Starts a driver with further arguments, such as `["--capacity", "1000000"]`.
    #[track_caller]
    pub fn with(node: &Node, arguments: &[&str]) -> Self {
        let csi = Self::stopped(node);
        csi.spawn(csi.command(arguments));
        csi
    }

    /// Configures a driver without starting it.
    pub fn stopped(node: &Node) -> Self {
        // The driver's files are in a directory that only root can change.
        let home = node.handler().path();
        let data = home.with_file_name("csi");
        let kubelet = node.handler().kubelet_dir();
        let daemon = Daemon::logging_to(&node.dir().join("csi.log"));
        let client = CsiClient::new(&home.with_file_name("csi.sock"));
        let settings = [
            (
                "--endpoint",
                format!("unix://{}", client.socket().display()),
            ),
            ("--node-id", NODE.to_owned()),
            ("--driver-name", DRIVER.to_owned()),
            ("--data-dir", data.display().to_string()),
            (
                "--crust-root",
                node.handler().crust_root().display().to_string(),
            ),
            ("--crust-ops", Ops::socket_on(node).display().to_string()),
        ];
        let settings = settings.map(|(name, value)| [name.to_owned(), value]);
        let owned = (daemon.clone(), kubelet.clone(), data.clone());
        Self {
            _cleanup: Cleanup::register(move || {
                owned.0.kill();
                remove_leftovers(&owned.1, &owned.2)
            }),
            settings: settings.concat(),
            client,
            daemon,
            data,
            kubelet,
        }
    }

    /// Returns the driver's command line. An argument replaces the setting of the same name, except for `--without`.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut settings = self.settings.clone();
        for argument in arguments.chunks(2) {
            let is_replaced =
                |setting: &String| setting == argument[0] && argument[0] != "--without";
            if let Some(at) = settings.iter().position(is_replaced) {
                settings.drain(at..at + 2);
            }
        }
        let mut command = Command::new(binary("crust-csi"));
        command.args(settings).args(arguments);
        command
    }

    /// Starts the driver with this command and waits until it listens.
    #[track_caller]
    pub fn spawn(&self, command: Command) {
        let _ = fs::remove_file(self.socket());
        self.daemon.spawn(command);
        self.wait_until_listening(|| self.daemon.is_running());
    }

    /// Starts the driver as a child of the caller, who has to reap it.
    pub fn spawn_unmanaged(&self, mut command: Command) -> Child {
        let _operation = OperationGuard::begin();
        let _ = fs::remove_file(self.socket());
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.daemon.log_path());
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(log.expect("open the log"));
        command
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    /// Waits until the driver listens. Fails at once if `is_running` returns false.
    #[track_caller]
    pub fn wait_until_listening(&self, is_running: impl Fn() -> bool) {
        wait_until("crust-csi to listen", DRIVER_TIMEOUT, || {
            assert!(is_running(), "crust-csi has ended: {}", self.log());
            UnixStream::connect(self.socket()).is_ok()
        });
    }

    /// Kills the driver with SIGKILL and starts it again with these arguments on the same data directory.
    #[track_caller]
    pub fn restart(&self, arguments: &[&str]) {
        self.kill();
        self.spawn(self.command(arguments));
    }

    /// Kills the driver with SIGKILL.
    pub fn kill(&self) {
        self.daemon.kill();
    }

    /// Kills the driver with SIGKILL and removes its mounts and loop devices, as a reboot does.
    #[track_caller]
    pub fn simulate_reboot(&self) {
        self.kill();
        assert_eq!(
            remove_leftovers(&self.kubelet, &self.data),
            Vec::<String>::new()
        );
    }

    /// Stops the driver with SIGTERM and returns its exit status.
    #[track_caller]
    pub fn stop(&self) -> ExitStatus {
        self.daemon.stop("crust-csi", DRIVER_TIMEOUT)
    }

    /// Runs a second driver with these arguments, which has to end by itself.
    #[track_caller]
    pub fn run_another(&self, arguments: &[&str]) -> Run {
        let ended = Run::capture_within(&mut self.command(arguments), DRIVER_TIMEOUT);
        ended.expect("the second driver serves, but should have refused to start")
    }

    pub fn pid(&self) -> i32 {
        self.daemon.pid()
    }

    pub fn log(&self) -> String {
        self.daemon.log()
    }

    pub fn socket(&self) -> &Path {
        self.client.socket()
    }

    pub fn data(&self) -> &Path {
        &self.data
    }

    /// Returns a client, which several threads may use.
    pub fn client(&self) -> &CsiClient {
        &self.client
    }

    pub fn call<C: CsiRequest>(&self, call: C) -> Result<C::Response, Status> {
        self.client.call(call)
    }

    /// Makes a call that must succeed, and returns the response.
    #[track_caller]
    pub fn call_ok<C: CsiRequest>(&self, call: C) -> C::Response {
        self.call(call)
            .unwrap_or_else(|status| panic!("{}: {status}", C::NAME))
    }

    /// Makes two calls at the same time.
    pub fn call_both<A: CsiRequest, B: CsiRequest>(
        &self,
        one: A,
        other: B,
    ) -> (Result<A::Response, Status>, Result<B::Response, Status>) {
        self.client.call_both(one, other)
    }

    /// Creates a volume of the smallest size for its file system, and its staging directory.
    #[track_caller]
    pub fn volume(&self, name: &str, capability: VolumeCapability) -> CsiVolume {
        self.create_volume(create_request(name, capability))
    }

    /// Creates a volume with this request, and its staging directory, as kubelet does.
    #[track_caller]
    pub fn create_volume(&self, request: CreateVolumeRequest) -> CsiVolume {
        let volume = self.provision_volume(request);
        fs::create_dir_all(&volume.staging).expect("a staging directory, which kubelet makes");
        volume
    }

    /// Creates a volume with this request, without a staging directory.
    #[track_caller]
    pub fn provision_volume(&self, request: CreateVolumeRequest) -> CsiVolume {
        let capability = request.volume_capabilities[0].clone();
        let created = self.call(request).expect("a volume");
        let volume = created
            .volume
            .expect("CreateVolumeResponse.volume is REQUIRED");
        CsiVolume {
            staging: self.staging(&volume.volume_id),
            id: volume.volume_id,
            context: volume.volume_context,
            capacity: volume.capacity_bytes,
            capability,
        }
    }
}
