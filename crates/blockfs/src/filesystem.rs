//! A device and its options → a detached mount (fsopen(2), fsconfig(2), fsmount(2)).

mod cause;
mod context;
mod error;

use std::os::fd::OwnedFd;

use rustix::fs::{Advice, AtFlags, SeekFrom, StatxFlags, fadvise, statx};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsmount, fsopen};

pub use cause::MountErrorCause;
pub use context::MountCall;
pub use error::{FailedMountCall, MountError};

use crate::contents;
use crate::device::{Device, DeviceFacts, DeviceNumber};
use crate::fstypes::{self, FileSystemType};
use crate::options::{FsOption, MountOptions};
use crate::probe;
use cause::{Circumstances, DeviceContents};
use context::Context;

/// A mount that is to be made.
#[derive(Debug, Clone, Copy)]
pub struct MountRequest<'a> {
    /// The device that it is on.
    pub device: &'a DeviceFacts,
    /// The file system's type; the caller has checked it against the allow list, since the name
    /// reaches the kernel's module loader.
    pub fstype: &'a str,
    /// Its options.
    pub options: &'a MountOptions,
    /// Refuse when the kernel has a superblock for the device already, in whatever namespace
    /// (`FSCONFIG_CMD_CREATE_EXCL`, Linux 6.6; without effect before).
    pub exclusive: bool,
}

/// Makes the file system's superblock and a mount of it that is attached nowhere: the descriptor
/// (`O_PATH`, close-on-exec) is all there is, and closing it unmounts. Must run as root, in a mount
/// namespace where the device's path means the device.
///
/// A read-only mount of a read-only device is made without replaying the journal
/// ([`MountOptions::without_journal_replay`]). A clone of an xfs that is mounted gets `nouuid`, a
/// clone of a btrfs that is mounted is refused, and so is an ext4 with its journal on another device. An
/// ext4 whose superblock asks for a kernel panic on errors is mounted with `errors=remount-ro`.
pub fn mount_detached(request: &MountRequest<'_>) -> Result<OwnedFd, MountError> {
    let known = fstypes::find(request.fstype);
    let options = effective_options(request, known)?;
    let mount = match make(request, &options) {
        Err(MountError::Call(refusal)) => {
            let option = known.and_then(|known| known.duplicate_uuid_option);
            let option = option.filter(|option| may_have_twin(request, &options, &refusal, option));
            let Some(option) = option else {
                return Err(MountError::Call(refusal));
            };
            beside_its_twin(request, options, option, refusal)?
        }
        made => made?,
    };
    if let Some(check) = known.and_then(|known| known.after_mount) {
        check(request.device)?;
    }
    Ok(mount)
}

/// Asks the kernel to read in the background what [`mount_detached`] looks at before it mounts. Opens the device, which
/// has to stay open until then: the kernel drops the pages that it has read when the last descriptor is closed.
pub fn read_ahead(fstype: &str, device: &DeviceFacts) {
    let place = fstypes::find(fstype).and_then(|known| known.read_ahead);
    if let Some((offset, length)) = place
        && let Ok(device) = device.opened()
    {
        // Where that fails the superblock is only read later.
        let _ = fadvise(device, offset, Some(length), Advice::WillNeed);
    }
}

/// Returns true if a refused mount may have lacked `option`, with which the type is mounted beside another file system
/// with its UUID.
///
/// All that the option does is to skip the kernel's look for a twin, which comes before the journal is replayed: where
/// the mount succeeds with it and not without, a twin is mounted. Asking the other devices for their UUIDs instead
/// could hang with any of them.
fn may_have_twin(
    request: &MountRequest<'_>,
    options: &MountOptions,
    refusal: &FailedMountCall,
    option: &str,
) -> bool {
    let mut given = options.fs_options.iter();
    let is_given = given.any(|given| given.key() == option);
    // A UUID of zeroes is refused too, and that is nobody's twin.
    let has_uuid = || {
        let found = probe::signature(request.device).ok().flatten();
        found.is_some_and(|found| !found.uuid.is_nil())
    };
    matches!(refusal.cause, MountErrorCause::Unacceptable { .. }) && !is_given && has_uuid()
}

/// Tries a second time, with the option for a clone. Refused for the same reason, it had no twin.
fn beside_its_twin(
    request: &MountRequest<'_>,
    mut options: MountOptions,
    option: &str,
    first: Box<FailedMountCall>,
) -> Result<OwnedFd, MountError> {
    options.fs_options.push(FsOption::Flag(option.to_owned()));
    match make(request, &options) {
        Err(MountError::Call(again)) if again.errno == first.errno => Err(MountError::Call(first)),
        Err(error) => Err(error),
        Ok(mount) => {
            let (device, fstype) = (request.device.path().display(), request.fstype);
            tracing::info!(%device, "its {fstype} has the UUID of another that is mounted: mounted with {option}");
            Ok(mount)
        }
    }
}

