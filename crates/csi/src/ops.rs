//! The client of `crust_ops`, by which mounts are deferred (KEP-2857, "Runtime API").

use std::path::{Path, PathBuf};
use std::time::Duration;

use crust_proto::v1::runtime_client::RuntimeClient;
use crust_proto::v1::{
    CapacityRange, RuntimeExpandVolumeRequest, RuntimeGetVolumeStatsRequest,
    RuntimeGetVolumeStatsResponse, RuntimeStageVolumeRequest, RuntimeUnstageVolumeRequest,
    VolumeGroupChangePolicy, VolumeType, volume_group_change_policy, volume_type,
};
use crust_state::{FsGroupChangePolicy, TargetPath};
use tokio::runtime::Handle;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

use crate::store::Publication;
use crate::usage::Mount;

/// kubelet waits two minutes for a call of CSI's, and an unstage waits for the pod's mounts to go.
const DEADLINE: Duration = Duration::from_secs(110);

/// Whoever listens on the socket. Nothing is connected between calls: `crust_ops` may be restarted.
#[derive(Debug)]
pub(crate) struct Ops {
    socket: PathBuf,
    handle: Handle,
}

/// What a client's call comes back with.
type Answer<T> = Result<T, Status>;

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
        mount: &Mount,
        publication: &Publication,
    ) -> Answer<()> {
        let request = stage_request(target, device, mount, publication);
        self.call(|mut client| async move { client.runtime_stage_volume(request).await })?;
        Ok(())
    }

    /// `RuntimeUnstageVolume`.
    pub(crate) fn unstage(&self, target: &TargetPath) -> Answer<()> {
        let request = RuntimeUnstageVolumeRequest {
            volume_target_path: text(target),
        };
        self.call(|mut client| async move { client.runtime_unstage_volume(request).await })?;
        Ok(())
    }

    /// `RuntimeGetVolumeStats`.
    pub(crate) fn stats(&self, target: &TargetPath) -> Answer<RuntimeGetVolumeStatsResponse> {
        let request = RuntimeGetVolumeStatsRequest {
            volume_target_path: text(target),
        };
        self.call(|mut client| async move { client.runtime_get_volume_stats(request).await })
    }

    /// `RuntimeExpandVolume`; the file system's size then, in bytes.
    pub(crate) fn expand(&self, target: &TargetPath, least: i64, most: i64) -> Answer<i64> {
        let request = RuntimeExpandVolumeRequest {
            volume_target_path: text(target),
            capacity_range: Some(CapacityRange {
                required_bytes: least,
                limit_bytes: most,
            }),
        };
        let answer =
            self.call(|mut client| async move { client.runtime_expand_volume(request).await });
        Ok(answer?.capacity_bytes)
    }

    fn call<T, F>(&self, work: impl FnOnce(RuntimeClient<Channel>) -> F) -> Answer<T>
    where
        F: Future<Output = Answer<Response<T>>>,
    {
        self.handle.block_on(async {
            let channel = self.connect().await?;
            Ok(work(RuntimeClient::new(channel)).await?.into_inner())
        })
    }

    async fn connect(&self) -> Answer<Channel> {
        let socket = self.socket.display();
        let unavailable = |error: tonic::transport::Error| {
            Status::unavailable(format!(
                "{socket}: {}; hint: is crust_ops running, and its socket's directory mounted in this container?",
                crust_state::sentence(&error)
            ))
        };
        let endpoint = Endpoint::from_shared(format!("unix:{socket}"));
        let endpoint = endpoint.map_err(unavailable)?;
        let connected = endpoint.timeout(DEADLINE).connect().await;
        connected.map_err(unavailable)
    }
}

fn stage_request(
    target: &TargetPath,
    device: &Path,
    mount: &Mount,
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

/// Of a request's path, which was text.
fn text(target: &TargetPath) -> String {
    target.as_path().to_string_lossy().into_owned()
}
