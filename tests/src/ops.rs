//! A `crust_ops` of the test's own, and blocking clients for it.

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

/// How long the daemon may take to start or end.
const DAEMON_TIMEOUT: Duration = Duration::from_secs(30);

/// The daemon, for the handler of a [`Node::trusted`]. Dropped, it is killed.
#[derive(Debug)]
pub struct Ops {
    daemon: Daemon,
    config: PathBuf,
    clients: Clients,
    _cleanup: Cleanup,
}

impl Ops {
    /// Started with its defaults, but for where things are.
    #[track_caller]
    pub fn start(node: &Node) -> Self {
        Self::with(node, "")
    }

    /// Starts it with its defaults on a node of its own.
    #[track_caller]
    pub fn with_node(delegate: Delegate) -> (Node, Self) {
        let node = Node::trusted(delegate, "");
        let ops = Self::start(&node);
        (node, ops)
    }

    /// With lines added to its configuration.
    #[track_caller]
    pub fn with(node: &Node, extra: &str) -> Self {
        let ops = Self::stopped(node, extra);
        ops.spawn(ops.command());
        ops
    }

    /// Configured, and not started.
    pub fn stopped(node: &Node, extra: &str) -> Self {
        let directory = node.dir().subdir("ops");
        let daemon = Daemon::logging_to(&directory.join("log"));
        let killed = daemon.clone();
        let ops = Self {
            config: directory.join("crust_ops.toml"),
            clients: Clients::of(
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

    /// Where it listens, or would: where only root can change anything, as it demands.
    pub fn socket_on(node: &Node) -> PathBuf {
        node.handler().path().with_file_name("s")
    }

    /// Writes the configuration anew.
    pub fn reconfigure(&self, node: &Node, extra: &str) {
        let text = format!(
            "listen = {:?}\ncrust_listen = {:?}\nruntime = {:?}\n{extra}\n",
            self.socket(),
            self.crust_socket(),
            node.handler().path(),
        );
        fs::write(&self.config, text).expect("the configuration");
    }

    /// The daemon's command line.
    pub fn command(&self) -> Command {
        let mut command = Command::new(binary("crust_ops"));
        command.arg("--config").arg(&self.config);
        command
    }

    /// Starts it by this command and waits until it listens.
    #[track_caller]
    pub fn spawn(&self, command: Command) {
        let _ = fs::remove_file(self.socket());
        self.spawn_activated(command);
    }

    /// The same where somebody listens for it already.
    #[track_caller]
    pub fn spawn_activated(&self, command: Command) {
        self.daemon.spawn(command);
        wait_until("crust_ops to listen", DAEMON_TIMEOUT, || {
            assert!(self.daemon.is_running(), "it has ended: {}", self.log());
            std::os::unix::net::UnixStream::connect(self.socket()).is_ok()
        });
    }

    /// SIGKILL.
    pub fn kill(&self) {
        self.daemon.kill();
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        self.daemon.signal(signal);
    }

    /// Waits for its end.
    #[track_caller]
    pub fn wait(&self) -> ExitStatus {
        let mut ended = None;
        // Clients' connections have their part in that: they answer, and are closed.
        self.block_on(wait_until_async("crust_ops to end", DAEMON_TIMEOUT, || {
            ended = self.daemon.ended();
            ended.is_some()
        }));
        ended.expect("it has ended")
    }

    /// Its pid.
    pub fn pid(&self) -> i32 {
        self.daemon.pid()
    }

    /// What it logged.
    pub fn log(&self) -> String {
        self.daemon.log()
    }

    /// Its configuration.
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

/// A request to stage a device for a target path, and nothing further.
pub fn stage_request(target: &Path, device: &LoopDevice) -> RuntimeStageVolumeRequest {
    stage_request_of(target, device.path(), device.fstype())
}

/// The same for any device.
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
