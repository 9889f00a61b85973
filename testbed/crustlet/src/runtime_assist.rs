//! A runtime handler's own interface for storage, where its `RuntimeClass` names one in `fsMgmtSocket`
//! (KEP-2857's earlier draft): what kubelet asks it once the driver has left a volume to it.

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

/// A publish applies fsGroup; it is given what a driver's would be.
const DEADLINE: Duration = Duration::from_secs(120);

/// Whoever listens on a handler's socket.
#[derive(Debug, Clone)]
pub(crate) struct RuntimeStorage {
    socket: PathBuf,
}

/// A runtime hasn't done what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RuntimeError {
    /// It says why, or doesn't answer.
    #[error("runtime at {}: {method}: {failure}", socket.display())]
    Call {
        socket: PathBuf,
        /// The call.
        method: &'static str,
        /// What it says.
        failure: CallFailure,
    },
    /// It can't be asked.
    #[error("fsGroup {0} is more than a runtime can be told; hint: a gid is at most 2147483647")]
    Group(i64),
}

impl RuntimeError {
    /// What the runtime says.
    pub(crate) const fn code(&self) -> Code {
        match self {
            Self::Call { failure, .. } => failure.code(),
            Self::Group(_) => Code::InvalidArgument,
        }
    }
}

impl RuntimeStorage {
    /// Whoever listens there by then.
    pub(crate) fn new(socket: &Path) -> Self {
        let socket = socket.to_owned();
        Self { socket }
    }

    /// What it can do, asked anew: it may have been replaced.
    pub(crate) async fn capabilities(&self) -> Result<RuntimeCapabilities, RuntimeError> {
        let asked = self
            .call(
                "RuntimeGetCapabilities",
                RuntimeGetCapabilitiesRequest {},
                |mut client, request| async move { client.runtime_get_capabilities(request).await },
            )
            .await?;
        Ok(asked.into())
    }

    /// What it can mount, for a driver to be told.
    pub(crate) async fn file_systems(&self) -> Result<Vec<String>, RuntimeError> {
        let asked = self
            .call(
                "RuntimeGetSupportedFileSystems",
                RuntimeGetSupportedFileSystemsRequest {},
                |mut client, request| async move {
                    client.runtime_get_supported_file_systems(request).await
                },
            )
            .await?;
        Ok(asked.file_systems)
    }

    /// Mounts what a driver has answered `NodePublishVolume` with in a sandbox that runs.
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

    /// How full a volume is and how it fares; `device` is the `source` of a driver's answer.
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

    /// Grows a volume's file system; its size then, in bytes. `device` is the `source` of a driver's answer.
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

    async fn call<C, A, F>(
        &self,
        method: &'static str,
        request: C,
        on: impl FnOnce(Client<Channel>, Request<C>) -> F,
    ) -> Result<A, RuntimeError>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let on = |channel, request| on(Client::new(channel), request);
        let answer = client::call(&self.socket, DEADLINE, request, on).await;
        answer.map_err(|failure| RuntimeError::Call {
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
    let gid = |group: i64| i32::try_from(group).map_err(|_| RuntimeError::Group(group));
    let fsgroup_gid = mount.fs_group.map(gid).transpose()?;
    let option = |(key, value): (&String, &String)| match value.as_str() {
        "" => key.clone(),
        value => format!("{key}={value}"),
    };
    let mut mount_options: Vec<String> = info.options.iter().map(option).collect();
    mount_options.sort_unstable();
    // Without a group there is nothing to apply a policy to.
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

/// The capabilities of a runtime, which is asked each time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RuntimeCapabilities(Vec<Rpc>);

impl RuntimeCapabilities {
    /// Returns whether the runtime has a capability.
    pub(crate) fn has(&self, capability: Rpc) -> bool {
        self.0.contains(&capability)
    }

    /// Returns a capability that the pod's volume needs after the mount and the runtime lacks: then the driver mounts
    /// the volume (the draft's story 2).
    pub(crate) fn lacks(&self, mount: &MountSpec) -> Option<&'static str> {
        let group = match mount.change_policy.as_deref() {
            _ if mount.fs_group.is_none() => None,
            Some("OnRootMismatch") => Some(Rpc::FsGroupChangePolicyRootMismatch),
            _ => Some(Rpc::FsGroupChangePolicyAlways),
        };
        let subpath = mount.has_subpath.then_some(Rpc::Subpath);
        let mut needed = [group, subpath].into_iter().flatten();
        let lacking = needed.find(|it| !self.has(*it));
        lacking.as_ref().map(Rpc::as_str_name)
    }
}

impl FromIterator<Rpc> for RuntimeCapabilities {
    fn from_iter<T: IntoIterator<Item = Rpc>>(capabilities: T) -> Self {
        Self(capabilities.into_iter().collect())
    }
}

/// Leaves out the capabilities that crustlet doesn't know.
impl From<RuntimeGetCapabilitiesResponse> for RuntimeCapabilities {
    fn from(response: RuntimeGetCapabilitiesResponse) -> Self {
        let types = response.capabilities.into_iter().filter_map(|it| it.r#type);
        let rpcs = types.filter_map(|it| match it {
            Type::Rpc(rpc) => Rpc::try_from(rpc.r#type).ok(),
        });
        rpcs.collect()
    }
}

#[cfg(test)]
mod tests;
