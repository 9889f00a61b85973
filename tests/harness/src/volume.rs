//! File systems on devices: they are made, filled and checked without a mount on the host.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::cleanup::OperationGuard;
use crate::dir::new_directory;
use crate::wait::holds_within;
use crate::{Run, mounts};

/// The longest time that a file system may stay busy after its use.
const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(60);

/// Makes a file system on a device with further arguments, and overwrites what is there.
pub fn mkfs(fstype: &str, device: &Path, arguments: &[&str]) {
    let force = match fstype {
        "xfs" | "btrfs" => "-f",
        _ => "-F",
    };
    let mut mkfs = Command::new(format!("mkfs.{fstype}"));
    let _ = Run::capture(mkfs.args(["-q", force]).args(arguments).arg(device)).success();
}

/// Checks that an unmounted ext4 is clean, without changing it.
#[track_caller]
pub fn fsck_ext4(device: &Path) {
    fsck("ext4", device);
}

/// Checks that an unmounted file system is clean, without changing it.
#[track_caller]
pub fn fsck(fstype: &str, device: &Path) {
    let (program, arguments): (_, &[&str]) = match fstype {
        "xfs" => ("xfs_repair", &["-n"]),
        "btrfs" => ("btrfs", &["check", "--readonly"]),
        _ => ("e2fsck", &["-f", "-n"]),
    };
    let _ = Run::capture(Command::new(program).args(arguments).arg(device)).success();
}

/// Mounts a device's file system while `work` runs, which gets the path of its root. The mount is in a thread's private
/// mount namespace, so neither the host nor another test sees it.
#[track_caller]
pub fn with_mounted<T: Send>(device: &Path, work: impl FnOnce(&Path) -> T + Send) -> T {
    mounts::in_private_namespace(|| {
        let _operation = OperationGuard::begin();
        let at = new_directory("volume");
        let fstype = type_on(device);
        let nothing: Option<&str> = None;
        let mounted = mount(Some(device), &at, fstype, MsFlags::empty(), nothing)
            .map(|()| (catch_unwind(AssertUnwindSafe(|| work(&at))), unmount(&at)));
        let removed = fs::remove_dir(&at);
        let (worked, unmounted) =
            mounted.unwrap_or_else(|error| panic!("mount {}: {error}", device.display()));
        let result = worked.unwrap_or_else(|panic| resume_unwind(panic));
        unmounted.unwrap_or_else(|error| panic!("umount {}: {error}", device.display()));
        removed.unwrap_or_else(|error| panic!("rmdir {}: {error}", at.display()));
        result
    })
}

/// Unmounts a file system. It is busy for a moment while another thread starts a program, because the child has this
/// process's open files until its exec.
fn unmount(at: &Path) -> nix::Result<()> {
    let mut result = Ok(());
    holds_within(UNMOUNT_TIMEOUT, || {
        result = umount2(at, MntFlags::UMOUNT_NOFOLLOW);
        result != Err(Errno::EBUSY)
    });
    if result.is_err() {
        // The error is returned, but the directory can be removed nevertheless.
        let _ = umount2(at, MntFlags::UMOUNT_NOFOLLOW | MntFlags::MNT_DETACH);
    }
    result
}

/// Returns the smallest size in MiB that mkfs accepts by default for this type.
pub fn min_size_mib(fstype: &str) -> u64 {
    match fstype {
        "xfs" => 300,
        "btrfs" => 128,
        _ => 32,
    }
}

/// Returns the type of the file system on a device or image, if it is one that the suites use.
pub fn type_on(device: &Path) -> Option<&'static str> {
    let mut blkid = Command::new("blkid");
    let blkid = blkid.args(["-p", "-s", "TYPE", "-o", "value"]).arg(device);
    let found = Run::capture(blkid).stdout;
    ["ext2", "ext3", "ext4", "xfs", "btrfs"]
        .into_iter()
        .find(|fstype| *fstype == found.trim_end())
}
