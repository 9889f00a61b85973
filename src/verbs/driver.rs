//! The subcommands that a CSI driver calls: `stage`, `unstage`, `publish` (an earlier draft of KEP-2857), `stats`,
//! `resize` and `capabilities`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::value_parser;
use crust_blockfs::fsgroup::FsGroupChangePolicy;
use crust_blockfs::kernel;
use crust_blockfs::resize::SizeLimits;
use crust_blockfs::usage::{ResourceUsage, Usage};
use crust_state::info::{AccessMode, VolumeType};
use crust_state::sandbox::SandboxRecord;
use crust_state::state_directory::StateError;
use crust_state::{Config, MountInfo, TargetPath};
use crust_volume::host_features::{any_can_grow, mountable_fstypes};
use crust_volume::sandbox::Sandbox;
use crust_volume::{Context, GrpcCode, SandboxRequest, VolumeError};
use serde_json::{Value, json};

use super::{Failure, report_failure, target};

#[allow(
    clippy::doc_markdown,
    reason = "clap prints the comments as help, without markup"
)]
#[derive(Debug, clap::Args)]
pub(super) struct StageArgs {
    /// target_path of CSI NodePublishVolume
    target_path: OsString,
    #[command(flatten)]
    volume: VolumeArguments,
}

/// The arguments that describe a volume.
#[allow(
    clippy::doc_markdown,
    reason = "clap prints the comments as help, without markup"
)]
#[derive(Debug, clap::Args)]
pub(super) struct VolumeArguments {
    /// Absolute path of the block device, or the share of a file server (SERVER:/PATH)
    #[arg(long)]
    device: PathBuf,
    /// File system, such as ext4 on a device, or nfs4 for a share
    #[arg(long)]
    fstype: String,
    /// Mount option; may be given several times
    #[arg(long = "option", value_name = "OPTION")]
    options: Vec<String>,
    /// Group that owns the volume's files (the pod's fsGroup)
    #[arg(long, value_name = "GID", value_parser = clap::value_parser!(u32).range(..=0xffff_fffe))]
    fs_group: Option<u32>,
    /// When the group is applied: Always or OnRootMismatch; has no effect without --fs-group
    #[arg(long, value_name = "POLICY", default_value = "Always")]
    fs_group_change_policy: FsGroupChangePolicy,
    /// Give this pod a read-only mount of the volume (use --option ro for every pod)
    #[arg(long)]
    read_only: bool,
    /// CSI access mode, such as SINGLE_NODE_SINGLE_WRITER
    #[arg(long, value_name = "MODE")]
    access_mode: Option<AccessMode>,
    /// Give the workload the raw device, too
    #[arg(long)]
    device_node: bool,
}

impl VolumeArguments {
    pub(super) fn mount_info(self, target: &TargetPath) -> MountInfo {
        MountInfo {
            volume_type: VolumeType::from_fstype(&self.fstype),
            device: self.device,
            fstype: self.fstype,
            options: self.options,
            fs_group: self.fs_group,
            fs_group_change_policy: self.fs_group_change_policy.with_group(self.fs_group),
            target_path: Some(target.clone()),
            read_only: self.read_only,
            access_mode: self.access_mode,
            device_node: self.device_node,
            // Staging reads it from the device.
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
    // A failure to remove stale records doesn't matter: the next sweep retries.
    if let Err(error) = crust_volume::sweep(context) {
        tracing::warn!("{error}");
    }
    Ok(json!({}))
}

#[derive(Debug, clap::Args)]
pub(super) struct PublishArgs {
    /// Path where the volume would have been mounted on the host
    target_path: OsString,
    /// Id of the sandbox in the CRI runtime
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
    let record = record.ok_or_else(|| no_sandbox_record(&target, &arguments.sandbox))?;
    check_pod(&target, &record)?;
    let sandbox = Sandbox::open(&record).map_err(|error| Failure {
        code: GrpcCode::FailedPrecondition,
        message: format!("volume {}: {error}", target.volume_name()),
    })?;
    let request = SandboxRequest {
        sandbox: &sandbox,
        record: &record,
        cli,
        label: record.mount_label.as_deref(),
    };
    let info = arguments.volume.mount_info(&target);
    crust_volume::stage_and_mount(context, &target, &info, request, report_timeout)?;
    Ok(json!({}))
}

fn report_timeout(error: VolumeError) -> i32 {
    report_failure(&error.into()).into()
}

fn no_sandbox_record(target: &TargetPath, sandbox: &str) -> Failure {
    Failure {
        code: GrpcCode::FailedPrecondition,
        message: format!(
            "volume {}: there is no record of sandbox {sandbox}: it was created without a directory for \
             volumes, or has ended; hint: set sandbox = \"always\" in runcrust's configuration, and \
             recreate the pod",
            target.volume_name()
        ),
    }
}

/// Checks that the pod in a target path, if it has one, is the sandbox's pod.
fn check_pod(target: &TargetPath, record: &SandboxRecord) -> Result<(), Failure> {
    match target.pod_uid() {
        Some(owner) if owner != &*record.pod_uid => Err(Failure {
            code: GrpcCode::InvalidArgument,
            message: format!(
                "volume {}: its target path belongs to pod {}, but sandbox {} was created for pod {}; \
                 hint: use a volume of this pod; if the target path was written by hand, correct it",
                target.volume_name(),
                owner.display(),
                record.id,
                record.pod_uid
            ),
        }),
        _ => Ok(()),
    }
}

/// The largest number of bytes in CSI, whose integers are signed.
const MAX_BYTES: u64 = i64::MAX as u64;

#[allow(
    clippy::doc_markdown,
    reason = "clap prints the comments as help, without markup"
)]
#[derive(Debug, clap::Args)]
pub(super) struct ResizeArgs {
    /// target_path of CSI NodePublishVolume
    target_path: OsString,
    /// Minimum size of the volume in bytes (required_bytes); 0 for no minimum
    #[arg(allow_negative_numbers = true, value_parser = value_parser!(u64).range(..=MAX_BYTES))]
    min_bytes: u64,
    /// Maximum size of the volume in bytes (limit_bytes); 0 for no maximum
    #[arg(allow_negative_numbers = true, value_parser = value_parser!(u64).range(..=MAX_BYTES))]
    max_bytes: u64,
}

