//! Mounts a device with the new mount API (fsopen(2), fsconfig(2), fsmount(2)). The result is a *detached* mount.

mod cause;
mod context;
mod error;

use std::os::fd::OwnedFd;

use rustix::fs::{Advice, AtFlags, SeekFrom, StatxFlags, fadvise, statx};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsmount, fsopen};

pub use cause::MountErrorCause;
pub use context::{FsContext, MountCall};
pub use error::{FailedMountCall, MountError};

use crate::contents;
use crate::device::{Device, DeviceFacts, DeviceNumber};
use crate::fstypes::{self, FileSystemType};
use crate::options::{FsOption, MountOptions};
use crate::probe;
use cause::{DeviceContents, ErrorContext};

/// The mount to make.
#[derive(Debug, Clone, Copy)]
pub struct MountRequest<'a> {
    /// The device to mount.
    pub device: &'a DeviceFacts,
    /// The file system's type. The caller must have checked it against the allow list, because the kernel may load the
    /// module of that name.
    pub fstype: &'a str,
    /// The mount's attributes, and the file system's options.
    pub options: &'a MountOptions,
    /// Whether to fail if the kernel already has a superblock for the device, in any namespace
    /// (`FSCONFIG_CMD_CREATE_EXCL`). Has no effect before Linux 6.6.
    pub exclusive: bool,
}

/// Creates the file system's superblock, and a mount of it that isn't attached anywhere.
///
/// The returned descriptor (`O_PATH`, close-on-exec) is the only reference to the mount: closing it unmounts the file
/// system. The caller must be root, in a mount namespace where the device's path leads to the device. Blocks until the
/// device has answered.
///
/// Some options are changed or added:
/// - A read-only mount of a read-only device doesn't replay the journal ([`MountOptions::without_journal_replay`]).
/// - A clone of a mounted xfs gets `nouuid`.
/// - An ext4 whose superblock asks for a kernel panic on errors gets `errors=remount-ro`.
///
/// A clone of a mounted btrfs is refused, and so is an ext4 that has its journal on another device.
pub fn mount_detached(request: &MountRequest<'_>) -> Result<OwnedFd, MountError> {
    let known = fstypes::find(request.fstype);
    let options = effective_options(request, known)?;
    let mount = match make(request, &options) {
        Err(MountError::Call(failed)) => {
            let option = known.and_then(|known| known.duplicate_uuid_option);
            let option = option.filter(|option| may_be_clone(request, &options, &failed, option));
            let Some(option) = option else {
                return Err(MountError::Call(failed));
            };
            make_for_clone(request, options, option, failed)?
        }
        result => result?,
    };
    if let Some(check) = known.and_then(|known| known.after_mount) {
        check(request.device)?;
    }
    Ok(mount)
}

/// Makes the kernel read the superblock, which [`mount_detached`] needs, in the background. Doesn't block, and does
/// nothing for types whose superblock isn't checked before the mount.
///
/// Opens `device`, which must stay open until the mount: when the last descriptor is closed, the kernel drops the pages
/// that it has read.
pub fn read_ahead(fstype: &str, device: &DeviceFacts) {
    let superblock = fstypes::find(fstype).and_then(|known| known.read_ahead);
    if let Some((offset, length)) = superblock
        && let Ok(device) = device.opened()
    {
        // If this fails, the superblock is read later.
        let _ = fadvise(device, offset, Some(length), Advice::WillNeed);
    }
}

/// Returns true if a mount may have failed because a file system with the same UUID is mounted. `option` makes the
/// kernel mount such a clone.
///
/// The option does nothing except skip the kernel's check for the UUID, which comes before the journal is replayed. So
/// if the mount succeeds with it and fails without it, the original is mounted. Reading the UUIDs of all other devices
/// instead could hang on any of them.
fn may_be_clone(
    request: &MountRequest<'_>,
    options: &MountOptions,
    failed: &FailedMountCall,
    option: &str,
) -> bool {
    let mut given = options.fs_options.iter();
    let is_given = given.any(|given| given.key() == option);
    // The kernel also refuses a UUID of zeroes, but such a file system isn't a clone.
    let has_uuid = || {
        let found = probe::signature(request.device).ok().flatten();
        found.is_some_and(|found| !found.uuid.is_nil())
    };
    matches!(failed.cause, MountErrorCause::Rejected { .. }) && !is_given && has_uuid()
}

/// Tries a second time, with the option for a clone. Returns the first error if the second attempt fails with the same
/// errno: then the file system isn't a clone.
fn make_for_clone(
    request: &MountRequest<'_>,
    mut options: MountOptions,
    option: &str,
    first: Box<FailedMountCall>,
) -> Result<OwnedFd, MountError> {
    options.fs_options.push(FsOption::Flag(option.to_owned()));
    match make(request, &options) {
        Err(MountError::Call(second)) if second.errno == first.errno => {
            Err(MountError::Call(first))
        }
        Err(error) => Err(error),
        Ok(mount) => {
            let (device, fstype) = (request.device.path().display(), request.fstype);
            tracing::info!(
                %device,
                "a file system with the same UUID is mounted: the device's {fstype} was mounted with {option}"
            );
            Ok(mount)
        }
    }
}

