//! The client of a runtime handler's storage interface, whose socket a `RuntimeClass` names in `fsMgmtSocket`
//! (KEP-2857's earlier draft). kubelet calls it for volumes that the driver has left to the runtime.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crust_proto::csi::v1::FileSystemMountInfo;
use crust_proto::runtime::v1alpha1::RuntimeGetCapabilitiesResponse;
use crust_proto::runtime::v1alpha1::runtime_assisted_storage_management_client::RuntimeAssistedStorageManagementClient as Client;
use crust_proto::runtime::v1alpha1::runtime_capability::Type;
use crust_proto::runtime::v1alpha1::runtime_capability::rpc::Type as Rpc;
use crust_proto::runtime::v1alpha1::{
    RuntimeExpandVolumeRequest, RuntimeGetCapabilitiesRequest,
    RuntimeGetSupportedFileSystemsRequest, RuntimeGetVolumeStatsRequest,
    RuntimePublishVolumeRequest,
};
use crust_serve::client::{self, CallFailure};
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

use crate::volumes::spec::MountSpec;
use crate::volumes::stats::Stats;

/// The timeout of each call. Publishing may take long, because it applies fsGroup.
const CALL_TIMEOUT: Duration = Duration::from_secs(120);

/// The storage interface of a runtime handler. A connection is made for each call.
#[derive(Debug, Clone)]
pub(crate) struct RuntimeStorage {
    socket: PathBuf,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RuntimeError {
    /// The runtime refused the call, or didn't answer.
    #[error("runtime at {}: {method}: {failure}", socket.display())]
    Call {
        socket: PathBuf,
        method: &'static str,
        failure: CallFailure,
    },
    /// The group doesn't fit into the request's field.
    #[error("fsGroup {0} can't be passed to the runtime; hint: use a gid of at most 2147483647")]
    FsGroupTooLarge(i64),
}

impl RuntimeError {
    /// Returns the gRPC code of the error.
    pub(crate) const fn code(&self) -> Code {
        match self {
            Self::Call { failure, .. } => failure.code(),
            Self::FsGroupTooLarge(_) => Code::InvalidArgument,
        }
    }
}

impl RuntimeStorage {
    /// Creates a client for the runtime handler that listens on `socket`. The socket needn't exist yet.
    pub(crate) fn new(socket: &Path) -> Self {
        let socket = socket.to_owned();
        Self { socket }
    }

    pub(crate) async fn capabilities(&self) -> Result<RuntimeCapabilities, RuntimeError> {
        let response = self
            .call(
                "RuntimeGetCapabilities",
                RuntimeGetCapabilitiesRequest {},
                |mut client, request| async move { client.runtime_get_capabilities(request).await },
            )
            .await?;
        Ok(response.into())
    }

    /// Returns the file systems that the runtime can mount.
    pub(crate) async fn file_systems(&self) -> Result<Vec<String>, RuntimeError> {
        let response = self
            .call(
                "RuntimeGetSupportedFileSystems",
                RuntimeGetSupportedFileSystemsRequest {},
                |mut client, request| async move {
                    client.runtime_get_supported_file_systems(request).await
                },
            )
            .await?;
        Ok(response.file_systems)
    }

    /// Mounts a volume in a sandbox that is running. `info` is the driver's response to `NodePublishVolume`.
    pub(crate) async fn publish(
        &self,
        sandbox: &str,
        target: &Path,
        info: &FileSystemMountInfo,
        mount: &MountSpec,
    ) -> Result<(), RuntimeError> {
        let request = publish_request(sandbox, target, info, mount)?;
        self.call(
            "RuntimePublishVolume",
            request,
            |mut client, request| async move { client.runtime_publish_volume(request).await },
        )
        .await?;
        Ok(())
    }

    /// Returns the usage and the condition of a volume. `device` is the `source` in the driver's response.
    pub(crate) async fn stats(&self, sandbox: &str, device: &str) -> Result<Stats, RuntimeError> {
        let request = RuntimeGetVolumeStatsRequest {
            sandbox_id: sandbox.to_owned(),
            host_volume_id: device.to_owned(),
        };
        let stats = self
            .call(
                "RuntimeGetVolumeStats",
                request,
                |mut client, request| async move { client.runtime_get_volume_stats(request).await },
            )
            .await?;
        Ok(stats.into())
    }

