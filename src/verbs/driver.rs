//! The verbs that a CSI driver calls: `stage`, `unstage`, `publish` (KEP-2857's earlier draft), `stats`, `resize` and
//! `capabilities`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::value_parser;
use crust_blockfs::fsgroup::FsGroupChangePolicy;
use crust_blockfs::kernel;
use crust_blockfs::resize::Limits;
use crust_blockfs::usage::{Amounts, Usage};
use crust_state::info::{AccessMode, VolumeType};
use crust_state::sandbox::SandboxRecord;
use crust_state::state_directory::StateError;
use crust_state::{Config, MountInfo, TargetPath};
use crust_volume::host_features::{any_can_grow, mountable_fstypes};
use crust_volume::sandbox::Sandbox;
use crust_volume::{Context, GrpcCode, SandboxRequest};
use serde_json::{Value, json};

use super::{Failure, target};

#[derive(Debug, clap::Args)]
pub(super) struct StageArgs {
    /// `target_path` of CSI `NodePublishVolume`
    target_path: OsString,
    #[command(flatten)]
    volume: VolumeArguments,
}

/// The arguments that describe a volume.
#[derive(Debug, clap::Args)]
pub(super) struct VolumeArguments {
    /// The block device, an absolute path
    #[arg(long)]
    device: PathBuf,
    /// The file system on it
    #[arg(long)]
    fstype: String,
    /// A mount option; may be repeated
    #[arg(long = "option", value_name = "OPTION")]
    options: Vec<String>,
    /// The group that owns the volume's files (a pod's fsGroup)
    #[arg(long, value_name = "GID", value_parser = clap::value_parser!(u32).range(..=0xffff_fffe))]
    fs_group: Option<u32>,
    /// When the group is applied: Always or `OnRootMismatch`; without a group it has no effect
    #[arg(long, value_name = "POLICY", default_value = "Always")]
    fs_group_change_policy: FsGroupChangePolicy,
    /// Give the pod a read-only mount of the volume (`--option ro`: every pod)
    #[arg(long)]
    read_only: bool,
    /// A CSI access mode, such as `SINGLE_NODE_SINGLE_WRITER`
    #[arg(long, value_name = "MODE")]
    access_mode: Option<AccessMode>,
    /// Give the workload the raw device as well
    #[arg(long)]
    device_node: bool,
}

impl VolumeArguments {
    pub(super) fn mount_info(self, target: &TargetPath) -> MountInfo {
        MountInfo {
            volume_type: VolumeType::Block,
            device: self.device,
            fstype: self.fstype,
            options: self.options,
            fs_group: self.fs_group,
            fs_group_change_policy: self.fs_group_change_policy.with_group(self.fs_group),
            target_path: Some(target.clone()),
            read_only: self.read_only,
            access_mode: self.access_mode,
            device_node: self.device_node,
            // The stage reads it from the device.
            disk_seq: None,
        }
    }
}

pub(super) fn stage(context: &Context<'_>, arguments: StageArgs) -> Result<Value, Failure> {
    let target = target(arguments.target_path)?;
    let info = arguments.volume.mount_info(&target);
    crust_volume::stage(context, &target, &info, None)?;
    Ok(json!({}))
}

pub(super) fn unstage(context: &Context<'_>, target: &TargetPath) -> Result<Value, Failure> {
    crust_volume::unstage(context, target)?;
    // Stale state of ended bundles; it can be removed the next time as well.
    if let Err(error) = crust_volume::sweep(context) {
        tracing::warn!("{error}");
    }
    Ok(json!({}))
}

#[derive(Debug, clap::Args)]
pub(super) struct PublishArgs {
    /// The path where the volume would have been mounted on the host
    target_path: OsString,
    /// The sandbox, as the CRI runtime names it
    #[arg(long, value_name = "ID")]
    sandbox: String,
    #[command(flatten)]
    volume: VolumeArguments,
}

pub(super) fn publish(
    context: &Context<'_>,
    arguments: PublishArgs,
    cli: &Path,
) -> Result<Value, Failure> {
    let target = target(arguments.target_path)?;
    let record = context.state.sandbox(&arguments.sandbox);
    let record = record.map_err(|error| match error {
        StateError::Id(error) => Failure::invalid(error),
        error => Failure::internal(&error),
    })?;
    let record = record.ok_or_else(|| no_place(&target, &arguments.sandbox))?;
    check_pod(&target, &record)?;
    let sandbox = Sandbox::open(&record).map_err(|error| Failure {
        code: GrpcCode::FailedPrecondition,
        message: format!("volume {}: {error}", target.volume_name()),
    })?;
    let host = SandboxRequest {
        sandbox: &sandbox,
        record: &record,
        cli,
        label: record.mount_label.as_deref(),
    };
    let info = arguments.volume.mount_info(&target);
    crust_volume::stage_and_mount(context, &target, &info, host)?;
    Ok(json!({}))
}

