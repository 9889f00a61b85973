//! Real disks that a machine lends to tests, in place of loop devices.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};

use crate::host::{self, Device};
use crate::{Run, wait_until};

/// Where the machine's disks are named: `/dev/vdc:/dev/vdd`. What is on them is lost.
const DISKS: &str = "RUNCRUST_TEST_DISKS";

/// How long another test may keep one. With the time below, and the guest's slowness, this is less
/// than what nextest gives a test there: else nobody would read what was waited for.
const LOCK_TIMEOUT: Duration = Duration::from_secs(20);

/// How long the kernel may take to let go of one.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// An empty disk, this test's alone until it is dropped.
#[derive(Debug)]
pub struct Disk {
    path: PathBuf,
    number: String,
    _turn: Flock<File>,
}

impl Disk {
    /// The next disk that no other test has. A test takes one: two that each wait for a second one
    /// would wait for ever.
    pub fn take() -> Self {
        let disks = std::env::var_os(DISKS)
            .unwrap_or_else(|| panic!("{DISKS} names no disks; the guest has some: make vm-test"));
        let disks: Vec<PathBuf> = std::env::split_paths(&disks).collect();
        let mut taken = None;
        wait_until("a disk that no other test has", LOCK_TIMEOUT, || {
            taken = disks.iter().find_map(|path| Some((path, lock(path)?)));
            taken.is_some()
        });
        let (path, turn) = taken.expect("that was waited for");
        let disk = Self {
            number: Device::of(path).number().to_owned(),
            path: path.clone(),
            _turn: turn,
        };
        // Who had it last may have been killed: the kernel lets go of its mounts a little later.
        wait_until("the last user's end", RELEASE_TIMEOUT, || disk.is_free());
        let _ = Run::of(Command::new("wipefs").args(["--quiet", "--all"]).arg(path)).success();
        disk
    }

    /// `/dev/vdX`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `major:minor`.
    pub fn number(&self) -> &str {
        &self.number
    }

    /// Whether nothing on the machine, in any mount namespace, holds it.
    pub fn is_free(&self) -> bool {
        host::is_free(&self.path)
    }
}

/// The lock goes with the process, whatever ends it. The product locks no devices.
fn lock(disk: &Path) -> Option<Flock<File>> {
    let file = File::open(disk).unwrap_or_else(|error| panic!("{}: {error}", disk.display()));
    Flock::lock(file, FlockArg::LockExclusiveNonblock).ok()
}
