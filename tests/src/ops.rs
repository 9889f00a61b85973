//! A `crust_ops` of the test's own, and blocking clients for it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use crust_proto::runtime::v1alpha1::runtime_assisted_storage_management_client::RuntimeAssistedStorageManagementClient as StorageClient;
use crust_proto::v1::runtime_client::RuntimeClient;
use crust_proto::v1::{
    CapacityRange, RuntimeExpandVolumeRequest, RuntimeGetVolumeStatsRequest,
    RuntimeGetVolumeStatsResponse, RuntimeStageVolumeRequest, RuntimeUnstageVolumeRequest,
    VolumeType, volume_type,
};
use nix::sys::signal::Signal;
use tokio::runtime::{Builder, Runtime};
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

use crate::cleanup::Cleanup;
use crate::daemon::Daemon;
use crate::node::utf8;
use crate::wait::on_this_machine;
use crate::{LoopDevice, Node, binary, until, wait_until};

/// For one call.
const DEADLINE: Duration = Duration::from_secs(60);

/// How long the daemon may take to start or end.
const PATIENCE: Duration = Duration::from_secs(30);

/// The daemon, for the handler of a [`Node::trusted`]. Dropped, it is killed.
#[derive(Debug)]
pub struct Ops {
    daemon: Daemon,
    config: PathBuf,
    socket: PathBuf,
    crust_socket: PathBuf,
    runtime: Runtime,
    _cleanup: Cleanup,
}

impl Ops {
    /// Started with its defaults, but for where things are.
    #[track_caller]
    pub fn start(node: &Node) -> Self {
        Self::with(node, "")
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
        let runtime = Builder::new_current_thread().enable_all().build();
        let ops = Self {
            config: directory.join("crust_ops.toml"),
            // Where only root can change anything, as crust_ops demands.
            socket: node.handler().path().with_file_name("s"),
            crust_socket: node.handler().path().with_file_name("c"),
            runtime: runtime.expect("a tokio runtime"),
            _cleanup: Cleanup::register(move || {
                killed.kill();
                Vec::new()
            }),
            daemon,
        };
        ops.reconfigure(node, extra);
        ops
    }

    /// Writes the configuration anew.
    pub fn reconfigure(&self, node: &Node, extra: &str) {
        let text = format!(
            "listen = {:?}\ncrust_listen = {:?}\nruntime = {:?}\n{extra}\n",
            self.socket,
            self.crust_socket,
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
        let _ = fs::remove_file(&self.socket);
        self.spawn_activated(command);
    }

    /// The same where somebody listens for it already.
    #[track_caller]
    pub fn spawn_activated(&self, command: Command) {
        self.daemon.spawn(command);
        wait_until("crust_ops to listen", PATIENCE, || {
            assert!(self.daemon.is_running(), "it has ended: {}", self.log());
            std::os::unix::net::UnixStream::connect(&self.socket).is_ok()
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
        self.block_on(until("crust_ops to end", PATIENCE, || {
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

    /// The socket of `crust.v1.Runtime`.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The socket of the CRUST interface.
    pub fn crust_socket(&self) -> &Path {
        &self.crust_socket
    }

    /// A channel to one of the sockets, connected when it is first used.
    pub fn channel(&self, socket: &Path) -> Channel {
        let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display()));
        let endpoint = endpoint
            .expect("a socket's path")
            .timeout(on_this_machine(DEADLINE));
        let _inside = self.runtime.enter();
        endpoint.connect_lazy()
    }

    /// Runs a client's future.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// A call of `crust.v1.Runtime`.
    pub fn call<T, F>(&self, work: impl FnOnce(RuntimeClient<Channel>) -> F) -> Result<T, Status>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let client = RuntimeClient::new(self.channel(&self.socket));
        Ok(self.block_on(work(client))?.into_inner())
    }

    /// A call of the CRUST interface.
    pub fn crust<T, F>(&self, work: impl FnOnce(StorageClient<Channel>) -> F) -> Result<T, Status>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let client = StorageClient::new(self.channel(&self.crust_socket));
        Ok(self.block_on(work(client))?.into_inner())
    }

    /// `RuntimeStageVolume`.
    pub fn stage(&self, request: RuntimeStageVolumeRequest) -> Result<(), Status> {
        self.call(|mut client| async move { client.runtime_stage_volume(request).await })?;
        Ok(())
    }

    /// `RuntimeUnstageVolume`.
    pub fn unstage(&self, target: &Path) -> Result<(), Status> {
        let volume_target_path = utf8(target).to_owned();
        let request = RuntimeUnstageVolumeRequest { volume_target_path };
        self.call(|mut client| async move { client.runtime_unstage_volume(request).await })?;
        Ok(())
    }

    /// `RuntimeGetVolumeStats`.
    pub fn stats(&self, target: &Path) -> Result<RuntimeGetVolumeStatsResponse, Status> {
        let volume_target_path = utf8(target).to_owned();
        let request = RuntimeGetVolumeStatsRequest { volume_target_path };
        self.call(|mut client| async move { client.runtime_get_volume_stats(request).await })
    }

    /// `RuntimeExpandVolume`; in bytes, 0 is no limit.
    pub fn expand(&self, target: &Path, least: i64, most: i64) -> Result<i64, Status> {
        let request = RuntimeExpandVolumeRequest {
            volume_target_path: utf8(target).to_owned(),
            capacity_range: Some(CapacityRange {
                required_bytes: least,
                limit_bytes: most,
            }),
        };
        let call =
            self.call(|mut client| async move { client.runtime_expand_volume(request).await });
        Ok(call?.capacity_bytes)
    }
}

/// A request to stage a device for a target path, and nothing further.
pub fn stage_request(target: &Path, device: &LoopDevice) -> RuntimeStageVolumeRequest {
    RuntimeStageVolumeRequest {
        volume_type: Some(VolumeType {
            r#type: volume_type::Type::Block.into(),
        }),
        volume_target_path: utf8(target).to_owned(),
        volume_backing_path: utf8(device.path()).to_owned(),
        fs_type: device.fstype().to_owned(),
        ..RuntimeStageVolumeRequest::default()
    }
}
