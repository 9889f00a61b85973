//! The client of `crust_ops`, which defers mounts to the container runtime (KEP-2857, "Runtime API").

use std::path::{Path, PathBuf};
use std::time::Duration;

use crust_blockfs::fsgroup::FsGroupChangePolicy;
use crust_nfs::Share;
use crust_proto::v1::runtime_client::RuntimeClient;
use crust_proto::v1::{
    CapacityRange, RuntimeExpandVolumeRequest, RuntimeGetVolumeStatsRequest,
    RuntimeGetVolumeStatsResponse, RuntimeStageVolumeRequest, RuntimeUnstageVolumeRequest,
    VolumeGroupChangePolicy, VolumeType, volume_group_change_policy, volume_type,
};
use crust_serve::client::{self, CallFailure};
use crust_state::TargetPath;
use tokio::runtime::Handle;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use crate::capability::{FileSystem, MountCapability};
use crate::store::Publication;

/// The timeout of a call. kubelet waits two minutes for a CSI call, and an unstage can wait until the pod's mounts are
/// gone.
const CALL_TIMEOUT: Duration = Duration::from_secs(110);

/// The storage that the runtime mounts.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Backing<'a> {
    Device(&'a Path),
    Share(&'a Share),
}

type Client = RuntimeClient<Channel>;

/// A client of the `crust_ops` that listens on a socket. Each call connects anew: `crust_ops` can be restarted.
#[derive(Debug)]
pub(crate) struct Ops {
    socket: PathBuf,
    handle: Handle,
}

impl Ops {
    /// Returns a client whose calls block. They must not be made on the threads of the async runtime.
    pub(crate) fn new(socket: &Path, handle: Handle) -> Self {
        let socket = socket.to_owned();
        Self { socket, handle }
    }

    /// Calls `RuntimeStageVolume`.
    pub(crate) fn stage<F: FileSystem>(
        &self,
        target: &TargetPath,
        backing: Backing<'_>,
        mount: &MountCapability<F>,
        publication: &Publication<F>,
    ) -> Result<(), CallFailure> {
        let request = stage_request(target, backing, mount, publication);
        let stage =
            |mut client: Client, request| async move { client.runtime_stage_volume(request).await };
        self.call(request, stage).map(drop)
    }

    /// Calls `RuntimeUnstageVolume`.
    pub(crate) fn unstage(&self, target: &TargetPath) -> Result<(), CallFailure> {
        let request = RuntimeUnstageVolumeRequest {
            volume_target_path: text(target),
        };
        let unstage = |mut client: Client, request| async move {
            client.runtime_unstage_volume(request).await
        };
        self.call(request, unstage).map(drop)
    }

    /// Calls `RuntimeGetVolumeStats`.
    pub(crate) fn stats(
        &self,
        target: &TargetPath,
    ) -> Result<RuntimeGetVolumeStatsResponse, CallFailure> {
        let request = RuntimeGetVolumeStatsRequest {
            volume_target_path: text(target),
        };
        let stats = |mut client: Client, request| async move {
            client.runtime_get_volume_stats(request).await
        };
        self.call(request, stats)
    }

    /// Calls `RuntimeExpandVolume`. Returns the new size of the file system in bytes. Limits are in bytes; 0 means no
    /// limit.
    pub(crate) fn expand(
        &self,
        target: &TargetPath,
        min_bytes: i64,
        max_bytes: i64,
    ) -> Result<i64, CallFailure> {
        let request = RuntimeExpandVolumeRequest {
            volume_target_path: text(target),
            capacity_range: Some(CapacityRange {
                required_bytes: min_bytes,
                limit_bytes: max_bytes,
            }),
        };
        let expand = |mut client: Client, request| async move {
            client.runtime_expand_volume(request).await
        };
        Ok(self.call(request, expand)?.capacity_bytes)
    }

    fn call<C, A, F>(
        &self,
        request: C,
        method: impl FnOnce(Client, Request<C>) -> F,
    ) -> Result<A, CallFailure>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let method = |channel, request| method(Client::new(channel), request);
        let response = client::call(&self.socket, CALL_TIMEOUT, request, method);
        self.handle.block_on(response)
    }
}

fn stage_request<F: FileSystem>(
    target: &TargetPath,
    backing: Backing<'_>,
    mount: &MountCapability<F>,
    publication: &Publication<F>,
) -> RuntimeStageVolumeRequest {
    use volume_group_change_policy::Policy;
    let policy = mount.change_policy.map(|policy| VolumeGroupChangePolicy {
        policy: match policy {
            FsGroupChangePolicy::Always => Policy::Always,
            FsGroupChangePolicy::OnRootMismatch => Policy::OnRootMismatch,
        }
        .into(),
    });
    let (kind, backing) = match backing {
        Backing::Device(device) => (
            volume_type::Type::Block,
            device.to_string_lossy().into_owned(),
        ),
        Backing::Share(share) => (volume_type::Type::Network, share.to_string()),
    };
    RuntimeStageVolumeRequest {
        volume_type: Some(VolumeType {
            r#type: kind.into(),
        }),
        volume_target_path: text(target),
        volume_backing_path: backing,
        fs_type: mount.fstype.to_string(),
        mount_flags: mount.options.clone(),
        volume_supplemental_group: mount.group.map(|gid| gid.to_string()).unwrap_or_default(),
        volume_supplemental_group_change_policy: policy.filter(|_| mount.group.is_some()),
        readonly: publication.read_only || publication.usage.is_read_only(),
        access_mode: publication.usage.mode.to_string(),
        device_node: false,
    }
}

/// Returns the path as text. Nothing is lost, because target paths come from requests, which are UTF-8.
fn text(target: &TargetPath) -> String {
    target.as_path().to_string_lossy().into_owned()
}