    /// Expands the file system of a volume, and returns its size in bytes. `device` is the `source` in the driver's
    /// response.
    pub(crate) async fn expand(
        &self,
        sandbox: &str,
        device: &str,
        required_bytes: i64,
    ) -> Result<i64, RuntimeError> {
        let request = RuntimeExpandVolumeRequest {
            sandbox_id: sandbox.to_owned(),
            host_volume_id: device.to_owned(),
            required_bytes,
        };
        let expanded = self
            .call(
                "RuntimeExpandVolume",
                request,
                |mut client, request| async move { client.runtime_expand_volume(request).await },
            )
            .await?;
        Ok(expanded.capacity_bytes)
    }

    async fn call<Req, Resp, F>(
        &self,
        method: &'static str,
        request: Req,
        invoke: impl FnOnce(Client<Channel>, Request<Req>) -> F,
    ) -> Result<Resp, RuntimeError>
    where
        F: Future<Output = Result<Response<Resp>, Status>>,
    {
        let invoke = |channel, request| invoke(Client::new(channel), request);
        let response = client::call(&self.socket, CALL_TIMEOUT, request, invoke).await;
        response.map_err(|failure| RuntimeError::Call {
            socket: self.socket.clone(),
            method,
            failure,
        })
    }
}

fn publish_request(
    sandbox: &str,
    target: &Path,
    info: &FileSystemMountInfo,
    mount: &MountSpec,
) -> Result<RuntimePublishVolumeRequest, RuntimeError> {
    let gid = |group: i64| i32::try_from(group).map_err(|_| RuntimeError::FsGroupTooLarge(group));
    let fsgroup_gid = mount.fs_group.map(gid).transpose()?;
    let option = |(key, value): (&String, &String)| match value.as_str() {
        "" => key.clone(),
        value => format!("{key}={value}"),
    };
    let mut mount_options: Vec<String> = info.options.iter().map(option).collect();
    mount_options.sort_unstable();
    // Without a group, a policy has no effect.
    let policy = mount
        .change_policy
        .clone()
        .filter(|_| fsgroup_gid.is_some());
    Ok(RuntimePublishVolumeRequest {
        sandbox_id: sandbox.to_owned(),
        host_volume_id: info.source.clone(),
        host_target_path: target.to_string_lossy().into_owned(),
        file_system: info.r#type.clone(),
        mount_options,
        fsgroup_gid,
        fsgroup_policy: policy.unwrap_or_default(),
        readonly: mount.read_only || mount.volume.read_only,
    })
}

/// The capabilities of a runtime. They are requested each time, because the runtime may have been replaced.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RuntimeCapabilities(Vec<Rpc>);

impl RuntimeCapabilities {
    pub(crate) fn has(&self, capability: Rpc) -> bool {
        self.0.contains(&capability)
    }

    /// Returns the first capability that the runtime lacks, of those that the pod's volume needs after the mount. If it
    /// lacks one, the driver has to mount the volume (the draft's story 2).
    pub(crate) fn missing_capability(&self, mount: &MountSpec) -> Option<&'static str> {
        let group = match mount.change_policy.as_deref() {
            _ if mount.fs_group.is_none() => None,
            Some("OnRootMismatch") => Some(Rpc::FsGroupChangePolicyRootMismatch),
            _ => Some(Rpc::FsGroupChangePolicyAlways),
        };
        let subpath = mount.has_subpath.then_some(Rpc::Subpath);
        let mut needed = [group, subpath].into_iter().flatten();
        let missing = needed.find(|capability| !self.has(*capability));
        missing.as_ref().map(Rpc::as_str_name)
    }
}

impl FromIterator<Rpc> for RuntimeCapabilities {
    fn from_iter<T: IntoIterator<Item = Rpc>>(capabilities: T) -> Self {
        Self(capabilities.into_iter().collect())
    }
}

/// Skips capabilities that crustlet doesn't know.
impl From<RuntimeGetCapabilitiesResponse> for RuntimeCapabilities {
    fn from(response: RuntimeGetCapabilitiesResponse) -> Self {
        let types = response
            .capabilities
            .into_iter()
            .filter_map(|capability| capability.r#type);
        let rpcs = types.filter_map(|kind| match kind {
            Type::Rpc(rpc) => Rpc::try_from(rpc.r#type).ok(),
        });
        rpcs.collect()
    }
}

#[cfg(test)]
mod tests;
