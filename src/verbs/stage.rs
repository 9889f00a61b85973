//! `stage` and `unstage`.

use std::ffi::OsString;
use std::path::PathBuf;

use crust_blockfs::fsgroup::FsGroupChangePolicy;
use crust_state::info::{AccessMode, VolumeType};
use crust_state::{MountInfo, TargetPath};
use crust_volume::Context;
use serde_json::{Value, json};

use super::{Failure, target};

#[derive(Debug, clap::Args)]
pub(super) struct StageArgs {
    /// `target_path` of CSI `NodePublishVolume`
    target_path: OsString,
    #[command(flatten)]
    volume: VolumeArguments,
}

/// What is to be mounted.
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
            // The stage looks which it is.
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
    // What a bundle's end left behind is nobody's any more; it can wait for the next time.
    if let Err(error) = crust_volume::sweep(context) {
        tracing::warn!("{error}");
    }
    Ok(json!({}))
}
