//! `crust.v1.Runtime` (KEP-2857, "Runtime API").

use std::path::PathBuf;

use crust_blockfs::fsgroup::FsGroupChangePolicy;
use crust_proto::v1::runtime_server::Runtime;
use crust_proto::v1::volume_group_change_policy::Policy as GroupPolicy;
use crust_proto::v1::volume_type::Type;
use crust_proto::v1::{
    CapacityRange, RuntimeExpandVolumeRequest, RuntimeExpandVolumeResponse,
    RuntimeGetVolumeStatsRequest, RuntimeGetVolumeStatsResponse, RuntimeStageVolumeRequest,
    RuntimeStageVolumeResponse, RuntimeUnstageVolumeRequest, RuntimeUnstageVolumeResponse,
};
use crust_state::info::VolumeType;
use crust_state::{MountInfo, TargetPath};
use tonic::{Request, Response, Status};

use super::{STAGE_TIMEOUT, ServiceState, bytes, required, required_path, target_path};
use crate::call_error::CallError;
use crate::cli::{Capacity, CliCall, VolumeStats};

#[derive(Debug)]
pub(crate) struct RuntimeService(pub(crate) ServiceState);

#[tonic::async_trait]
impl Runtime for RuntimeService {
    async fn runtime_stage_volume(
        &self,
        request: Request<RuntimeStageVolumeRequest>,
    ) -> Result<Response<RuntimeStageVolumeResponse>, Status> {
        let request = request.into_inner();
        let path = request.volume_target_path.clone();
        let staged = async {
            let (target, info) = mount_info(request)?;
            let volume_lock = self
                .0
                .lock_volume(&self.0.change_locks, &target, STAGE_TIMEOUT)
                .await?;
            self.0
                .node()
                .stage(volume_lock, target, info, self.0.staging_limits())
                .await
        };
        respond(&path, staged.await, RuntimeStageVolumeResponse {})
    }

    async fn runtime_unstage_volume(
        &self,
        request: Request<RuntimeUnstageVolumeRequest>,
    ) -> Result<Response<RuntimeUnstageVolumeResponse>, Status> {
        let path = request.into_inner().volume_target_path;
        let unstaged = async {
            let target = target_path("volume_target_path", &path)?;
            let limit = self.0.unstage_timeout();
            let volume_lock = self
                .0
                .lock_volume(&self.0.change_locks, &target, limit)
                .await?;
            self.0.node().unstage(volume_lock, target, limit).await
        };
        respond(&path, unstaged.await, RuntimeUnstageVolumeResponse {})
    }

    async fn runtime_get_volume_stats(
        &self,
        request: Request<RuntimeGetVolumeStatsRequest>,
    ) -> Result<Response<RuntimeGetVolumeStatsResponse>, Status> {
        let path = request.into_inner().volume_target_path;
        let stats = async {
            self.0
                .stats(target_path("volume_target_path", &path)?)
                .await
        };
        let stats = stats
            .await
            .map_err(|error| error.into_status(Some(&path)))?;
        Ok(Response::new(stats_response(stats)))
    }

    async fn runtime_expand_volume(
        &self,
        request: Request<RuntimeExpandVolumeRequest>,
    ) -> Result<Response<RuntimeExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        let path = request.volume_target_path;
        let range = request.capacity_range.unwrap_or(CapacityRange {
            required_bytes: 0,
            limit_bytes: 0,
        });
        let expanded = async {
            let target = target_path("volume_target_path", &path)?;
            let min_bytes = bytes("capacity_range.required_bytes", range.required_bytes)?;
            let max_bytes = bytes("capacity_range.limit_bytes", range.limit_bytes)?;
            self.0.expand(target, min_bytes, max_bytes).await
        };
        let capacity = expanded
            .await
            .map_err(|error| error.into_status(Some(&path)))?;
        Ok(Response::new(RuntimeExpandVolumeResponse {
            capacity_bytes: capacity.capacity_bytes,
        }))
    }
}