fn no_place(target: &TargetPath, sandbox: &str) -> Failure {
    Failure {
        code: GrpcCode::FailedPrecondition,
        message: format!(
            "volume {}: there is no record of sandbox {sandbox}: it was made without a place for \
             volumes, or has ended; hint: sandbox = \"always\" in runcrust's configuration gives \
             every new one a place",
            target.volume_name()
        ),
    }
}

/// Checks that a target path that names a pod names the sandbox's.
fn check_pod(target: &TargetPath, record: &SandboxRecord) -> Result<(), Failure> {
    match target.pod_uid() {
        Some(owner) if owner != &*record.pod_uid => Err(Failure {
            code: GrpcCode::InvalidArgument,
            message: format!(
                "volume {}: its target path is of pod {}, and sandbox {} was made for pod {}; \
                 hint: a pod can only have its own volumes",
                target.volume_name(),
                owner.display(),
                record.id,
                record.pod_uid
            ),
        }),
        _ => Ok(()),
    }
}

/// The largest number of bytes in CSI, which has signed integers.
const MAX: u64 = i64::MAX as u64;

#[derive(Debug, clap::Args)]
pub(super) struct ResizeArgs {
    /// `target_path` of CSI `NodePublishVolume`
    target_path: OsString,
    /// How large the volume has to be at least (`required_bytes`); 0 is no limit
    #[arg(allow_negative_numbers = true, value_parser = value_parser!(u64).range(..=MAX))]
    min_bytes: u64,
    /// How large it may be at most (`limit_bytes`); 0 is no limit
    #[arg(allow_negative_numbers = true, value_parser = value_parser!(u64).range(..=MAX))]
    max_bytes: u64,
}

pub(super) fn resize(context: &Context<'_>, arguments: ResizeArgs) -> Result<Value, Failure> {
    let target = target(arguments.target_path)?;
    let limits = Limits::new(arguments.min_bytes, arguments.max_bytes).map_err(Failure::invalid)?;
    let bytes = crust_volume::resize(context, &target, limits)?;
    Ok(json!({"capacity_bytes": bytes}))
}

pub(super) fn stats(context: &Context<'_>, target: &TargetPath) -> Result<Value, Failure> {
    let stats = crust_volume::stats(context, target)?;
    Ok(json!({
        "usage": stats.usage.map_or_else(Vec::new, entries),
        "volume_condition": {
            "abnormal": stats.condition.abnormal,
            "message": stats.condition.message,
        },
    }))
}

fn entries(usage: Usage) -> Vec<Value> {
    vec![entry("BYTES", usage.bytes), entry("INODES", usage.inodes)]
}

fn entry(unit: &str, amounts: Amounts) -> Value {
    json!({
        "unit": unit,
        "total": amounts.total,
        "used": amounts.used,
        "available": amounts.available,
    })
}

/// The values of `RuntimeCapability.RPC.Type` that hold wherever volumes can be mounted.
const ALWAYS: [&str; 4] = [
    "FS_GROUP_CHANGE_POLICY_ALWAYS",
    "FS_GROUP_CHANGE_POLICY_ROOT_MISMATCH",
    "SUBPATH",
    "VOLUME_STATS",
];

const RESIZE: &str = "VOLUME_RESIZE";
/// Holds only where an SELinux policy is enforced: elsewhere labels mean nothing.
const LABEL_ON_MOUNT: &str = "SELINUX_RELABEL_ON_MOUNT";

pub(super) fn capabilities(config: &Config) -> Result<Value, Failure> {
    let file_systems =
        mountable_fstypes(&config.fstypes).map_err(|error| Failure::internal(&error))?;
    let grows = any_can_grow(&file_systems).map_err(|error| Failure::internal(&error))?;
    let able = HostAbilities {
        mounts: !file_systems.is_empty(),
        grows,
        labels: kernel::enforces_selinux(),
    };
    let mut capabilities = able.capabilities();
    capabilities.retain(|name| !config.capabilities_off.iter().any(|off| off == name));
    Ok(json!({"capabilities": capabilities, "file_systems": file_systems}))
}

/// The abilities of this host.
struct HostAbilities {
    mounts: bool,
    grows: bool,
    labels: bool,
}

impl HostAbilities {
    fn capabilities(&self) -> Vec<&'static str> {
        // Without a file system there is nothing to be capable of.
        let always = ALWAYS.into_iter().filter(|_| self.mounts);
        let grows = self.grows.then_some(RESIZE);
        let labels = (self.labels && self.mounts).then_some(LABEL_ON_MOUNT);
        always.chain(labels).chain(grows).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_promised_only_where_a_policy_is_enforced() {
        for (mounts, labels, expected) in [
            (true, true, true),
            (true, false, false),
            (false, true, false),
        ] {
            let able = HostAbilities {
                mounts,
                labels,
                grows: false,
            };
            let promised = able.capabilities().contains(&LABEL_ON_MOUNT);
            assert_eq!(promised, expected, "{mounts} {labels}");
        }
    }
}
