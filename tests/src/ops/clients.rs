//! Blocking clients of a `crust_ops`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crust_proto::runtime::v1alpha1::runtime_assisted_storage_management_client::RuntimeAssistedStorageManagementClient as StorageClient;
use crust_proto::v1::runtime_client::RuntimeClient;
use crust_proto::v1::{
    CapacityRange, RuntimeExpandVolumeRequest, RuntimeGetVolumeStatsRequest,
    RuntimeGetVolumeStatsResponse, RuntimeStageVolumeRequest, RuntimeUnstageVolumeRequest,
};
use tokio::runtime::{Builder, Runtime};
use tonic::transport::Channel;
use tonic::{Response, Status};

use crate::grpc;
use crate::node::utf8;

/// The timeout of one call.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// Clients of the daemon's two sockets.
#[derive(Debug)]
pub struct Clients {
    socket: PathBuf,
    crust_socket: PathBuf,
    runtime: Runtime,
}

impl Clients {
    /// Makes clients for a daemon's sockets without connecting them.
    pub fn new(socket: &Path, crust_socket: &Path) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build();
        Self {
            socket: socket.to_owned(),
            crust_socket: crust_socket.to_owned(),
            runtime: runtime.expect("a tokio runtime"),
        }
    }

    /// Returns the socket of `crust.v1.Runtime`.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Returns the socket of the CRUST interface.
    pub fn crust_socket(&self) -> &Path {
        &self.crust_socket
    }

    /// Returns a channel to one of the sockets, which connects when it is first used.
    pub fn channel(&self, socket: &Path) -> Channel {
        let _inside = self.runtime.enter();
        grpc::channel(socket, CALL_TIMEOUT)
    }

    /// Runs a future in the clients' tokio runtime.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// Makes a call of `crust.v1.Runtime`.
    pub fn call<T, F>(&self, work: impl FnOnce(RuntimeClient<Channel>) -> F) -> Result<T, Status>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let client = RuntimeClient::new(self.channel(&self.socket));
        grpc::into_result(self.block_on(work(client)))
    }

    /// Makes a call of the CRUST interface.
    pub fn crust<T, F>(&self, work: impl FnOnce(StorageClient<Channel>) -> F) -> Result<T, Status>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let client = StorageClient::new(self.channel(&self.crust_socket));
        grpc::into_result(self.block_on(work(client)))
    }

    pub fn stage(&self, request: RuntimeStageVolumeRequest) -> Result<(), Status> {
        self.call(|mut client| async move { client.runtime_stage_volume(request).await })?;
        Ok(())
    }

    pub fn unstage(&self, target: &Path) -> Result<(), Status> {
        let volume_target_path = utf8(target).to_owned();
        let request = RuntimeUnstageVolumeRequest { volume_target_path };
        self.call(|mut client| async move { client.runtime_unstage_volume(request).await })?;
        Ok(())
    }

    pub fn stats(&self, target: &Path) -> Result<RuntimeGetVolumeStatsResponse, Status> {
        let volume_target_path = utf8(target).to_owned();
        let request = RuntimeGetVolumeStatsRequest { volume_target_path };
        self.call(|mut client| async move { client.runtime_get_volume_stats(request).await })
    }

    /// Calls `RuntimeExpandVolume`. The sizes are bytes, and 0 is no limit.
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
