//! `NodeGetVolumeStats`: from the mount on the host, or from the container runtime.

use std::slice;

use crust_mount::bare::{self, Contents};
use crust_mount::device::Device;
use crust_mount::usage::{self, Amounts};
use crust_mount::volume::{self, Look};
use crust_proto::csi::v1::volume_usage::Unit;
use crust_proto::csi::v1::{
    NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, VolumeCondition, VolumeUsage,
};
use crust_proto::v1::{RuntimeGetVolumeStatsResponse, volume_usage as runtimes};
use crust_serve::client::Failure;
use crust_state::TargetPath;
use tonic::Code;

use super::not_there;
use crate::controller::signed;
use crate::driver::{Driver, key, required, volume_path};
use crate::features::Feature;
use crate::mounts::{self, MountsError};
use crate::refusal::Refusal;
use crate::store::{By, Publication};

impl Driver {
    /// `NodeGetVolumeStats`.
    pub(crate) fn stats(
        &self,
        request: &NodeGetVolumeStatsRequest,
    ) -> Result<NodeGetVolumeStatsResponse, Refusal> {
        self.needs(Feature::GetVolumeStats, "GET_VOLUME_STATS")?;
        let id = request.volume_id.as_str();
        required("volume_id", id)?;
        required("volume_path", &request.volume_path)?;
        let record = self.record(id)?;
        let place = volume_path(id, &request.volume_path)?;
        let published = record.published.get(&key(&place));
        let by = published.map(|publication| publication.by);
        if by == Some(By::Kubelet) && request.runtime_supported_stats {
            let device = self.device(id)?.ok_or_else(|| not_there(id, &place))?;
            return Ok(NodeGetVolumeStatsResponse {
                source: device.path().display().to_string(),
                ..NodeGetVolumeStatsResponse::default()
            });
        }
        if by == Some(By::Runtime) {
            self.can_defer(id)?;
        }
        if self.is_the_runtimes(id, &place, by, request.defer_fs_ops)? {
            if self.is_another_staged(id, &self.devices(id)?, &place)? {
                return Err(not_there(id, &place));
            }
            let stats = match self.ops.stats(&place) {
                Ok(stats) => of_the_runtimes(stats),
                Err(failure) => {
                    let message = astray(&place, &failure);
                    let message = message.ok_or_else(|| Refusal::ops(id)(failure))?;
                    let device = self.device(id)?.ok_or_else(|| not_there(id, &place))?;
                    NodeGetVolumeStatsResponse {
                        volume_condition: Some(condition(true, &message)),
                        ..size_alone(id, &device)?
                    }
                }
            };
            return Ok(self.with_condition(stats));
        }
        let is_staged = record.staged.contains_key(&key(&place));
        let is_block = published.is_some_and(|it| it.usage.mount.is_none());
        let device = self.device(id)?.ok_or_else(|| not_there(id, &place))?;
        let is_there = match mounts::has(slice::from_ref(&device), place.as_path()) {
            // What else is mounted there isn't the volume.
            Err(MountsError::Occupied { .. }) => false,
            other => other.map_err(Refusal::node(id))?,
        };
        if !is_staged && !is_there {
            return Err(not_there(id, &place));
        }
        let mut stats = match published {
            Some(publication) if !is_block => of_a_mount(id, &device, publication, &place)?,
            _ => size_alone(id, &device)?,
        };
        if let Err(cut) = self.check_whole(id, &record) {
            stats.volume_condition = Some(condition(true, &cut.to_string()));
        }
        Ok(self.with_condition(stats))
    }

    /// Whether `crust_ops` has to be asked. kubelets that don't know of deferral don't say so: the crust
    /// directory does.
    fn is_the_runtimes(
        &self,
        id: &str,
        place: &TargetPath,
        by: Option<By>,
        said: bool,
    ) -> Result<bool, Refusal> {
        if !self.features.has(Feature::DeferFsOps) || by == Some(By::Driver) {
            return Ok(false);
        }
        Ok(said || by == Some(By::Runtime) || self.is_staged_for_a_runtime(id, place)?)
    }

