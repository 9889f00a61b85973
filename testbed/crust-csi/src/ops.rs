//! The client of `crust_ops`, by which mounts are deferred (KEP-2857, "Runtime API").

use std::path::{Path, PathBuf};
use std::time::Duration;

use crust_blockfs::fsgroup::FsGroupChangePolicy;
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

use crate::capability::MountCapability;
use crate::store::Publication;

/// kubelet waits two minutes for a call of CSI's, and an unstage waits for the pod's mounts to go.
const DEADLINE: Duration = Duration::from_secs(110);

type Client = RuntimeClient<Channel>;

/// Whoever listens on the socket. Nothing is connected between calls: `crust_ops` may be restarted.
#[derive(Debug)]
pub(crate) struct Ops {
    socket: PathBuf,
    handle: Handle,
}

impl Ops {
    /// To be used from threads that may wait.
    pub(crate) fn new(socket: &Path, handle: Handle) -> Self {
        let socket = socket.to_owned();
        Self { socket, handle }
    }

    /// `RuntimeStageVolume`.
    pub(crate) fn stage(
        &self,
        target: &TargetPath,
        device: &Path,
        mount: &MountCapability,
        publication: &Publication,
    ) -> Result<(), CallFailure> {
        let request = stage_request(target, device, mount, publication);
        let stage =
            |mut client: Client, request| async move { client.runtime_stage_volume(request).await };
        self.call(request, stage).map(drop)
    }

    /// `RuntimeUnstageVolume`.
    pub(crate) fn unstage(&self, target: &TargetPath) -> Result<(), CallFailure> {
        let request = RuntimeUnstageVolumeRequest {
            volume_target_path: text(target),
        };
        let unstage = |mut client: Client, request| async move {
            client.runtime_unstage_volume(request).await
        };
        self.call(request, unstage).map(drop)
    }

    /// `RuntimeGetVolumeStats`.
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

    /// `RuntimeExpandVolume`; the file system's size then, in bytes.
    pub(crate) fn expand(
        &self,
        target: &TargetPath,
        least: i64,
        most: i64,
    ) -> Result<i64, CallFailure> {
        let request = RuntimeExpandVolumeRequest {
            volume_target_path: text(target),
            capacity_range: Some(CapacityRange {
                required_bytes: least,
                limit_bytes: most,
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
        let answer = client::call(&self.socket, DEADLINE, request, method);
        self.handle.block_on(answer)
    }
}

fn stage_request(
    target: &TargetPath,
    device: &Path,
    mount: &MountCapability,
    publication: &Publication,
) -> RuntimeStageVolumeRequest {
    use volume_group_change_policy::Policy;
    let policy = mount.change_policy.map(|policy| VolumeGroupChangePolicy {
        policy: match policy {
            FsGroupChangePolicy::Always => Policy::Always,
            FsGroupChangePolicy::OnRootMismatch => Policy::OnRootMismatch,
        }
        .into(),
    });
    RuntimeStageVolumeRequest {
        volume_type: Some(VolumeType {
            r#type: volume_type::Type::Block.into(),
        }),
        volume_target_path: text(target),
        volume_backing_path: device.to_string_lossy().into_owned(),
        fs_type: mount.fstype.to_string(),
        mount_flags: mount.options.clone(),
        volume_supplemental_group: mount.group.map(|gid| gid.to_string()).unwrap_or_default(),
        volume_supplemental_group_change_policy: policy.filter(|_| mount.group.is_some()),
        readonly: publication.read_only || publication.usage.is_read_only(),
        access_mode: publication.usage.mode.to_string(),
        device_node: false,
    }
}

/// Returns the text of a target path, which is a request's.
fn text(target: &TargetPath) -> String {
    target.as_path().to_string_lossy().into_owned()
}
