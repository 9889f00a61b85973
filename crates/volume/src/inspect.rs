//! Collects all known facts about one volume, without changing anything or waiting for a lock.

use std::path::PathBuf;

use crust_blockfs::resize::SizeLimits;
use crust_blockfs::{DeviceNumber, DiskSeq};
use crust_nfs::Share;
use crust_state::lock::{LockError, LockName};
use crust_state::record::{User, VolumeRecord};
use crust_state::{Backing, BackingKey, ProcessState, TargetPath};

use super::context::Context;
use super::error::Cause;
use super::mount_source;
use super::overview::{VolumeOverview, may_be_live, users_with_state};
use super::unstage::{device_holder, owned_backings};
use crust_blockfs::device::DeviceFacts;
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
    pub backing: Result<BackingDescription, String>,
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

/// The device or share that a volume is on.
#[derive(Debug)]
pub enum BackingDescription {
    Device(BlockDevice),
    Share(ShareDescription),
}

#[derive(Debug)]
pub struct ShareDescription {
    pub share: Share,
    /// The addresses of the server that the users' mounts are connected to. Empty if the share isn't mounted.
    pub addresses: Vec<String>,
    /// Volumes that have been mounted from this share since they were staged.
    pub owners: Vec<TargetPath>,
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
        backing: describe_backing(
            context,
            &overview,
            record.as_ref().ok().and_then(Option::as_ref),
        ),
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
            let mounts = record.find_mounts(&mounts).into_iter();
            ObservedUser {
                mount_points: mounts.map(|mount| mount.mount_point.clone()).collect(),
                user,
                process_state,
            }
        });
    observed.collect()
}

/// Describes the device or share that the volume is mounted from, or the staged one if it isn't mounted.
fn describe_backing(
    context: &Context<'_>,
    overview: &VolumeOverview,
    record: Option<&VolumeRecord>,
) -> Result<BackingDescription, String> {
    let described = || -> Result<Option<BackingDescription>, Cause> {
        let source = match (&overview.backing, overview.info()) {
            (Some(backing), _) => mount_source::open_mounted(backing)?,
            (None, Some(info)) => mount_source::open_staged(info)?,
            (None, None) => return Ok(None),
        };
        Ok(Some(match (source.backing(), source.device()) {
            (Backing::Share(share), _) => BackingDescription::Share(ShareDescription {
                owners: context.state.volumes_on(source.backing().key())?,
                addresses: record.map_or_else(Vec::new, server_addresses),
                share,
            }),
            (Backing::Device(_), Some(device)) => {
                BackingDescription::Device(block_device(context, device)?)
            }
            (Backing::Device(_), None) => return Ok(None),
        }))
    };
    let unknown = "unknown, because the volume's entry can't be read";
    let described = described().map_err(|cause| cause.to_string())?;
    described.ok_or_else(|| unknown.to_owned())
}

fn block_device(context: &Context<'_>, device: &DeviceFacts) -> Result<BlockDevice, Cause> {
    Ok(BlockDevice {
        number: device.number(),
        path: device.device().resolved_path().to_owned(),
        disk_seq: device.disk_seq()?,
        size: device.size()?,
        is_read_only: device.is_read_only()?,
        owners: owners(context, device)?,
    })
}

/// Returns the server's addresses in the mount tables of the live users. Doesn't ask the server.
fn server_addresses(record: &VolumeRecord) -> Vec<String> {
    let mut addresses = Vec::new();
    for (user, process_state) in users_with_state(record) {
        if process_state != ProcessState::Alive {
            continue;
        }
        let mounts = mountinfo::read(user.process.pid).unwrap_or_default();
        for mount in record.find_mounts(&mounts) {
            let options = mount.super_options.iter();
            let texts = options.filter_map(|option| option.into_string().ok());
            addresses
                .extend(texts.filter_map(|option| Some(option.strip_prefix("addr=")?.to_owned())));
        }
    }
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}

fn owners(
    context: &Context<'_>,
    device: &DeviceFacts,
) -> Result<Vec<(DeviceNumber, TargetPath)>, Cause> {
    let mut owners = Vec::new();
    let owned = context.state.backings_with_volumes()?.into_iter();
    let owned = owned.filter_map(BackingKey::device).collect();
    for other in device.conflicting(owned, context.loop_devices)? {
        let volumes = context.state.volumes_on(other.into())?.into_iter();
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
    let mut backings = owned_backings(context, target)?;
    let recorded = overview.backing.as_ref().filter(|_| is_record_unreadable);
    backings.extend(recorded.map(Backing::key));
    let mut holders = Vec::new();
    for backing in backings {
        let try_lock = |name| context.state.try_lock_existing(name);
        holders.extend(device_holder(context, target, backing, try_lock)?);
    }
    Ok(holders)
}
