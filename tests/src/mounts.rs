//! Mounts that tests make, and mount namespaces where nobody else sees them.

use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::thread;

use nix::mount::{MntFlags, MsFlags, umount2};
use nix::sched::{CloneFlags, unshare};

use crate::host;

const NOTHING: Option<&str> = None;

/// Mounts a file system of a type.
#[track_caller]
pub fn mount(source: &Path, at: &Path, fstype: &str) {
    let mounted = nix::mount::mount(Some(source), at, Some(fstype), MsFlags::empty(), NOTHING);
    mounted.unwrap_or_else(|error| panic!("mount {}: {error}", at.display()));
}

/// Mounts an empty tmpfs.
#[track_caller]
pub fn tmpfs(at: &Path) {
    mount(Path::new("none"), at, "tmpfs");
}

/// Mounts a file or directory at another place.
#[track_caller]
pub fn bind(from: &Path, to: &Path) {
    let mounted = nix::mount::mount(Some(from), to, NOTHING, MsFlags::MS_BIND, NOTHING);
    mounted.unwrap_or_else(|error| panic!("bind {}: {error}", to.display()));
}

/// Takes off what is mounted at a place, which nobody uses.
#[track_caller]
pub fn unmount(at: &Path) {
    let off = umount2(at, MntFlags::UMOUNT_NOFOLLOW);
    off.unwrap_or_else(|error| panic!("umount {}: {error}", at.display()));
}

/// Takes off what is mounted at a place, if anything is, where a failure of its own would hide another.
pub fn try_unmount(at: &Path) {
    let _ = umount2(at, MntFlags::UMOUNT_NOFOLLOW);
}

/// Takes off what is mounted at and below a directory, the last first; what can't be is told. Of one that is in
/// use the place is freed all the same.
pub(crate) fn unmount_below(root: &Path) -> Vec<String> {
    let take_off = |mount: &PathBuf| {
        let off = umount2(mount, MntFlags::UMOUNT_NOFOLLOW)
            .or_else(|_| umount2(mount, MntFlags::UMOUNT_NOFOLLOW | MntFlags::MNT_DETACH));
        let error = off.err()?;
        Some(format!("umount {}: {error}", mount.display()))
    };
    let mounts = host::mounts_below(root);
    mounts.iter().rev().filter_map(take_off).collect()
}

/// Gives this thread a mount namespace of its own: what is mounted in it from here on, no one else
/// sees.
pub fn unshare_mounts() {
    unshare(CloneFlags::CLONE_NEWNS).expect("unshare(CLONE_NEWNS)");
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    nix::mount::mount(NOTHING, "/", NOTHING, private, NOTHING).expect("make / private");
}

/// Does `work`, and all that it starts, in such a namespace.
pub fn in_private_namespace<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let work = || {
        unshare_mounts();
        work()
    };
    thread::scope(|scope| scope.spawn(work).join()).unwrap_or_else(|panic| resume_unwind(panic))
}
