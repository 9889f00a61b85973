//! Collects all known facts about one volume, without changing anything or waiting for a lock.

use std::path::PathBuf;

use crust_blockfs::resize::SizeLimits;
use crust_blockfs::{DeviceNumber, DiskSeq};
use crust_state::lock::{LockError, LockName};
use crust_state::record::{User, VolumeRecord};
use crust_state::{ProcessState, TargetPath};

use super::context::Context;
use super::error::Cause;
use super::overview::{VolumeOverview, may_be_live, users_with_state};
use super::unstage::{device_holder, owned_devices};
use crust_blockfs::device::{Device, DeviceFacts};
use crust_blockfs::device_mounts::is_on;
use crust_blockfs::mountinfo;

/// The result of inspecting a volume. The error of a field is a message that says why it is unknown.
#[derive(Debug)]
pub struct Inspection {
    pub overview: VolumeOverview,
    /// The target path with links resolved; `None` if it is the same as the target path.
    pub resolved: Option<TargetPath>,
    /// The record of the volume's users; `None` if it has none.
    pub record: Result<Option<VolumeRecord>, String>,
    /// All recorded users, live or not.
    pub users: Vec<ObservedUser>,
    /// The program that reports on the volume and resizes it (KEP-2857: `runtime-cli`).
    pub runtime_cli: Result<Option<PathBuf>, String>,
    /// The growth that the next mount carries out.
    pub pending_resize: Result<Option<SizeLimits>, String>,
    pub device: Result<BlockDevice, String>,
    /// The reasons why an unstage would be refused or would wait.
    pub obstacles: Vec<String>,
}

/// A recorded user and its current state.
#[derive(Debug)]
pub struct ObservedUser {
    pub user: User,
    /// Whether the user's process is alive.
    pub process_state: ProcessState,
    /// The mount points of the volume's file system in the user's mount namespace.
    pub mount_points: Vec<PathBuf>,
}

#[derive(Debug)]
pub struct BlockDevice {
    pub number: DeviceNumber,
    /// The device's path with links resolved.
    pub path: PathBuf,
    /// The disk's sequence number (`diskseq`), which the kernel never uses twice; `None` if the kernel doesn't report
    /// it.
    pub disk_seq: Option<DiskSeq>,
    /// Size in bytes.
    pub size: u64,
    pub is_read_only: bool,
    /// Volumes that have been mounted from this device, or from a device with the same data, since they were staged.
    pub owners: Vec<(DeviceNumber, TargetPath)>,
}

/// Inspects a volume. Reads the device, so this can block on a device that hangs.
#[must_use]
pub fn inspect(context: &Context<'_>, overview: VolumeOverview) -> Inspection {
    let found = &overview.found;
    let record = found.record().map_err(|error| error.to_string());
    let users = record
        .as_ref()
        .ok()
        .and_then(Option::as_ref)
        .map_or_else(Vec::new, observe_users);
    let target = found.target();
    let resolved = target.and_then(|target| target.resolved().ok());
    Inspection {
        resolved: resolved.filter(|resolved| Some(resolved) != target),
        runtime_cli: found.runtime_cli().map_err(|error| error.to_string()),
        pending_resize: match found.resize() {
            Ok(resize) => Ok(resize.map(|resize| resize.limits)),
            Err(error) => Err(error.to_string()),
        },
        device: block_device(context, &overview),
        obstacles: obstacles(context, &overview, &record),
        users,
        record,
        overview,
    }
}

fn observe_users(record: &VolumeRecord) -> Vec<ObservedUser> {
    let observed = users_with_state(record)
        .into_iter()
        .map(|(user, process_state)| {
            let mounts = match process_state {
                ProcessState::Alive => mountinfo::read(user.process.pid).unwrap_or_default(),
                _ => Vec::new(),
            };
            let mounts = mounts
                .into_iter()
                .filter(|mount| is_on(mount, record.device));
            ObservedUser {
                mount_points: mounts.map(|mount| mount.mount_point).collect(),
                user,
                process_state,
            }
        });
    observed.collect()
}

/// Describes the device that the volume is mounted from, or the staged device if it isn't mounted.
fn block_device(context: &Context<'_>, overview: &VolumeOverview) -> Result<BlockDevice, String> {
    let device = match (overview.device, overview.info()) {
        (Some(number), _) => Device::find_by_number(number)
            .map_err(|error| error.to_string())?
            .ok_or_else(|| Cause::DeviceGone(number).to_string())?,
        (None, Some(info)) => Device::open(&info.device).map_err(|error| error.to_string())?,
        (None, None) => return Err("unknown, because the volume's entry can't be read".into()),
    };
    let device = DeviceFacts::from(device);
    let described = || -> Result<BlockDevice, Cause> {
        Ok(BlockDevice {
            number: device.number(),
            path: device.device().resolved_path().to_owned(),
            disk_seq: device.disk_seq()?,
            size: device.size()?,
            is_read_only: device.is_read_only()?,
            owners: owners(context, &device)?,
        })
    };
    described().map_err(|cause| cause.to_string())
}

fn owners(
    context: &Context<'_>,
    device: &DeviceFacts,
) -> Result<Vec<(DeviceNumber, TargetPath)>, Cause> {
    let mut owners = Vec::new();
    let owned = context.state.devices_with_volumes()?;
    for other in device.conflicting(owned, context.loop_devices)? {
        let volumes = context.state.volumes_on_device(other)?.into_iter();
        owners.extend(volumes.map(|volume| (other, volume)));
    }
    Ok(owners)
}

/// Returns the reasons why an unstage would be refused or would wait, as far as they are known without waiting.
fn obstacles(
    context: &Context<'_>,
    overview: &VolumeOverview,
    record: &Result<Option<VolumeRecord>, String>,
) -> Vec<String> {
    let mut obstacles = Vec::new();
    let lock = context
        .state
        .try_lock_existing(LockName::Volume(overview.found.digest));
    if let Err(LockError::Held { holder, .. }) = lock {
        obstacles.push(format!("its lock is held by {holder}"));
    }
    let live = match record {
        Ok(Some(record)) => users_with_state(record)
            .into_iter()
            .filter(may_be_live)
            .collect(),
        _ => Vec::new(),
    };
    if live.is_empty() {
        obstacles.extend(
            unrecorded_holders(context, overview, record.is_err())
                .unwrap_or_else(|cause| vec![cause.to_string()]),
        );
    }
    let in_use = |(user, _): (User, _)| Cause::in_use(&user).to_string();
    obstacles.extend(live.into_iter().map(in_use));
    obstacles
}

/// Returns one message for each of the volume's devices that is held by a user without a record.
fn unrecorded_holders(
    context: &Context<'_>,
    overview: &VolumeOverview,
    is_record_unreadable: bool,
) -> Result<Vec<String>, Cause> {
    let Some(target) = overview.target() else {
        return Ok(Vec::new());
    };
    let mut devices = owned_devices(context, target)?;
    devices.extend(overview.device.filter(|_| is_record_unreadable));
    let mut holders = Vec::new();
    for device in devices {
        let try_lock = |name| context.state.try_lock_existing(name);
        holders.extend(device_holder(context, target, device, try_lock)?);
    }
    Ok(holders)
}
