//! What the harness asks of the machine, and the host's mount table.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Once;

use nix::sys::stat::{major, minor};

use crate::node::WAIT_TIMEOUT;
use crate::wait_until;

/// Panics with what to do where tests can't run: they need root, and a cgroup layout that crun
/// takes.
pub fn check() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        assert!(
            nix::unistd::geteuid().is_root(),
            "the suites start containers: run them as root"
        );
        let mounts = mounts();
        let hybrid = mounts
            .iter()
            .any(|mount| mount.point == Path::new("/sys/fs/cgroup/unified"))
            && mounts.iter().any(|mount| mount.fstype == "cgroup");
        assert!(
            !hybrid,
            "crun refuses a hybrid cgroup mount. Run the suites with `make test`, or as\n\
             unshare --mount --propagation private sh tests/host-namespace.sh cargo nextest run …"
        );
    });
}

/// One line of a mountinfo file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// `major:minor`.
    pub device: String,
    /// The directory within the file system.
    pub root: PathBuf,
    /// Where it is mounted.
    pub point: PathBuf,
    /// The file system's name.
    pub fstype: String,
    /// What was mounted: a device, as it was named then.
    pub source: PathBuf,
    /// The whole line.
    pub line: String,
}

impl Mount {
    /// Parses a line of mountinfo (proc(5)).
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(2);
        let mut right = right.split(' ');
        Some(Self {
            device: left.next()?.to_owned(),
            root: unescape(left.next()?),
            point: unescape(left.next()?),
            fstype: right.next()?.to_owned(),
            source: unescape(right.next()?),
            line: line.to_owned(),
        })
    }

    /// Whether this is a mount of the file system on `device`, a block device's path.
    pub(crate) fn is_of(&self, device: &Device) -> bool {
        self.device == device.number || self.source == device.path
    }
}

/// A block device, by path and number.
#[derive(Debug, Clone)]
pub(crate) struct Device {
    path: PathBuf,
    number: String,
}

impl Device {
    pub(crate) fn of(path: &Path) -> Self {
        let number = fs::metadata(path)
            .unwrap_or_else(|error| panic!("stat {}: {error}", path.display()))
            .rdev();
        Self {
            path: path.to_owned(),
            number: format!("{}:{}", major(number), minor(number)),
        }
    }

    pub(crate) fn number(&self) -> &str {
        &self.number
    }
}

/// The host's mount table: that of the namespace which the tests run in.
pub fn mounts() -> Vec<Mount> {
    // Not thread-self: a thread that populates a volume has a namespace of its own.
    mounts_of("self")
}

/// The mount table that process `pid` sees; empty when there is no such process.
pub fn mounts_of(pid: impl std::fmt::Display) -> Vec<Mount> {
    let table = fs::read(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    String::from_utf8_lossy(&table)
        .lines()
        .filter_map(Mount::parse)
        .collect()
}

/// The mountpoints at and below `root`, in the order they were mounted.
pub fn mounts_below(root: &Path) -> Vec<PathBuf> {
    mounts()
        .into_iter()
        .map(|mount| mount.point)
        .filter(|point| point.starts_with(root))
        .collect()
}

/// The host's mounts of the file system on `device`, as lines of mountinfo. A deferred volume
/// must never be there.
pub fn mounts_of_device(device: &Path) -> Vec<String> {
    lines_of_device(mounts(), device)
}

/// The mounts among these of the file system on `device`, as lines of mountinfo.
pub fn lines_of_device(mounts: Vec<Mount>, device: &Path) -> Vec<String> {
    let device = Device::of(device);
    mounts
        .into_iter()
        .filter(|mount| mount.is_of(&device))
        .map(|mount| mount.line)
        .collect()
}

/// Whether nothing on the machine, in any mount namespace, holds a block device.
///
/// Somebody may look at it at the same moment as we do: a loop device's number was another test's
/// before, whose volume is unstaged by it. That isn't told apart by waiting, in which a mount
/// might end, but by asking the file systems.
pub fn is_free(device: &Path) -> bool {
    let mut free = false;
    wait_until("a look at a device to end", WAIT_TIMEOUT, || {
        free = opens_exclusively(device);
        free || has_file_system(device)
    });
    free
}

fn opens_exclusively(device: &Path) -> bool {
    // O_EXCL without O_CREAT, on a block device: EBUSY while it is mounted or claimed.
    let exclusive = nix::fcntl::OFlag::O_EXCL.bits();
    let mut options = File::options();
    options.read(true).custom_flags(exclusive);
    options.open(device).is_ok()
}

/// Whether a file system on the device is live, in whatever namespace: ext4 and xfs have a
/// directory of the device's name in sysfs then, and btrfs one of the file system's.
fn has_file_system(device: &Path) -> bool {
    let name = device.file_name().expect("a device's name");
    let live = |directory: PathBuf| directory.join(name).exists();
    let of_btrfs = fs::read_dir("/sys/fs/btrfs")
        .into_iter()
        .flatten()
        .flatten();
    ["ext4", "xfs"]
        .iter()
        .any(|fstype| live(Path::new("/sys/fs").join(fstype)))
        || of_btrfs.map(|entry| entry.path().join("devices")).any(live)
}

/// Undoes mountinfo's `\040`.
fn unescape(field: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        let octal = tail.get(..3).filter(|_| *first == b'\\');
        let code = octal
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            None => bytes.push(*first),
        }
    }
    OsString::from_vec(bytes).into()
}

/// The running kernel's version.
pub fn kernel() -> (u32, u32) {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("a release");
    let mut numbers = release.split(['.', '-']).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor),
        _ => panic!("{release:?} is no version"),
    }
}

/// Whether this kernel mounts a file system of a type, perhaps with a module that it loads for it.
pub fn kernel_mounts(fstype: &str) -> bool {
    let known = || {
        let list = fs::read_to_string("/proc/filesystems").unwrap_or_default();
        list.lines()
            .any(|line| line.split_whitespace().next_back() == Some(fstype))
    };
    // Not an error of ours where there is no modprobe.
    known() || {
        let _ = std::process::Command::new("modprobe").arg(fstype).output();
        known()
    }
}
