//! Mounts that tests make, and private mount namespaces.

use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::thread;

use nix::mount::{MntFlags, MsFlags, umount2};
use nix::sched::{CloneFlags, unshare};

use crate::host;

const NOTHING: Option<&str> = None;

/// Mounts a file system of this type.
#[track_caller]
pub fn mount(source: &Path, at: &Path, fstype: &str) {
    let mounted = nix::mount::mount(Some(source), at, Some(fstype), MsFlags::empty(), NOTHING);
    mounted.unwrap_or_else(|error| panic!("mount {}: {error}", at.display()));
}

#[track_caller]
pub fn tmpfs(at: &Path) {
    mount(Path::new("none"), at, "tmpfs");
}

/// Binds a file or directory to another path.
#[track_caller]
pub fn bind(from: &Path, to: &Path) {
    let mounted = nix::mount::mount(Some(from), to, NOTHING, MsFlags::MS_BIND, NOTHING);
    mounted.unwrap_or_else(|error| panic!("bind {}: {error}", to.display()));
}

/// Unmounts what is mounted at a path and not in use.
#[track_caller]
pub fn unmount(at: &Path) {
    let off = umount2(at, MntFlags::UMOUNT_NOFOLLOW);
    off.unwrap_or_else(|error| panic!("umount {}: {error}", at.display()));
}

/// Unmounts what is mounted at a path and ignores errors, for code in which a panic would hide an earlier panic.
pub fn try_unmount(at: &Path) {
    let _ = umount2(at, MntFlags::UMOUNT_NOFOLLOW);
}

/// Unmounts everything at and below a directory, the last mount first, and returns the errors. A mount that is in use
/// is detached from the mount table.
pub fn unmount_below(root: &Path) -> Vec<String> {
    let take_off = |mount: &PathBuf| {
        let off = umount2(mount, MntFlags::UMOUNT_NOFOLLOW)
            .or_else(|_| umount2(mount, MntFlags::UMOUNT_NOFOLLOW | MntFlags::MNT_DETACH));
        let error = off.err()?;
        Some(format!("umount {}: {error}", mount.display()))
    };
    let mounts = host::mounts_below(root);
    mounts.iter().rev().filter_map(take_off).collect()
}

/// Gives this thread a private mount namespace, so that nothing else sees what it mounts from now on.
pub fn unshare_mounts() {
    unshare(CloneFlags::CLONE_NEWNS).expect("unshare(CLONE_NEWNS)");
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    nix::mount::mount(NOTHING, "/", NOTHING, private, NOTHING).expect("make / private");
}

/// Runs `work` in a thread with a private mount namespace.
pub fn in_private_namespace<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let work = || {
        unshare_mounts();
        work()
    };
    thread::scope(|scope| scope.spawn(work).join()).unwrap_or_else(|panic| resume_unwind(panic))
}
