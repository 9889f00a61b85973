//! The volumes of a plan, looked at.

use crust_blockfs::fsgroup::FsGroupChangePolicy;
use crust_state::info::AccessMode;
use crust_state::{TargetPath, sentence};
use crust_volume::{Access, Context, Of, Outlook, outlook};

use super::shown;
use super::told::{AccessTold, Layout, StagedTold, VolumeTold};

/// A volume, for a pod.
pub(super) fn look(context: &Context<'_>, volume: &TargetPath, pod: Of<'_>) -> VolumeTold {
    let found = outlook(context, volume, pod);
    let problem = match &found {
        Ok(outlook) => outlook.access.as_ref().err(),
        Err(error) => Some(error),
    };
    VolumeTold {
        volume: volume.volume_name(),
        target_path: shown(volume.as_ref()),
        problem: problem.map(|error| sentence(error)),
        staged: found.ok().map(StagedTold::from),
    }
}

impl From<Outlook> for StagedTold {
    fn from(outlook: Outlook) -> Self {
        let access = outlook.access.ok().map(|access| match access {
            Access::First => AccessTold::First,
            Access::Joins => AccessTold::Joins,
            Access::Mounted => AccessTold::Mounted,
        });
        let (fs_group, policy) = outlook.fs_group.unzip();
        Self {
            layout: if outlook.is_katas {
                Layout::Kata
            } else {
                Layout::Crust
            },
            device: shown(&outlook.info.device),
            device_number: outlook.need.device.to_string(),
            fstype: outlook.superblock.fstype,
            options: outlook.superblock.options,
            read_only: outlook.need.read_only,
            fs_group,
            fs_group_change_policy: policy.map(FsGroupChangePolicy::as_str),
            access_mode: outlook.info.access_mode.map(AccessMode::as_str),
            device_node: outlook.need.device_node,
            access,
            users: outlook.users,
        }
    }
}
