//! `NodeGetVolumeStats`: from the mount on the host, or from the container runtime.

use std::slice;

use crust_blockfs::device::Device;
use crust_blockfs::usage;
use crust_proto::csi::v1::volume_usage::Unit;
use crust_proto::csi::v1::{
    NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, VolumeHealthErrorType, VolumeUsage,
};
use crust_serve::client::CallFailure;
use crust_state::TargetPath;
use crust_volume::HealthCheck;
use crust_volume::bare_directory::{self, DirectoryContents};
use tonic::Code;

use super::not_at_path;
use crate::block::BlockDriver;
use crate::block::Publication;
use crate::block::images::ImageError;
use crate::block::mounts;
use crate::block::record::Record;
use crate::features::Feature;
use crate::health::{Health, Problem};
use crate::mounts::MountsError;
use crate::mounts::mount_at;
use crate::mounts::open_root;
use crate::refusal::Refusal;
use crate::requests::{check_present, parse_volume_path, path_key, to_signed};
use crate::store::Mounter;
use crate::usage::{UsageAndHealth, amounts, file_system_problem, from_runtime_stats};

impl BlockDriver {
    /// Handles `NodeGetVolumeStats`.
    pub(crate) fn stats(
        &self,
        request: &NodeGetVolumeStatsRequest,
    ) -> Result<NodeGetVolumeStatsResponse, Refusal> {
        self.context
            .check_feature(Feature::GetVolumeStats, "GET_VOLUME_STATS")?;
        let id = request.volume_id.as_str();
        check_present("volume_id", id)?;
        check_present("volume_path", &request.volume_path)?;
        let record = self.record(id)?;
        let path = parse_volume_path(id, &request.volume_path)?;
        let published = record.published.get(&path_key(&path));
        let by = published.map(|publication| publication.by);
        if by == Some(Mounter::Kubelet) && request.runtime_supported_stats {
            let device = self.device(id)?.ok_or_else(|| not_at_path(id, &path))?;
            return Ok(NodeGetVolumeStatsResponse {
                source: device.path().display().to_string(),
                ..NodeGetVolumeStatsResponse::default()
            });
        }
        let inspection = self.inspect_at(id, &record, &path, request.defer_fs_ops)?;
        let has_condition = self.context.features.has(Feature::VolumeCondition);
        Ok(inspection.into_response(has_condition))
    }

    /// Returns the usage and the problems of a volume at a target or staging path. `defer_fs_ops` is the request's
    /// field.
    pub(super) fn inspect_at(
        &self,
        id: &str,
        record: &Record,
        path: &TargetPath,
        defer_fs_ops: bool,
    ) -> Result<UsageAndHealth, Refusal> {
        let published = record.published.get(&path_key(path));
        let by = published.map(|publication| publication.by);
        if by == Some(Mounter::Runtime) {
            self.context.check_can_defer(id)?;
        }
        if self.is_deferred(id, path, by, defer_fs_ops)? {
            if self.is_other_volume_staged(id, &self.loop_devices(id)?, path)? {
                return Err(not_at_path(id, path));
            }
            return match self.context.ops.stats(path) {
                Ok(stats) => Ok(from_runtime_stats(stats)),
                Err(failure) => {
                    let astray = files_on_host(path, &failure);
                    let astray = astray.ok_or_else(|| Refusal::ops(id)(failure))?;
                    let device = self.device(id)?.ok_or_else(|| not_at_path(id, path))?;
                    Ok(UsageAndHealth {
                        health: astray.into(),
                        ..device_size_only(id, &device)?
                    })
                }
            };
        }
        let is_staged = record.staged.contains_key(&path_key(path));
        let is_block = published.is_some_and(|it| it.usage.mount.is_none());
        let device = self.find_device(id, path)?;
        let device = device.ok_or_else(|| not_at_path(id, path))?;
        if !is_staged && !is_mounted(id, &device, path)? {
            return Err(not_at_path(id, path));
        }
        let mut inspection = match published {
            Some(publication) if !is_block => inspect_mount(id, &device, publication, path)?,
            _ => device_size_only(id, &device)?,
        };
        inspection.health.extend(self.image_health(id, record)?);
        Ok(inspection)
    }

