//! Mounts that tests make, and mount namespaces where nobody else sees them.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::thread;

use nix::mount::MsFlags;
use nix::sched::{CloneFlags, unshare};

const NOTHING: Option<&str> = None;

/// Mounts a file system of a type.
///
/// # Panics
///
/// When it can't be.
#[track_caller]
pub fn mount(source: &Path, at: &Path, fstype: &str) {
    let mounted = nix::mount::mount(Some(source), at, Some(fstype), MsFlags::empty(), NOTHING);
    mounted.unwrap_or_else(|error| panic!("mount {}: {error}", at.display()));
}

/// Mounts an empty tmpfs.
///
/// # Panics
///
/// When it can't be.
#[track_caller]
pub fn tmpfs(at: &Path) {
    mount(Path::new("none"), at, "tmpfs");
}

/// Mounts a file or directory at another place.
///
/// # Panics
///
/// When it can't be.
#[track_caller]
pub fn bind(from: &Path, to: &Path) {
    let mounted = nix::mount::mount(Some(from), to, NOTHING, MsFlags::MS_BIND, NOTHING);
    mounted.unwrap_or_else(|error| panic!("bind {}: {error}", to.display()));
}

/// Gives this thread a mount namespace of its own: what is mounted in it from here on, no one else
/// sees.
///
/// # Panics
///
/// When there is none to be had.
pub fn leave_the_host() {
    unshare(CloneFlags::CLONE_NEWNS).expect("unshare(CLONE_NEWNS)");
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    nix::mount::mount(NOTHING, "/", NOTHING, private, NOTHING).expect("make / private");
}

/// Does `work`, and all that it starts, in such a namespace.
///
/// # Panics
///
/// When `work` does.
pub fn apart<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let work = || {
        leave_the_host();
        work()
    };
    thread::scope(|scope| scope.spawn(work).join()).unwrap_or_else(|panic| resume_unwind(panic))
}

/// A file system that never answers: whoever looks below its root waits until it is dropped.
#[derive(Debug)]
pub struct Hung {
    place: PathBuf,
    /// The kernel's requests, which nobody reads.
    requests: Option<File>,
}

impl Hung {
    /// Hides a directory with it.
    ///
    /// # Panics
    ///
    /// When it can't be mounted.
    #[track_caller]
    pub fn over(place: &Path) -> Self {
        let requests = File::options().read(true).write(true).open("/dev/fuse");
        let requests = requests.expect("/dev/fuse");
        let number = requests.as_raw_fd();
        let data = format!("fd={number},rootmode=40000,user_id=0,group_id=0");
        let (fstype, flags) = (Some("fuse"), MsFlags::empty());
        let mounted = nix::mount::mount(Some("hung"), place, fstype, flags, Some(&*data));
        mounted.unwrap_or_else(|error| panic!("mount {}: {error}", place.display()));
        Self {
            place: place.to_owned(),
            requests: Some(requests),
        }
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        // All that waits fails now.
        self.requests = None;
        let _ = nix::mount::umount2(&self.place, nix::mount::MntFlags::MNT_DETACH);
    }
}
