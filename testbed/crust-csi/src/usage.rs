//! Usage and health of a published volume, as the container runtime or the kernel reports them.

use crust_blockfs::usage::ResourceUsage;
use crust_proto::csi::v1::volume_usage::Unit;
use crust_proto::csi::v1::{NodeGetVolumeStatsResponse, VolumeHealthErrorType, VolumeUsage};
use crust_proto::v1::{RuntimeGetVolumeStatsResponse, volume_usage as runtimes};

use crate::health::{Health, Problem};
use crate::requests::to_signed;

/// Usage and health of a volume at a target or staging path.
#[derive(Debug)]
pub(crate) struct UsageAndHealth {
    pub(crate) usage: Vec<VolumeUsage>,
    pub(crate) health: Health,
    /// The message of `VolumeCondition` if there is no problem.
    pub(crate) healthy_message: String,
}

impl UsageAndHealth {
    /// Returns the response of `NodeGetVolumeStats`, with the condition if the driver has that capability.
    pub(crate) fn into_response(self, has_condition: bool) -> NodeGetVolumeStatsResponse {
        NodeGetVolumeStatsResponse {
            volume_condition: has_condition
                .then(|| self.health.to_volume_condition(&self.healthy_message)),
            usage: self.usage,
            source: String::new(),
        }
    }
}

/// Returns the problem of a mounted file system. A file system that answers can still be used.
pub(crate) fn file_system_problem(answers: bool, message: String) -> Problem {
    let (status, reason) = if answers {
        (VolumeHealthErrorType::Degraded, "FileSystemDegraded")
    } else {
        (
            VolumeHealthErrorType::Inaccessible,
            "FileSystemInaccessible",
        )
    };
    Problem {
        status,
        reason,
        message,
    }
}

pub(crate) fn amounts(amounts: ResourceUsage, unit: Unit) -> VolumeUsage {
    VolumeUsage {
        available: to_signed(amounts.available),
        total: to_signed(amounts.total),
        used: to_signed(amounts.used),
        unit: unit.into(),
    }
}

pub(crate) fn from_runtime_stats(stats: RuntimeGetVolumeStatsResponse) -> UsageAndHealth {
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
    let usage: Vec<VolumeUsage> = usage.collect();
    let condition = stats.volume_condition.unwrap_or_default();
    if condition.abnormal {
        let problem = file_system_problem(!usage.is_empty(), condition.message);
        return UsageAndHealth {
            usage,
            health: problem.into(),
            healthy_message: String::new(),
        };
    }
    UsageAndHealth {
        usage,
        health: Health::default(),
        healthy_message: condition.message,
    }
}