fn make(request: &MountRequest<'_>, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let refuse = |call, errno, log| refusal(request, options, call, errno, log);
    let context = fsopen(request.fstype, FsOpenFlags::FSOPEN_CLOEXEC)
        .map(Context::new)
        .map_err(|errno| refuse(MountCall::Open, errno, Vec::new()))?;

    // The path without links: mountinfo shows it, and btrfs is told from others by it.
    let source = request.device.device().resolved_path();
    context
        .set_string("source", source)
        .map_err(|errno| refuse(MountCall::Source, errno, context.log()))?;
    for option in &options.fs_options {
        let set = match option {
            FsOption::Flag(key) => context.set_flag(key),
            FsOption::Value { key, value } => context.set_string(key, value.as_ref()),
        };
        set.map_err(|errno| refuse(MountCall::Option(option.clone()), errno, context.log()))?;
    }
    if options.read_only {
        let option = FsOption::Flag("ro".to_owned());
        context
            .set_flag(option.key())
            .map_err(|errno| refuse(MountCall::Option(option), errno, context.log()))?;
    }
    context
        .create(request.exclusive, options.read_only)
        .map_err(|errno| refuse(MountCall::Create, errno, context.log()))?;

    let mut attributes = options.attributes;
    attributes.set(MountAttrFlags::MOUNT_ATTR_RDONLY, options.read_only);
    let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
        .map_err(|errno| refuse(MountCall::Mount, errno, context.log()))?;
    let mounted =
        superblock_device(&mount).map_err(|errno| refuse(MountCall::Stat, errno, Vec::new()))?;
    check_device(request, mounted)?;
    Ok(mount)
}

/// Returns the options to mount with: those of the request, and what the file system itself demands.
///
/// A file system that is read-only by its nature is mounted with `ro`: the kernel makes its superblock
/// read-only in any case, and refuses a second mount without `ro`. A device that doesn't tell whether it is
/// read-only is treated as one that isn't: the mount then says so itself.
fn effective_options(
    request: &MountRequest<'_>,
    known: Option<&FileSystemType>,
) -> Result<MountOptions, MountError> {
    let mut options = request.options.clone();
    options.read_only |= known.is_some_and(|known| known.is_read_only);
    if let Some(look) = known.and_then(|known| known.before_mount) {
        let given: Vec<_> = options.fs_options.iter().map(FsOption::parts).collect();
        let precautions = look(request.device, &given)?;
        options.read_only |= precautions.read_only;
        if let Some((key, value)) = precautions.option {
            let (key, value) = (key.to_owned(), value.to_owned());
            options.fs_options.push(FsOption::Value { key, value });
        }
    }
    if options.read_only && request.device.is_read_only().unwrap_or(false) {
        options = options.without_journal_replay(request.fstype);
    }
    Ok(options)
}

/// The superblock's device as `st_dev` tells it.
fn superblock_device(mount: &OwnedFd) -> Result<DeviceNumber, Errno> {
    let stat = statx(mount, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
    Ok(DeviceNumber::new(stat.stx_dev_major, stat.stx_dev_minor))
}

/// The kernel looked the path up once more: did it find what we did? An `st_dev` whose major number
/// is 0 (btrfs) belongs to no device and can't be compared.
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

fn refusal(
    request: &MountRequest<'_>,
    options: &MountOptions,
    call: MountCall,
    errno: Errno,
    log: Vec<String>,
) -> MountError {
    // Only now: a mount that succeeds needs no look at the device.
    let found = match (&call, errno) {
        (
            MountCall::Create,
            Errno::INVAL | Errno::IO | Errno::ROFS | Errno::ACCESS | Errno::NOSYS,
        ) => look_at(request.device),
        _ => DeviceContents::Unknown,
    };
    let cause = cause::of(
        &call,
        errno,
        &log,
        &Circumstances {
            fstype: request.fstype,
            read_only: request.options.read_only,
            options: &options.fs_options,
            found,
            is_there: errno == Errno::NOENT && is_there(request.device.device()),
            is_read_only_device: request.device.is_read_only().unwrap_or(false),
            page: rustix::param::page_size() as u64,
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

fn look_at(device: &DeviceFacts) -> DeviceContents {
    let looked = || -> Result<DeviceContents, Errno> {
        let opened = device.opened()?;
        // Not the size that is remembered: the end of a device that shrank meanwhile is the cause.
        let room = rustix::fs::seek(opened, SeekFrom::End(0))?;
        Ok(match probe::signature(device)? {
            Some(signature) => DeviceContents::A {
                signature,
                room,
                logical: device.logical_block()?,
            },
            None => DeviceContents::Other(contents::identify(opened, room)?),
        })
    };
    looked().unwrap_or(DeviceContents::Unknown)
}

/// Whether the path still leads to the device that was found.
fn is_there(device: &Device) -> bool {
    Device::open(device.resolved_path()).is_ok_and(|again| again.number() == device.number())
}
