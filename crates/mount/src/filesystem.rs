//! A device and its options → a detached mount (fsopen(2), fsconfig(2), fsmount(2)).

mod cause;
mod context;
mod error;

use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, OFlags, StatxFlags, statx};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsmount, fsopen};

pub use cause::Cause;
pub use error::{Call, MountError, Refusal};

use crate::device::{Device, DeviceNumber};
use crate::options::{FsOption, MountOptions};
use crate::probe;
use cause::{Circumstances, Found};
use context::Context;

/// What to mount.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// What it is on.
    pub device: &'a Device,
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
/// ([`MountOptions::without_journal_replay`]).
pub fn instantiate(request: &Request<'_>) -> Result<OwnedFd, MountError> {
    let refuse = |call, errno, log| refusal(request, call, errno, log);
    let context = fsopen(request.fstype, FsOpenFlags::FSOPEN_CLOEXEC)
        .map(Context::new)
        .map_err(|errno| refuse(Call::Open, errno, Vec::new()))?;

    // The path without links: mountinfo shows it, and btrfs is told from others by it.
    let source = request.device.resolved_path();
    context
        .set_string("source", source)
        .map_err(|errno| refuse(Call::Source, errno, context.log()))?;
    let options = effective_options(request);
    for option in &options.fs_options {
        let set = match option {
            FsOption::Flag(key) => context.set_flag(key),
            FsOption::Value { key, value } => context.set_string(key, value.as_ref()),
        };
        set.map_err(|errno| refuse(Call::Option(option.clone()), errno, context.log()))?;
    }
    if options.read_only {
        let option = FsOption::Flag("ro".to_owned());
        context
            .set_flag(option.key())
            .map_err(|errno| refuse(Call::Option(option), errno, context.log()))?;
    }
    context
        .create(request.exclusive, options.read_only)
        .map_err(|errno| refuse(Call::Create, errno, context.log()))?;

    let mut attributes = options.attributes;
    attributes.set(MountAttrFlags::MOUNT_ATTR_RDONLY, options.read_only);
    let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
        .map_err(|errno| refuse(Call::Mount, errno, context.log()))?;
    let mounted =
        superblock_device(&mount).map_err(|errno| refuse(Call::Stat, errno, Vec::new()))?;
    check_device(request, mounted)?;
    Ok(mount)
}

/// A device that doesn't tell whether it is read-only is treated as one that isn't: the mount then
/// says so itself.
fn effective_options(request: &Request<'_>) -> MountOptions {
    if request.options.read_only && request.device.is_read_only().unwrap_or(false) {
        request.options.without_journal_replay(request.fstype)
    } else {
        request.options.clone()
    }
}

/// The superblock's device as `st_dev` tells it.
fn superblock_device(mount: &OwnedFd) -> Result<DeviceNumber, Errno> {
    let stat = statx(mount, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
    Ok(DeviceNumber::new(stat.stx_dev_major, stat.stx_dev_minor))
}

/// The kernel looked the path up once more: did it find what we did? An `st_dev` whose major number
/// is 0 (btrfs) belongs to no device and can't be compared.
fn check_device(request: &Request<'_>, mounted: DeviceNumber) -> Result<(), MountError> {
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

fn refusal(request: &Request<'_>, call: Call, errno: Errno, log: Vec<String>) -> MountError {
    // Only now: a mount that succeeds needs no look at the device.
    let found = if call == Call::Create && errno == Errno::INVAL {
        look_at(request.device)
    } else {
        Found::Unknown
    };
    let cause = cause::of(
        &call,
        errno,
        &log,
        &Circumstances {
            fstype: request.fstype,
            read_only: request.options.read_only,
            found,
        },
    );
    MountError::Refused(Box::new(Refusal {
        device: request.device.path().to_owned(),
        fstype: request.fstype.to_owned(),
        call,
        errno,
        cause,
        log,
    }))
}

fn look_at(device: &Device) -> Found {
    match device
        .open_for_reading(OFlags::empty())
        .and_then(probe::probe)
    {
        Ok(Some(signature)) => Found::A(signature.kind),
        Ok(None) => Found::Nothing,
        Err(_) => Found::Unknown,
    }
}
