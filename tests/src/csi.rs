//! A `crust-csi` of the test's own, and what an orchestrator asks of it.

mod calls;
mod leftovers;
mod places;
mod relay;
mod volume;

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use crust_proto::csi::v1::{CreateVolumeRequest, VolumeCapability};
use tonic::Status;

pub use self::calls::{Call, CsiClient};
use self::leftovers::put_away;
pub use self::relay::CsiRelay;
pub use self::volume::{CsiVolume, block, capability, create_request, filesystem, mount_of};
use crate::cleanup::{Cleanup, Working};
use crate::daemon::Daemon;
pub use crate::relay::Moment;
use crate::{Node, Ops, Run, binary, wait_until};

/// How long the driver may take to start or end.
const DRIVER_TIMEOUT: Duration = Duration::from_secs(30);

/// What the driver is called in tests, but where one says otherwise.
pub const DRIVER: &str = "csi.tests.crust.dev";

/// The node that it is on.
pub const NODE: &str = "node-of-a-test";

/// The driver, with a data directory of its own on a [`Node::trusted`], by whose crust directory and
/// `crust_ops` it defers. Dropped, it is killed, and what it has mounted and attached goes.
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
    /// Started with its defaults, but for where things are.
    #[track_caller]
    pub fn start(node: &Node) -> Self {
        Self::with(node, &[])
    }

    /// With further arguments: `["--capacity", "1000000"]`.
    #[track_caller]
    pub fn with(node: &Node, arguments: &[&str]) -> Self {
        let csi = Self::stopped(node);
        csi.spawn(csi.command(arguments));
        csi
    }

    /// Not started yet.
    pub fn stopped(node: &Node) -> Self {
        // Where only root can change anything.
        let home = node.handler().path();
        let data = home.with_file_name("csi");
        let kubelet = node.handler().kubelet_dir();
        let daemon = Daemon::logging_to(&node.dir().join("csi.log"));
        let client = CsiClient::of(&home.with_file_name("csi.sock"));
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
                put_away(&owned.1, &owned.2)
            }),
            settings: settings.concat(),
            client,
            daemon,
            data,
            kubelet,
        }
    }

    /// The driver's command line; of an argument that is given twice the last counts.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut settings = self.settings.clone();
        for argument in arguments.chunks(2) {
            let is_it = |there: &String| there == argument[0] && argument[0] != "--without";
            if let Some(at) = settings.iter().position(is_it) {
                settings.drain(at..at + 2);
            }
        }
        let mut command = Command::new(binary("crust-csi"));
        command.args(settings).args(arguments);
        command
    }

    /// Starts it by this command and waits until it listens.
    #[track_caller]
    pub fn spawn(&self, command: Command) {
        let _ = fs::remove_file(self.socket());
        self.daemon.spawn(command);
        self.wait_until_listening(|| self.daemon.is_running());
    }

    /// Starts it as a child of somebody else's, who has to reap it.
    pub fn spawn_unmanaged(&self, mut command: Command) -> Child {
        let _working = Working::begin();
        let _ = fs::remove_file(self.socket());
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.daemon.log_path());
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(log.expect("its log"));
        command
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    /// Waits until it listens, as long as it is there.
    #[track_caller]
    pub fn wait_until_listening(&self, is_running: impl Fn() -> bool) {
        wait_until("crust-csi to listen", DRIVER_TIMEOUT, || {
            assert!(is_running(), "it has ended: {}", self.log());
            UnixStream::connect(self.socket()).is_ok()
        });
    }

    /// SIGKILL, and another one with these arguments on the same data directory.
    #[track_caller]
    pub fn restart(&self, arguments: &[&str]) {
        self.kill();
        self.spawn(self.command(arguments));
    }

    /// SIGKILL.
    pub fn kill(&self) {
        self.daemon.kill();
    }

    /// SIGKILL, and the machine as a boot leaves it: nothing is mounted, and nothing attached.
    ///
    /// # Panics
    ///
    /// When something is still in use.
    #[track_caller]
    pub fn simulate_reboot(&self) {
        self.kill();
        assert_eq!(put_away(&self.kubelet, &self.data), Vec::<String>::new());
    }

    /// SIGTERM; how it has ended.
    #[track_caller]
    pub fn stop(&self) -> ExitStatus {
        self.daemon.stop("crust-csi", DRIVER_TIMEOUT)
    }

    /// Runs it with further arguments beside this one; it has to end by itself.
    #[track_caller]
    pub fn run_another(&self, arguments: &[&str]) -> Run {
        let ended = Run::within(&mut self.command(arguments), DRIVER_TIMEOUT);
        ended.expect("it serves, and should have refused to")
    }

    /// Its pid.
    pub fn pid(&self) -> i32 {
        self.daemon.pid()
    }

    /// What it logged.
    pub fn log(&self) -> String {
        self.daemon.log()
    }

    /// Its socket.
    pub fn socket(&self) -> &Path {
        self.client.socket()
    }

    /// Its data directory.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// What it is called by: from several threads, too.
    pub fn client(&self) -> &CsiClient {
        &self.client
    }

    /// Calls it.
    pub fn call<C: Call>(&self, call: C) -> Result<C::Answer, Status> {
        self.client.call(call)
    }

    /// Calls it, and returns the answer.
    ///
    /// # Panics
    ///
    /// When the call fails.
    #[track_caller]
    pub fn call_ok<C: Call>(&self, call: C) -> C::Answer {
        self.call(call)
            .unwrap_or_else(|status| panic!("{}: {status}", C::NAME))
    }

    /// Calls it twice at a time.
    pub fn call_both<A: Call, B: Call>(
        &self,
        one: A,
        other: B,
    ) -> (Result<A::Answer, Status>, Result<B::Answer, Status>) {
        self.client.call_both(one, other)
    }

    /// Makes a volume, no larger than its file system needs.
    ///
    /// # Panics
    ///
    /// When it isn't made.
    #[track_caller]
    pub fn volume(&self, name: &str, capability: VolumeCapability) -> CsiVolume {
        self.create_volume(create_request(name, capability))
    }

    /// The same by a request of the test's.
    ///
    /// # Panics
    ///
    /// When it isn't made.
    #[track_caller]
    pub fn create_volume(&self, request: CreateVolumeRequest) -> CsiVolume {
        let volume = self.provision_volume(request);
        fs::create_dir_all(&volume.staging).expect("a staging directory, which kubelet makes");
        volume
    }

    /// The same, without a staging directory: whoever stages it makes one.
    ///
    /// # Panics
    ///
    /// When it isn't made.
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
