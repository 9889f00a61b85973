//! A private `crust_ops` with blocking clients.

mod clients;

use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use crust_proto::v1::{RuntimeStageVolumeRequest, VolumeType, volume_type};
use nix::sys::signal::Signal;

pub use self::clients::Clients;
use crate::cleanup::Cleanup;
use crate::daemon::Daemon;
use crate::node::utf8;
use crate::{Delegate, LoopDevice, Node, binary, wait_until, wait_until_async};

/// The longest time that the daemon may take to start or end.
const DAEMON_TIMEOUT: Duration = Duration::from_secs(30);

/// The daemon for the handler of a [`Node::trusted`]. It is killed on drop.
#[derive(Debug)]
pub struct Ops {
    daemon: Daemon,
    config: PathBuf,
    clients: Clients,
    _cleanup: Cleanup,
}

impl Ops {
    /// Starts a daemon with the default settings, except for paths.
    #[track_caller]
    pub fn start(node: &Node) -> Self {
        Self::with(node, "")
    }

    /// Starts a daemon with the default settings on a new node.
    #[track_caller]
    pub fn with_node(delegate: Delegate) -> (Node, Self) {
        let node = Node::trusted(delegate, "");
        let ops = Self::start(&node);
        (node, ops)
    }

    /// Starts a daemon with extra lines in its configuration.
    #[track_caller]
    pub fn with(node: &Node, extra: &str) -> Self {
        let ops = Self::stopped(node, extra);
        ops.spawn(ops.command());
        ops
    }

    /// Configures a daemon without starting it.
    pub fn stopped(node: &Node, extra: &str) -> Self {
        let directory = node.dir().subdir("ops");
        let daemon = Daemon::logging_to(&directory.join("log"));
        let killed = daemon.clone();
        let ops = Self {
            config: directory.join("crust_ops.toml"),
            clients: Clients::new(
                &Self::socket_on(node),
                &node.handler().path().with_file_name("c"),
            ),
            _cleanup: Cleanup::register(move || {
                killed.kill();
                Vec::new()
            }),
            daemon,
        };
        ops.reconfigure(node, extra);
        ops
    }

    /// Returns the path of the daemon's socket, in a directory that only root can change, as the daemon requires.
    pub fn socket_on(node: &Node) -> PathBuf {
        node.handler().path().with_file_name("s")
    }

    /// Rewrites the configuration with other extra lines.
    pub fn reconfigure(&self, node: &Node, extra: &str) {
        let text = format!(
            "listen = {:?}\ncrust_listen = {:?}\nruntime = {:?}\n{extra}\n",
            self.socket(),
            self.crust_socket(),
            node.handler().path(),
        );
        fs::write(&self.config, text).expect("the configuration");
    }

    /// Returns the daemon's command line.
    pub fn command(&self) -> Command {
        let mut command = Command::new(binary("crust_ops"));
        command.arg("--config").arg(&self.config);
        command
    }

    /// Starts the daemon with this command and waits until it listens.
    #[track_caller]
    pub fn spawn(&self, command: Command) {
        let _ = fs::remove_file(self.socket());
        self.spawn_activated(command);
    }

    /// Starts the daemon when another process already listens on its socket, as systemd does.
    #[track_caller]
    pub fn spawn_activated(&self, command: Command) {
        self.daemon.spawn(command);
        wait_until("crust_ops to listen", DAEMON_TIMEOUT, || {
            assert!(
                self.daemon.is_running(),
                "crust_ops has ended: {}",
                self.log()
            );
            std::os::unix::net::UnixStream::connect(self.socket()).is_ok()
        });
    }

    /// Kills the daemon with SIGKILL.
    pub fn kill(&self) {
        self.daemon.kill();
    }

    pub fn signal(&self, signal: Signal) {
        self.daemon.signal(signal);
    }

    /// Suspends the daemon until it gets SIGCONT. When this returns, none of its threads runs.
    pub fn suspend(&self) {
        self.daemon.suspend();
    }

    /// Waits until the daemon has ended, and returns its exit status.
    #[track_caller]
    pub fn wait(&self) -> ExitStatus {
        let mut ended = None;
        // The clients' runtime has to run meanwhile, because the daemon closes their connections.
        self.block_on(wait_until_async("crust_ops to end", DAEMON_TIMEOUT, || {
            ended = self.daemon.ended();
            ended.is_some()
        }));
        ended.expect("crust_ops has ended")
    }

    pub fn pid(&self) -> i32 {
        self.daemon.pid()
    }

    pub fn is_running(&self) -> bool {
        self.daemon.is_running()
    }

    pub fn log(&self) -> String {
        self.daemon.log()
    }

    /// Returns the path of the configuration.
    pub fn config(&self) -> &Path {
        &self.config
    }
}

impl Deref for Ops {
    type Target = Clients;

    fn deref(&self) -> &Clients {
        &self.clients
    }
}

/// Makes a request to stage a device for a target path, with no optional fields.
pub fn stage_request(target: &Path, device: &LoopDevice) -> RuntimeStageVolumeRequest {
    stage_request_of(target, device.path(), device.fstype())
}

/// Makes a request to stage any device for a target path, with no optional fields.
pub fn stage_request_of(target: &Path, device: &Path, fstype: &str) -> RuntimeStageVolumeRequest {
    RuntimeStageVolumeRequest {
        volume_type: Some(VolumeType {
            r#type: volume_type::Type::Block.into(),
        }),
        volume_target_path: utf8(target).to_owned(),
        volume_backing_path: utf8(device).to_owned(),
        fs_type: fstype.to_owned(),
        ..RuntimeStageVolumeRequest::default()
    }
}
