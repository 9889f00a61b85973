//! File systems on devices: made, filled and looked into, where the host never sees a mount.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::process::Command;
use std::thread;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

use crate::Run;
use crate::cleanup::Working;
use crate::dir::new_directory;

/// Makes an ext4 on the device.
pub fn mkfs_ext4(device: &Path) {
    let _ = Run::of(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(device)).success();
}

/// Checks an unmounted ext4, changing nothing.
///
/// # Panics
///
/// When it isn't clean and sound.
#[track_caller]
pub fn fsck_ext4(device: &Path) {
    let _ = Run::of(Command::new("e2fsck").args(["-f", "-n"]).arg(device)).success();
}

/// Mounts the device's ext4 for the time of `work`, which gets the path of its root, in a mount
/// namespace of a thread's own: neither the host nor another test sees it.
///
/// # Panics
///
/// When it can't be mounted, and when `work` panics.
#[track_caller]
pub fn with_mounted<T: Send>(device: &Path, work: impl FnOnce(&Path) -> T + Send) -> T {
    let work = || {
        unshare(CloneFlags::CLONE_NEWNS).expect("unshare(CLONE_NEWNS)");
        let nothing: Option<&str> = None;
        let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        mount(nothing, "/", nothing, private, nothing).expect("make / private");
        let _working = Working::begin();
        let at = new_directory("volume");
        let result = mount(Some(device), &at, Some("ext4"), MsFlags::empty(), nothing)
            .map(|()| catch_unwind(AssertUnwindSafe(|| work(&at))));
        let _ = umount2(&at, MntFlags::UMOUNT_NOFOLLOW);
        let _ = fs::remove_dir(&at);
        result
            .unwrap_or_else(|error| panic!("mount {}: {error}", device.display()))
            .unwrap_or_else(|panic| resume_unwind(panic))
    };
    thread::scope(|scope| scope.spawn(work).join()).unwrap_or_else(|panic| resume_unwind(panic))
}