impl ServiceState {
    /// Asks the runtime that has the volume mounted for its stats.
    pub(super) async fn stats(&self, target: TargetPath) -> Result<VolumeStats, CallError> {
        let volume = target.volume_name();
        let cli = self.node().runtime_cli(target.clone()).await?;
        let cli = cli.ok_or_else(|| CallError::NotInUse(volume.clone()))?;
        // Doesn't wait for calls that change the volume, because growing may take minutes.
        let volume_lock = self
            .lock_volume(&self.query_locks, &target, self.cli_timeout())
            .await?;
        let call = CliCall {
            program: &cli,
            arguments: &["stats".into(), target.as_path().into()],
            runs_to_completion: false,
        };
        let stats = self.ask(call, None, Some(volume_lock)).await;
        stats.map_err(CallError::cli(volume))
    }

    /// Lets the runtime that has the volume mounted grow it to between `min_bytes` and `max_bytes`; 0 means no limit.
    ///
    /// If no runtime has it mounted, the configured runtime records the growth for the next mount, because kubelet may
    /// expand a volume after its publish and before the sandbox is created, and doesn't retry.
    pub(super) async fn expand(
        &self,
        target: TargetPath,
        min_bytes: u64,
        max_bytes: u64,
    ) -> Result<Capacity, CallError> {
        let volume = target.volume_name();
        let volume_lock = self.lock_volume(&self.change_locks, &target, self.cli_timeout());
        let volume_lock = volume_lock.await?;
        let cli = self.node().runtime_cli(target.clone()).await?;
        let cli = cli.unwrap_or_else(|| self.runtime());
        let call = CliCall {
            program: &cli,
            arguments: &[
                "resize".into(),
                target.as_path().into(),
                min_bytes.to_string().into(),
                max_bytes.to_string().into(),
            ],
            runs_to_completion: false,
        };
        let capacity = self.ask(call, None, Some(volume_lock)).await;
        capacity.map_err(CallError::cli(volume))
    }
}

fn respond<T>(
    volume: &str,
    result: Result<(), CallError>,
    response: T,
) -> Result<Response<T>, Status> {
    result.map_err(|error| error.into_status(Some(volume)))?;
    Ok(Response::new(response))
}

/// Returns the volume that a request stages. The stage checks the other fields.
fn mount_info(request: RuntimeStageVolumeRequest) -> Result<(TargetPath, MountInfo), CallError> {
    let volume_type = request.volume_type.unwrap_or_default();
    let volume_type = match volume_type.r#type() {
        Type::Block => VolumeType::Block,
        Type::Network => VolumeType::Network,
        Type::Unknown => return Err(CallError::field("volume_type.type", "it is required")),
    };
    let target = target_path("volume_target_path", &request.volume_target_path)?;
    let policy = request.volume_supplemental_group_change_policy;
    let policy = policy.unwrap_or_default().policy;
    let policy = match GroupPolicy::try_from(policy) {
        Ok(GroupPolicy::OnRootMismatch) => FsGroupChangePolicy::OnRootMismatch,
        Ok(GroupPolicy::Always | GroupPolicy::Unknown) => FsGroupChangePolicy::Always,
        // A policy of a later version of the interface must not be replaced by another policy.
        Err(_) => {
            let field = "volume_supplemental_group_change_policy.policy";
            return Err(CallError::field(
                field,
                format!("{policy} isn't a known policy"),
            ));
        }
    };
    let group = match request.volume_supplemental_group.as_str() {
        "" => None,
        gid => Some(parse_gid(gid)?),
    };
    let access_mode = match request.access_mode.as_str() {
        "" => None,
        mode => Some(
            mode.parse()
                .map_err(|error| CallError::field("access_mode", error))?,
        ),
    };
    let info = MountInfo {
        volume_type,
        device: PathBuf::from(required_path(
            "volume_backing_path",
            request.volume_backing_path,
        )?),
        fstype: required("fs_type", request.fs_type)?,
        options: request.mount_flags,
        fs_group: group,
        fs_group_change_policy: policy.with_group(group),
        target_path: Some(target.clone()),
        read_only: request.readonly,
        access_mode,
        device_node: request.device_node,
        // The stage sets the sequence number.
        disk_seq: None,
    };
    Ok((target, info))
}