    /// Returns a volume's loop device. If the image was unlinked or can't be read, returns the device that is mounted
    /// at the path.
    fn find_device(&self, id: &str, path: &TargetPath) -> Result<Option<Device>, Refusal> {
        let image = self.images.size(id);
        if !matches!(image, Err(ImageError::Missing(_) | ImageError::Call { .. })) {
            return self.device(id);
        }
        for device in self.loop_devices(id)? {
            if is_mounted(id, &device, path)? {
                return Ok(Some(device));
            }
        }
        Ok(None)
    }

    /// Returns whether the volume is deferred. `crust_ops` then has the statistics. A kubelet that doesn't know of
    /// deferral doesn't set `defer_fs_ops`, so the crust directory is read, too.
    fn is_deferred(
        &self,
        id: &str,
        path: &TargetPath,
        by: Option<Mounter>,
        defer_fs_ops: bool,
    ) -> Result<bool, Refusal> {
        if !self.context.features.has(Feature::DeferFsOps) || by == Some(Mounter::Driver) {
            return Ok(false);
        }
        Ok(defer_fs_ops
            || by == Some(Mounter::Runtime)
            || self.context.is_anything_staged(id, path)?)
    }
}

/// Returns whether a device is mounted at a path. Another mount there is not an error.
fn is_mounted(id: &str, device: &Device, path: &TargetPath) -> Result<bool, Refusal> {
    match mounts::is_mounted_at(slice::from_ref(device), path.as_path()) {
        Err(MountsError::Occupied { .. }) => Ok(false),
        other => other.map_err(Refusal::node(id)),
    }
}

/// Returns only the size of the device, for a volume whose usage can't be read here.
fn device_size_only(id: &str, device: &Device) -> Result<UsageAndHealth, Refusal> {
    let total = device.size().map_err(Refusal::node(id))?;
    Ok(UsageAndHealth {
        usage: vec![VolumeUsage {
            total: to_signed(total),
            unit: Unit::Bytes.into(),
            ..VolumeUsage::default()
        }],
        health: Health::default(),
        healthy_message: "the volume's device is attached".to_owned(),
    })
}

fn inspect_mount(
    id: &str,
    device: &Device,
    publication: &Publication,
    path: &TargetPath,
) -> Result<UsageAndHealth, Refusal> {
    let (Some(mount), Some(mounted)) = (
        &publication.usage.mount,
        mount_at(path.as_path()).map_err(Refusal::node(id))?,
    ) else {
        return Err(not_at_path(id, path));
    };
    let root = open_root(path.as_path()).map_err(Refusal::node(id))?;
    let usage = usage::read_usage(&root);
    let check = crust_volume::check_health(&HealthCheck {
        root: &root,
        mount: &mounted,
        device: device.number(),
        fstype: mount.fstype.name(),
        read_only: publication.usage.is_read_only() || mount.is_read_only(),
        usage: usage.as_ref().map(drop),
    });
    let mut health = Health::default();
    if check.abnormal {
        health.add(file_system_problem(usage.is_ok(), check.message));
    }
    let healthy_message = "the volume is mounted".to_owned();
    Ok(match usage {
        Ok(usage) => UsageAndHealth {
            usage: vec![
                amounts(usage.bytes, Unit::Bytes),
                amounts(usage.inodes, Unit::Inodes),
            ],
            health,
            healthy_message,
        },
        // kubelet ignores a condition without usage, so the size of the device is added.
        Err(_) => UsageAndHealth {
            health,
            ..device_size_only(id, device)?
        },
    })
}

/// Returns a problem if no runtime uses the volume and its target directory contains files. Then a pod runs under a
/// handler without runcrust and writes to the host's disk.
fn files_on_host(path: &TargetPath, failure: &CallFailure) -> Option<Problem> {
    let directory = path.as_path();
    if failure.code() != Code::FailedPrecondition
        || bare_directory::contents(directory) != DirectoryContents::Files
    {
        return None;
    }
    let message = format!(
        "{}: files were written there on the host; hint: check whether the pod runs under a handler without runcrust",
        directory.display()
    );
    Some(Problem {
        status: VolumeHealthErrorType::Degraded,
        reason: "FilesOnTheHost",
        message,
    })
}
