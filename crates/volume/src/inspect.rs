//! Everything that is known of one volume: a look that changes nothing and waits for nobody.

use std::path::PathBuf;

use crust_blockfs::resize::Limits;
use crust_blockfs::{DeviceNumber, DiskSeq};
use crust_state::lock::{LockError, LockName};
use crust_state::record::{User, VolumeRecord};
use crust_state::{Life, TargetPath};

use super::context::Context;
use super::error::Cause;
use super::overview::{Overview, may_live, users};
use super::unstage::{devices_of, holder};
use crust_blockfs::device::{Device, DeviceFacts};
use crust_blockfs::device_mounts::is_on;
use crust_blockfs::mountinfo;

/// A volume, and all around it. What can't be read is the sentence that says so.
#[derive(Debug)]
pub struct Inspection {
    /// The volume in short.
    pub overview: Overview,
    /// Its target path with links resolved, where that is another.
    pub resolved: Option<TargetPath>,
    /// The record of its users.
    pub record: Result<Option<VolumeRecord>, String>,
    /// Everybody who is on record.
    pub users: Vec<SeenUser>,
    /// The program that answers for it.
    pub runtime_cli: Result<Option<PathBuf>, String>,
    /// Growth that waits for its mount.
    pub resize: Result<Option<Limits>, String>,
    /// Its device.
    pub device: Result<BlockDevice, String>,
    /// The reasons why an unstage would be refused, or wait.
    pub obstacles: Vec<String>,
}

/// A user on record, and what is seen of it.
#[derive(Debug)]
pub struct SeenUser {
    /// The user as it is recorded.
    pub user: User,
    /// Whether it lives.
    pub life: Life,
    /// The places where it has the volume's file system mounted, as the kernel shows them.
    pub mounted: Vec<PathBuf>,
}

/// A volume's block device.
#[derive(Debug)]
pub struct BlockDevice {
    /// Its number.
    pub number: DeviceNumber,
    /// The kernel's own path to it.
    pub path: PathBuf,
    /// The sequence number of the disk among all that the kernel has created; `None` if the kernel doesn't tell it.
    pub disk_seq: Option<DiskSeq>,
    /// In bytes.
    pub size: u64,
    /// It refuses writes.
    pub is_read_only: bool,
    /// Volumes that were mounted from it, or from a device that shows the same, since they were staged.
    pub owners: Vec<(DeviceNumber, TargetPath)>,
}

/// Looks a volume over.
#[must_use]
pub fn inspect(context: &Context<'_>, overview: Overview) -> Inspection {
    let found = &overview.found;
    let record = found.record().map_err(|error| error.to_string());
    let seen = record
        .as_ref()
        .ok()
        .and_then(Option::as_ref)
        .map_or_else(Vec::new, seen);
    let given = found.target();
    let resolved = given.and_then(|given| given.resolved().ok());
    Inspection {
        resolved: resolved.filter(|resolved| Some(resolved) != given),
        runtime_cli: found.runtime_cli().map_err(|error| error.to_string()),
        resize: match found.resize() {
            Ok(resize) => Ok(resize.map(|resize| resize.limits)),
            Err(error) => Err(error.to_string()),
        },
        device: block(context, &overview),
        obstacles: obstacles(context, &overview, &record),
        users: seen,
        record,
        overview,
    }
}

fn seen(record: &VolumeRecord) -> Vec<SeenUser> {
    let seen = users(record).into_iter().map(|(user, life)| {
        let mounts = match life {
            Life::Lives => mountinfo::read(user.process.pid).unwrap_or_default(),
            _ => Vec::new(),
        };
        let mounts = mounts
            .into_iter()
            .filter(|mount| is_on(mount, record.device));
        SeenUser {
            mounted: mounts.map(|mount| mount.mount_point).collect(),
            user,
            life,
        }
    });
    seen.collect()
}

/// The device that it is mounted from, or else what is staged.
fn block(context: &Context<'_>, overview: &Overview) -> Result<BlockDevice, String> {
    let device = match (overview.device, overview.info()) {
        (Some(number), _) => Device::of_number(number)
            .map_err(|error| error.to_string())?
            .ok_or_else(|| Cause::DeviceGone(number).to_string())?,
        (None, Some(info)) => Device::open(&info.device).map_err(|error| error.to_string())?,
        (None, None) => return Err("its entry doesn't say".into()),
    };
    let device = DeviceFacts::from(device);
    let told = || -> Result<BlockDevice, Cause> {
        Ok(BlockDevice {
            number: device.number(),
            path: device.device().resolved_path().to_owned(),
            disk_seq: device.disk_seq()?,
            size: device.size()?,
            is_read_only: device.is_read_only()?,
            owners: owners(context, &device)?,
        })
    };
    told().map_err(|cause| cause.to_string())
}

fn owners(
    context: &Context<'_>,
    device: &DeviceFacts,
) -> Result<Vec<(DeviceNumber, TargetPath)>, Cause> {
    let mut owners = Vec::new();
    let owned = context.state.owned_devices()?;
    for other in device.conflicting(owned, context.neighbours)? {
        let volumes = context.state.owners_of(other)?.into_iter();
        owners.extend(volumes.map(|volume| (other, volume)));
    }
    Ok(owners)
}

/// Returns what an unstage would wait for or be refused for, as far as that is known without waiting.
fn obstacles(
    context: &Context<'_>,
    overview: &Overview,
    record: &Result<Option<VolumeRecord>, String>,
) -> Vec<String> {
    let mut obstacles = Vec::new();
    let lock = context
        .state
        .glance(LockName::Volume(overview.found.digest));
    if let Err(LockError::Held { holder, .. }) = lock {
        obstacles.push(format!("its lock is held by {holder}"));
    }
    let living = match record {
        Ok(Some(record)) => users(record).into_iter().filter(may_live).collect(),
        _ => Vec::new(),
    };
    if living.is_empty() {
        obstacles.extend(
            held(context, overview, record.is_err())
                .unwrap_or_else(|cause| vec![cause.to_string()]),
        );
    }
    let in_use = |(user, _): (User, _)| Cause::in_use(&user).to_string();
    obstacles.extend(living.into_iter().map(in_use));
    obstacles
}

/// Devices that somebody has whom no record names.
fn held(
    context: &Context<'_>,
    overview: &Overview,
    is_record_lost: bool,
) -> Result<Vec<String>, Cause> {
    let Some(target) = overview.target() else {
        return Ok(Vec::new());
    };
    let mut devices = devices_of(context, target)?;
    devices.extend(overview.device.filter(|_| is_record_lost));
    let mut held = Vec::new();
    for device in devices {
        let glance = |name| context.state.glance(name);
        held.extend(holder(context, target, device, glance)?);
    }
    Ok(held)
}