    /// The condition is told where the capability is.
    fn with_condition(&self, mut stats: NodeGetVolumeStatsResponse) -> NodeGetVolumeStatsResponse {
        if !self.features.has(Feature::VolumeCondition) {
            stats.volume_condition = None;
        }
        stats
    }
}

/// What is on the device is nobody's to look at here.
fn size_alone(id: &str, device: &Device) -> Result<NodeGetVolumeStatsResponse, Refusal> {
    let total = device.size().map_err(Refusal::node(id))?;
    Ok(NodeGetVolumeStatsResponse {
        usage: vec![VolumeUsage {
            total: signed(total),
            unit: Unit::Bytes.into(),
            ..VolumeUsage::default()
        }],
        volume_condition: Some(condition(false, "the volume's device is there")),
        source: String::new(),
    })
}

fn of_a_mount(
    id: &str,
    device: &Device,
    publication: &Publication,
    place: &TargetPath,
) -> Result<NodeGetVolumeStatsResponse, Refusal> {
    let (Some(mount), Some(mounted)) = (
        &publication.usage.mount,
        mounts::at(place.as_path()).map_err(Refusal::node(id))?,
    ) else {
        return Err(not_there(id, place));
    };
    let root = mounts::root(place.as_path()).map_err(Refusal::node(id))?;
    let usage = usage::usage(&root);
    let looked = volume::look_over(&Look {
        root: &root,
        mount: &mounted,
        device: device.number(),
        fstype: mount.fstype.name(),
        read_only: publication.usage.is_read_only() || mount.is_read_only(),
        usage: usage.as_ref().map(drop),
    });
    let message = if looked.abnormal {
        looked.message.as_str()
    } else {
        "the volume is mounted"
    };
    let told = condition(looked.abnormal, message);
    Ok(match usage {
        Ok(usage) => NodeGetVolumeStatsResponse {
            usage: vec![
                amounts(usage.bytes, Unit::Bytes),
                amounts(usage.inodes, Unit::Inodes),
            ],
            volume_condition: Some(told),
            source: String::new(),
        },
        // kubelet looks at no condition that comes without a number.
        Err(_) => NodeGetVolumeStatsResponse {
            volume_condition: Some(told),
            ..size_alone(id, device)?
        },
    })
}

fn condition(abnormal: bool, message: &str) -> VolumeCondition {
    let message = message.to_owned();
    VolumeCondition { abnormal, message }
}

/// No runtime has the volume, and files are in its target directory: a pod runs under a handler without
/// runcrust, and writes to the host's disk.
fn astray(place: &TargetPath, failure: &Failure) -> Option<String> {
    let directory = place.as_path();
    if failure.code() != Code::FailedPrecondition || bare::contents(directory) != Contents::Files {
        return None;
    }
    Some(format!(
        "{}: files are in it, on the host; hint: does the pod run under a handler without runcrust?",
        directory.display()
    ))
}

fn amounts(amounts: Amounts, unit: Unit) -> VolumeUsage {
    VolumeUsage {
        available: signed(amounts.available),
        total: signed(amounts.total),
        used: signed(amounts.used),
        unit: unit.into(),
    }
}

fn of_the_runtimes(stats: RuntimeGetVolumeStatsResponse) -> NodeGetVolumeStatsResponse {
    let usage = stats.usage.into_iter().map(|usage| VolumeUsage {
        available: usage.available,
        total: usage.total,
        used: usage.used,
        unit: match runtimes::Unit::try_from(usage.unit) {
            Ok(runtimes::Unit::Bytes) => Unit::Bytes,
            Ok(runtimes::Unit::Inodes) => Unit::Inodes,
            Ok(runtimes::Unit::Unknown) | Err(_) => Unit::Unknown,
        }
        .into(),
    });
    let condition = stats.volume_condition.map(|it| VolumeCondition {
        abnormal: it.abnormal,
        message: it.message,
    });
    NodeGetVolumeStatsResponse {
        usage: usage.collect(),
        volume_condition: condition,
        source: String::new(),
    }
}
