//! Real disks that a machine provides for tests instead of loop devices.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};

use crate::host::{self, Device};
use crate::{Run, wait_until};

/// The variable that lists the disks, such as `/dev/vdc:/dev/vdd`. Their content is lost.
const DISKS: &str = "RUNCRUST_TEST_DISKS";

/// The longest time that another test may hold a disk. Together with [`RELEASE_TIMEOUT`] and the guest's slowness this
/// is shorter than nextest's limit for a test, so that a timeout is reported.
const LOCK_TIMEOUT: Duration = Duration::from_secs(20);

/// The longest time that the kernel may take to release a disk.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// An empty disk that no other test uses until this is dropped.
#[derive(Debug)]
pub struct Disk {
    path: PathBuf,
    number: String,
    _lock: Flock<File>,
}

impl Disk {
    /// Takes a disk that no other test holds. A test may take only one, because two tests that each wait for a second
    /// disk would wait forever. Panics if the machine provides no disks, or if none becomes free in time.
    pub fn take() -> Self {
        let disks = std::env::var_os(DISKS)
            .unwrap_or_else(|| panic!("{DISKS} is not set; the guest has disks: make vm-test"));
        let disks: Vec<PathBuf> = std::env::split_paths(&disks).collect();
        let mut taken = None;
        wait_until("a disk that no other test has", LOCK_TIMEOUT, || {
            taken = disks.iter().find_map(|path| Some((path, lock(path)?)));
            taken.is_some()
        });
        let (path, lock) = taken.expect("a disk was locked");
        let disk = Self {
            number: Device::from_path(path).number().to_owned(),
            path: path.clone(),
            _lock: lock,
        };
        // The last user may have been killed, and the kernel releases its mounts a little later.
        wait_until(
            "the release of a disk by its last user",
            RELEASE_TIMEOUT,
            || disk.is_free(),
        );
        let _ = Run::capture(Command::new("wipefs").args(["--quiet", "--all"]).arg(path)).success();
        disk
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the device number as `major:minor`.
    pub fn number(&self) -> &str {
        &self.number
    }

    /// Returns whether nothing on the machine holds the disk, in any mount namespace.
    pub fn is_free(&self) -> bool {
        host::is_free(&self.path)
    }
}

/// Locks a disk. The lock ends with the process. The product itself does not lock devices.
fn lock(disk: &Path) -> Option<Flock<File>> {
    let file = File::open(disk).unwrap_or_else(|error| panic!("{}: {error}", disk.display()));
    Flock::lock(file, FlockArg::LockExclusiveNonblock).ok()
}
