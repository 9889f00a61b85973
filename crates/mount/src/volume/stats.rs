//! How full a volume is, and how it fares (KEP-2857: `RuntimeGetVolumeStats`).

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use crust_state::record::{User, UserKind, VolumeRecord};
use crust_state::{Process, TargetPath};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatVfsMountFlags, StatxFlags};
use rustix::io::Errno;

use super::Context;
use super::error::{Cause, VolumeError};
use crate::beneath;
use crate::sandbox::CRUST;
use crate::usage::{Usage, usage};

/// What is known of a volume in use.
#[derive(Debug)]
pub struct Stats {
    /// Bytes and inodes.
    pub usage: Usage,
    /// Whether all is well.
    pub condition: Condition,
}

/// CSI's `VolumeCondition`.
#[derive(Debug, PartialEq, Eq)]
pub struct Condition {
    /// Something is wrong with the volume.
    pub abnormal: bool,
    /// What.
    pub message: String,
}

/// Looks at a volume where it is mounted: in a live sandbox, or in a live container whose sandbox
/// has ended. The file system is kept busy no longer than that.
pub fn stats(context: &Context<'_>, target: &TargetPath) -> Result<Stats, VolumeError> {
    look(context, target).map_err(|cause| VolumeError::new(target, cause))
}

fn look(context: &Context<'_>, target: &TargetPath) -> Result<Stats, Cause> {
    let Some(volume) = context.crust.volume(target)? else {
        return Err(Cause::NotStaged(target.clone()));
    };
    let mut record = volume.record()?.ok_or(Cause::NotInUse)?;
    record.forget_the_dead(Process::is_alive);
    let root = places(&record, volume.digest().to_string())
        .into_iter()
        .find_map(|(process, place)| open(&record, process, &place))
        .ok_or(Cause::NotInUse)?;
    let usage = usage(&root)?;
    Ok(Stats {
        usage,
        condition: condition(&record, &root)?,
    })
}

/// Where the volume should be, the sandbox's own place first: a container may have unmounted it.
fn places(record: &VolumeRecord, digest: String) -> Vec<(&Process, PathBuf)> {
    let in_sandbox = Path::new(CRUST).join(digest);
    let place = |user: &User| match user.kind {
        UserKind::Sandbox => vec![in_sandbox.clone()],
        UserKind::Container => user
            .mounts
            .iter()
            .map(|mount| mount.destination.clone())
            .collect(),
        UserKind::Pending => vec![],
    };
    let mut users: Vec<&User> = record.users.iter().collect();
    users.sort_by_key(|user| user.kind != UserKind::Sandbox);
    let places = users.into_iter().map(|user| (&user.process, place(user)));
    places
        .flat_map(|(process, paths)| paths.into_iter().map(move |path| (process, path)))
        .collect()
}

/// Opens a place in a process's file system, if it is on the volume's device. A container's tree
/// is its own work: nothing in it leads out, and what is found is believed only by its device.
fn open(record: &VolumeRecord, process: &Process, place: &Path) -> Option<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = format!("/proc/{}/root", process.pid);
    let root = rustix::fs::openat(CWD, root, flags, Mode::empty()).ok()?;
    if !process.is_alive() {
        return None;
    }
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let opened = beneath::open(&root, place, OFlags::PATH, resolve).ok()?;
    let stat = rustix::fs::statx(&opened, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS).ok()?;
    let device = (stat.stx_dev_major, stat.stx_dev_minor);
    (device == (record.device.major(), record.device.minor())).then_some(opened)
}

fn condition(record: &VolumeRecord, root: &OwnedFd) -> Result<Condition, Cause> {
    let call = |errno: Errno| Cause::Call {
        call: "fstatvfs".into(),
        errno,
    };
    let flags = rustix::fs::fstatvfs(root).map_err(call)?.f_flag;
    let mut messages = Vec::new();
    // ext4 remounts itself read-only on an error (`errors=remount-ro`).
    if flags.contains(StatVfsMountFlags::RDONLY) && !record.superblock.read_only {
        messages.push("the file system has become read-only".to_owned());
    }
    let errors = ext4_errors(record);
    if errors > 0 {
        messages.push(format!(
            "the file system has recorded {errors} errors; run e2fsck on it"
        ));
    }
    Ok(Condition {
        abnormal: !messages.is_empty(),
        message: messages.join("; "),
    })
}

/// `/sys/fs/ext4/<device>/errors_count` (Documentation/admin-guide/ext4.rst).
fn ext4_errors(record: &VolumeRecord) -> u64 {
    let device = format!("/sys/dev/block/{}", record.device);
    let Ok(device) = std::fs::canonicalize(device) else {
        return 0;
    };
    let Some(name) = device.file_name() else {
        return 0;
    };
    let file = Path::new("/sys/fs/ext4").join(name).join("errors_count");
    let count = std::fs::read_to_string(file).unwrap_or_default();
    count.trim_end().parse().unwrap_or(0)
}