fn make(request: &MountRequest<'_>, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let fail = |call, errno, log| failed_call(request, options, call, errno, log);
    let context = fsopen(request.fstype, FsOpenFlags::FSOPEN_CLOEXEC)
        .map(FsContext::new)
        .map_err(|errno| fail(MountCall::Open, errno, Vec::new()))?;

    // The path without symbolic links. mountinfo shows it, and the mounts of a btrfs are recognized by it.
    let source = request.device.device().resolved_path();
    context
        .set_string("source", source)
        .map_err(|errno| fail(MountCall::Source, errno, context.log()))?;
    for option in &options.fs_options {
        let set = match option {
            FsOption::Flag(key) => context.set_flag(key),
            FsOption::Value { key, value } => context.set_string(key, value.as_ref()),
        };
        set.map_err(|errno| fail(MountCall::Option(option.clone()), errno, context.log()))?;
    }
    if options.read_only {
        let option = FsOption::Flag("ro".to_owned());
        context
            .set_flag(option.key())
            .map_err(|errno| fail(MountCall::Option(option), errno, context.log()))?;
    }
    context
        .create(request.exclusive, options.read_only)
        .map_err(|errno| fail(MountCall::Create, errno, context.log()))?;

    let mut attributes = options.attributes;
    attributes.set(MountAttrFlags::MOUNT_ATTR_RDONLY, options.read_only);
    let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
        .map_err(|errno| fail(MountCall::Mount, errno, context.log()))?;
    let mounted =
        superblock_device(&mount).map_err(|errno| fail(MountCall::Stat, errno, Vec::new()))?;
    check_device(request, mounted)?;
    Ok(mount)
}

/// Returns the options to mount with: those of the request, and those that the file system requires.
///
/// A file system that is read-only by design is mounted with `ro`. Its superblock would be read-only in any case, and
/// the kernel would refuse a second mount without `ro`. If the device can't report whether it is read-only, it is
/// treated as writable, and the mount fails if it isn't.
fn effective_options(
    request: &MountRequest<'_>,
    known: Option<&FileSystemType>,
) -> Result<MountOptions, MountError> {
    let mut options = request.options.clone();
    options.read_only |= known.is_some_and(|known| known.is_read_only);
    if let Some(check) = known.and_then(|known| known.before_mount) {
        let given: Vec<_> = options.fs_options.iter().map(FsOption::parts).collect();
        let required = check(request.device, &given)?;
        options.read_only |= required.read_only;
        if let Some((key, value)) = required.option {
            let (key, value) = (key.to_owned(), value.to_owned());
            options.fs_options.push(FsOption::Value { key, value });
        }
    }
    if options.read_only && request.device.is_read_only().unwrap_or(false) {
        options = options.without_journal_replay(request.fstype);
    }
    Ok(options)
}

/// Returns the device number of the mount's superblock (`st_dev`).
fn superblock_device(mount: &OwnedFd) -> Result<DeviceNumber, Errno> {
    let stat = statx(mount, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
    Ok(DeviceNumber::new(stat.stx_dev_major, stat.stx_dev_minor))
}

/// Fails if the kernel mounted another device than the requested one. The kernel looks up the device's path again,
/// and the path may have changed since.
///
/// An `st_dev` with the major number 0 (btrfs) isn't a device's and can't be compared.
fn check_device(request: &MountRequest<'_>, mounted: DeviceNumber) -> Result<(), MountError> {
    let expected = request.device.number();
    if mounted.major() == 0 || mounted == expected {
        return Ok(());
    }
    Err(MountError::Replaced {
        device: request.device.path().to_owned(),
        expected,
        mounted,
    })
}

/// Returns the error for a failed call, with its cause.
fn failed_call(
    request: &MountRequest<'_>,
    options: &MountOptions,
    call: MountCall,
    errno: Errno,
    log: Vec<String>,
) -> MountError {
    // The device is read only if the mount has failed.
    let contents = match (&call, errno) {
        (
            MountCall::Create,
            Errno::INVAL | Errno::IO | Errno::ROFS | Errno::ACCESS | Errno::NOSYS,
        ) => read_contents(request.device),
        _ => DeviceContents::Unknown,
    };
    let cause = cause::find_cause(
        &call,
        errno,
        &log,
        &ErrorContext {
            fstype: request.fstype,
            read_only: request.options.read_only,
            options: &options.fs_options,
            contents,
            device_exists: errno == Errno::NOENT && device_exists(request.device.device()),
            is_read_only_device: request.device.is_read_only().unwrap_or(false),
            page_size: rustix::param::page_size() as u64,
        },
    );
    MountError::Call(Box::new(FailedMountCall {
        device: request.device.path().to_owned(),
        fstype: request.fstype.to_owned(),
        call,
        errno,
        cause,
        log,
    }))
}

fn read_contents(device: &DeviceFacts) -> DeviceContents {
    let read = || -> Result<DeviceContents, Errno> {
        let opened = device.opened()?;
        // Not the cached size: if the device shrank meanwhile, its new size is the cause of the error.
        let device_size = rustix::fs::seek(opened, SeekFrom::End(0))?;
        Ok(match probe::signature(device)? {
            Some(signature) => DeviceContents::FileSystem {
                signature,
                device_size,
                logical_block: device.logical_block()?,
            },
            None => DeviceContents::Other(contents::identify(opened, device_size)?),
        })
    };
    read().unwrap_or(DeviceContents::Unknown)
}

/// Returns true if the path still leads to the device.
fn device_exists(device: &Device) -> bool {
    Device::open(device.resolved_path()).is_ok_and(|found| found.number() == device.number())
}