/// Parses a gid of decimal digits. The largest number isn't a gid, because it means "no change" in chown(2).
fn parse_gid(text: &str) -> Result<u32, CallError> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let gid = text.parse().ok().filter(|gid| digits && *gid != u32::MAX);
    gid.ok_or_else(|| {
        CallError::field(
            "volume_supplemental_group",
            format!("{text:?} isn't a gid in decimal"),
        )
    })
}

stats_response!(crust_proto::v1);

#[cfg(test)]
mod tests {
    use super::*;
    use crust_proto::v1::{VolumeGroupChangePolicy, VolumeType as TypeMessage};

    fn request() -> RuntimeStageVolumeRequest {
        RuntimeStageVolumeRequest {
            volume_type: Some(TypeMessage {
                r#type: Type::Block.into(),
            }),
            volume_target_path: "/k/pods/u/volumes/kubernetes.io~csi/pv-1/mount/".into(),
            volume_backing_path: "/dev/sdf".into(),
            fs_type: "ext4".into(),
            ..RuntimeStageVolumeRequest::default()
        }
    }

    fn staged(change: impl FnOnce(&mut RuntimeStageVolumeRequest)) -> Result<MountInfo, String> {
        let mut request = request();
        change(&mut request);
        mount_info(request)
            .map(|(_, info)| info)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_fields_become_the_metadata() {
        let policy = |policy: GroupPolicy| {
            Some(VolumeGroupChangePolicy {
                policy: policy.into(),
            })
        };
        let info = staged(|_| {}).unwrap();
        assert_eq!(
            (info.fs_group, info.read_only, info.access_mode),
            (None, false, None)
        );
        let info = staged(|it| {
            it.volume_supplemental_group = "0".into();
            it.volume_supplemental_group_change_policy = policy(GroupPolicy::OnRootMismatch);
            it.mount_flags = vec!["noatime".into()];
            it.access_mode = "SINGLE_NODE_SINGLE_WRITER".into();
            it.readonly = true;
        });
        let info = info.unwrap();
        assert_eq!(info.fs_group, Some(0));
        assert_eq!(
            info.fs_group_change_policy,
            FsGroupChangePolicy::OnRootMismatch
        );
        assert!(info.read_only && info.options == ["noatime"]);
        for unset in [
            None,
            policy(GroupPolicy::Unknown),
            policy(GroupPolicy::Always),
        ] {
            let info = staged(|it| it.volume_supplemental_group_change_policy = unset).unwrap();
            assert_eq!(info.fs_group_change_policy, FsGroupChangePolicy::Always);
        }
        let without_group = |policy_of| {
            staged(|it| it.volume_supplemental_group_change_policy = policy(policy_of)).unwrap()
        };
        assert_eq!(
            without_group(GroupPolicy::OnRootMismatch),
            without_group(GroupPolicy::Always),
            "a policy without a group means nothing"
        );
    }

    #[test]
    fn an_invalid_field_is_named() {
        type Change = fn(&mut RuntimeStageVolumeRequest);
        let cases: [(Change, &str); 9] = [
            (
                |it| it.volume_type = None,
                "volume_type.type: it is required",
            ),
            (
                |it| it.volume_target_path.clear(),
                "volume_target_path: it is required",
            ),
            (
                |it| it.volume_target_path = "a".into(),
                "volume_target_path: ",
            ),
            (
                |it| it.volume_target_path = "/a/../b".into(),
                "volume_target_path: ",
            ),
            (
                |it| it.volume_backing_path.clear(),
                "volume_backing_path: it is required",
            ),
            (|it| it.fs_type.clear(), "fs_type: it is required"),
            (
                |it| it.volume_supplemental_group = "staff".into(),
                "volume_supplemental_group: \"staff\"",
            ),
            (
                |it| it.volume_supplemental_group = "4294967295".into(),
                "volume_supplemental_group: ",
            ),
            (|it| it.access_mode = "RWX".into(), "access_mode: "),
        ];
        for (change, expected) in cases {
            let error = staged(change).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
        for gid in ["+1", "-1", " 1", "1.0", "0x1", "99999999999"] {
            assert!(
                staged(|it| it.volume_supplemental_group = gid.into()).is_err(),
                "{gid}"
            );
        }
    }
}
