//! Queries about the machine, and the host's mount table.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Once;

use nix::sys::stat::{major, minor};

use crate::node::WAIT_TIMEOUT;
use crate::wait_until;

/// Panics with an instruction if tests can't run on this machine: they need root, and a cgroup layout that crun
/// accepts.
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

/// A line of a mountinfo file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// The device number as `major:minor`.
    pub device: String,
    /// The mount's root directory within the file system.
    pub root: PathBuf,
    /// The mount point.
    pub point: PathBuf,
    /// The file system's type.
    pub fstype: String,
    /// The source, such as the path of a device at the time of the mount.
    pub source: PathBuf,
    /// The whole line.
    pub line: String,
}

impl Mount {
    /// Parses a line of mountinfo (proc(5)).
    pub fn parse(line: &str) -> Option<Self> {
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

    /// Returns whether this is a mount of the file system on a block device.
    pub fn is_of(&self, device: &Device) -> bool {
        self.device == device.number || self.source == device.path
    }
}

/// The path and the number of a block device.
#[derive(Debug, Clone)]
pub struct Device {
    path: PathBuf,
    number: String,
}

impl Device {
    pub fn from_path(path: &Path) -> Self {
        let number = fs::metadata(path)
            .unwrap_or_else(|error| panic!("stat {}: {error}", path.display()))
            .rdev();
        Self {
            path: path.to_owned(),
            number: format!("{}:{}", major(number), minor(number)),
        }
    }

    pub fn number(&self) -> &str {
        &self.number
    }
}

/// Returns the host's mount table, which is that of the tests' mount namespace.
pub fn mounts() -> Vec<Mount> {
    // Not thread-self: a thread that fills a volume has its own mount namespace.
    mounts_of("self")
}

/// Returns the mount table of a process; empty if there is no such process.
pub fn mounts_of(pid: impl std::fmt::Display) -> Vec<Mount> {
    let table = fs::read(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    String::from_utf8_lossy(&table)
        .lines()
        .filter_map(Mount::parse)
        .collect()
}

/// Returns the mount points at and below `root`, in mount order.
pub fn mounts_below(root: &Path) -> Vec<PathBuf> {
    mounts()
        .into_iter()
        .map(|mount| mount.point)
        .filter(|point| point.starts_with(root))
        .collect()
}

/// Returns the host's mounts of the file system on a device, as lines of mountinfo. There must be none of a deferred
/// volume.
pub fn mounts_of_device(device: &Path) -> Vec<String> {
    lines_of_device(mounts(), device)
}

/// Returns which of the mounts are of the file system on a device, as lines of mountinfo.
pub fn lines_of_device(mounts: Vec<Mount>, device: &Path) -> Vec<String> {
    let device = Device::from_path(device);
    mounts
        .into_iter()
        .filter(|mount| mount.is_of(&device))
        .map(|mount| mount.line)
        .collect()
}

/// Returns whether nothing on the machine holds a block device, in any mount namespace.
///
/// Another process may have the device open for a moment: the number of a loop device may have been another test's,
/// whose unstage opens it. Waiting would not distinguish that from a mount that is about to end, so the file systems in
/// sysfs are checked as well.
pub fn is_free(device: &Path) -> bool {
    let mut free = false;
    wait_until("other processes to close a device", WAIT_TIMEOUT, || {
        free = opens_exclusively(device);
        free || has_file_system(device)
    });
    free
}

fn opens_exclusively(device: &Path) -> bool {
    // open(2): O_EXCL without O_CREAT fails with EBUSY while a block device is mounted or claimed.
    let exclusive = nix::fcntl::OFlag::O_EXCL.bits();
    let mut options = File::options();
    options.read(true).custom_flags(exclusive);
    options.open(device).is_ok()
}

/// Returns whether a file system on the device is mounted in any namespace. sysfs then has a directory named after the
/// device for ext4 and xfs, and one named after the file system for btrfs.
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

/// Decodes the octal escapes of mountinfo, such as `\040`.
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

/// Returns the version of the running kernel.
pub fn kernel() -> (u32, u32) {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("a release");
    let mut numbers = release.split(['.', '-']).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor),
        _ => panic!("{release:?} does not begin with a version"),
    }
}

/// Returns whether the kernel supports a file system. Loads its module if necessary.
pub fn kernel_mounts(fstype: &str) -> bool {
    let known = || {
        let list = fs::read_to_string("/proc/filesystems").unwrap_or_default();
        list.lines()
            .any(|line| line.split_whitespace().next_back() == Some(fstype))
    };
    // modprobe may be missing, which is no error.
    known() || {
        let _ = std::process::Command::new("modprobe").arg(fstype).output();
        known()
    }
}
