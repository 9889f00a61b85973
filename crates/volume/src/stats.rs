//! Reads usage and condition of a volume in use (KEP-2857: `RuntimeGetVolumeStats`).

use crust_blockfs::DeviceNumber;
use crust_blockfs::usage::{Usage, read_usage};
use crust_state::record::VolumeRecord;
use crust_state::{Backing, Process, TargetPath, Volume};

use super::bare_directory::{self, DirectoryContents};
use super::context::Context;
use super::error::{Cause, VolumeError};
use super::health::{HealthCheck, Symptom, VolumeCondition, summarize, symptoms};
use super::{share_health, volume_mounts};

/// Usage and condition of a volume in use.
#[derive(Debug)]
pub struct VolumeStats {
    /// Usage in bytes and inodes; `None` if the file system can't report it.
    pub usage: Option<Usage>,
    pub condition: VolumeCondition,
}

/// Returns usage and condition of a volume in use.
///
/// The volume is read where it is mounted: in a live sandbox, or in a live container whose sandbox has ended. The file
/// system is kept busy only during this call. If the server of a share doesn't answer, a thread of this process stays
/// behind, which keeps the share busy until the process ends.
pub fn stats(context: &Context<'_>, target: &TargetPath) -> Result<VolumeStats, VolumeError> {
    read_stats(context, target).map_err(|cause| VolumeError::new(target, cause))
}

fn read_stats(context: &Context<'_>, target: &TargetPath) -> Result<VolumeStats, Cause> {
    let Some(volume) = context.crust.volume(&context.staged_target(target))? else {
        return Err(Cause::NotStaged(target.clone()));
    };
    let mut record = volume.record()?.ok_or(Cause::NotInUse)?;
    record.retain_live(Process::is_alive);
    let (usage, mut symptoms) = match &record.backing {
        Backing::Device(number) => read_device(&record, *number)?,
        Backing::Share(share) => share_health::read(&record, share)?,
    };
    // An unreadable resize file fails the next create, but needn't fail this call.
    let not_grown = volume.failed_resize().ok().flatten();
    symptoms.extend(not_grown.as_deref().map(Symptom::NotGrown));
    symptoms.extend(host_files(&volume));
    Ok(VolumeStats {
        usage,
        condition: summarize(&symptoms, &record.superblock.fstype),
    })
}

/// Reads the usage of a volume on a device, and looks for symptoms.
fn read_device(
    record: &VolumeRecord,
    device: DeviceNumber,
) -> Result<(Option<Usage>, Vec<Symptom<'static>>), Cause> {
    let mounted = volume_mounts::find(record).next();
    let mounted = mounted.ok_or(Cause::NotInUse)?;
    let usage = read_usage(&mounted.root);
    let symptoms = symptoms(&HealthCheck {
        root: &mounted.root,
        mount: &mounted.mount,
        device,
        fstype: &record.superblock.fstype,
        read_only: record.superblock.read_only,
        usage: usage.as_ref().map(|_| ()),
    });
    Ok((usage.ok(), symptoms))
}

fn host_files(volume: &Volume) -> Option<Symptom<'_>> {
    let contents = bare_directory::contents(volume.target().as_path());
    (contents == DirectoryContents::Files).then(|| Symptom::HostFiles(volume.target()))
}