pub(super) fn resize(context: &Context<'_>, arguments: ResizeArgs) -> Result<Value, Failure> {
    let target = target(arguments.target_path)?;
    let limits =
        SizeLimits::new(arguments.min_bytes, arguments.max_bytes).map_err(Failure::invalid)?;
    let bytes = crust_volume::resize(context, &target, limits)?;
    Ok(json!({"capacity_bytes": bytes}))
}

pub(super) fn stats(context: &Context<'_>, target: &TargetPath) -> Result<Value, Failure> {
    let stats = crust_volume::stats(context, target)?;
    Ok(json!({
        "usage": stats.usage.map_or_else(Vec::new, usage_entries),
        "volume_condition": {
            "abnormal": stats.condition.abnormal,
            "message": stats.condition.message,
        },
    }))
}

fn usage_entries(usage: Usage) -> Vec<Value> {
    let bytes = usage_entry("BYTES", usage.bytes);
    // btrfs, and some file servers, have no number of inodes.
    let inodes = (usage.inodes.total > 0).then(|| usage_entry("INODES", usage.inodes));
    [bytes].into_iter().chain(inodes).collect()
}

fn usage_entry(unit: &str, amounts: ResourceUsage) -> Value {
    json!({
        "unit": unit,
        "total": amounts.total,
        "used": amounts.used,
        "available": amounts.available,
    })
}

/// The values of `RuntimeCapability.RPC.Type` that every host has on which volumes can be mounted.
const BASE_CAPABILITIES: [&str; 4] = [
    "FS_GROUP_CHANGE_POLICY_ALWAYS",
    "FS_GROUP_CHANGE_POLICY_ROOT_MISMATCH",
    "SUBPATH",
    "VOLUME_STATS",
];

const RESIZE: &str = "VOLUME_RESIZE";
/// Only hosts that enforce an SELinux policy have this capability: without a policy, labels have no effect.
const LABEL_ON_MOUNT: &str = "SELINUX_RELABEL_ON_MOUNT";

pub(super) fn capabilities(config: &Config) -> Result<Value, Failure> {
    let file_systems =
        mountable_fstypes(&config.fstypes).map_err(|error| Failure::internal(&error))?;
    let can_grow = any_can_grow(&file_systems).map_err(|error| Failure::internal(&error))?;
    let abilities = HostAbilities {
        can_mount: !file_systems.is_empty(),
        can_grow,
        enforces_selinux: kernel::enforces_selinux(),
    };
    let mut capabilities = abilities.capabilities();
    capabilities.retain(|name| !config.capabilities_off.iter().any(|off| off == name));
    Ok(json!({"capabilities": capabilities, "file_systems": file_systems}))
}

struct HostAbilities {
    can_mount: bool,
    can_grow: bool,
    enforces_selinux: bool,
}

impl HostAbilities {
    fn capabilities(&self) -> Vec<&'static str> {
        // A host that can mount no file system has no capabilities.
        let base = BASE_CAPABILITIES.into_iter().filter(|_| self.can_mount);
        let resize = self.can_grow.then_some(RESIZE);
        let label = (self.enforces_selinux && self.can_mount).then_some(LABEL_ON_MOUNT);
        base.chain(label).chain(resize).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_a_capability_only_with_an_enforced_policy() {
        for (can_mount, enforces_selinux, expected) in [
            (true, true, true),
            (true, false, false),
            (false, true, false),
        ] {
            let abilities = HostAbilities {
                can_mount,
                enforces_selinux,
                can_grow: false,
            };
            let has_label = abilities.capabilities().contains(&LABEL_ON_MOUNT);
            assert_eq!(has_label, expected, "{can_mount} {enforces_selinux}");
        }
    }
}
