//! Block devices: their identity, other devices with the same data, and whether they are in use.

mod aliases;
mod facts;
mod loop_device_cache;
mod sysfs;

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, major, minor, open};
use rustix::io::{Errno, pread, retry_on_intr};

pub use crate::{DeviceNumber, DiskSeq};
pub use aliases::{Aliases, DeviceIdentity};
pub use facts::DeviceFacts;
pub use loop_device_cache::{LoopDeviceCache, OwnerListVersion};

use crate::errno::{self, Name};
use crate::openat2;
use crate::sys::loops::{LoopStatus, loop_status};
use crate::timed_probe::ProbeError;

/// The mount point of sysfs, in which the kernel describes its devices (sysfs(5)).
const SYSFS: &str = "/sys";

/// A block device that a path led to. Later calls act on that device even if the path leads elsewhere by then. Clones
/// share the descriptor.
#[derive(Debug, Clone)]
pub struct Device {
    path: PathBuf,
    resolved: PathBuf,
    number: DeviceNumber,
    /// Opened with `O_PATH`, which holds the device node and not the device itself.
    node: Arc<OwnedFd>,
}

/// The error of a path that leads to no block device, or of a device that can't be examined.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The path is relative, so its meaning would depend on the working directory.
    #[error("device {path:?}: not an absolute path; hint: write the full path, such as /dev/sdb")]
    NotAbsolute {
        /// The path as it was given.
        path: PathBuf,
    },
    /// The path leads to nothing.
    #[error(
        "device {path:?}: ENOENT: there is no such device; \
         hint: check that it is attached to this node, and that udev has made its link if the path is a by-id name"
    )]
    Missing {
        /// The path as it was given.
        path: PathBuf,
    },
    /// The path can't be the path of a device.
    #[error("device {path:?}: {}: {}", Name(*errno), path_error(*errno))]
    Path {
        /// The path as it was given.
        path: PathBuf,
        /// ENOTDIR, ELOOP or ENAMETOOLONG.
        errno: Errno,
    },
    /// The path leads to another kind of file.
    #[error(
        "device {path:?}: ENOTBLK: {kind}, not a block device; \
         hint: attach an image file to a loop device (losetup --find --show) and use that"
    )]
    NotBlock {
        /// The path as it was given.
        path: PathBuf,
        /// The kind of file, with an article.
        kind: &'static str,
    },
    /// The kernel's name of a device leads to another device.
    #[error(
        "device {path:?}: has the number {found} instead of {expected}; hint: check that /dev is a devtmpfs"
    )]
    WrongNumber {
        /// The path in `/dev`, by the name that the kernel gives the device.
        path: PathBuf,
        /// The number of the device that the path leads to.
        found: DeviceNumber,
        /// The number of the device that the kernel gives this name.
        expected: DeviceNumber,
    },
    /// Another system call failed.
    #[error("device {path:?}: {call}: {}", Name(*errno))]
    Call {
        /// The path as it was given.
        path: PathBuf,
        /// The name of the system call.
        call: &'static str,
        /// The error of the call.
        errno: Errno,
    },
    /// A file that sysfs has for every block device is missing or malformed.
    #[error("device {number}: read {file:?}: {source}; hint: check that sysfs is mounted at /sys")]
    Sysfs {
        /// The number of the device that the file is about.
        number: DeviceNumber,
        /// The file in sysfs.
        file: PathBuf,
        /// The error of reading the file; `InvalidData` if its contents are malformed.
        source: std::io::Error,
    },
    /// The kernel's list of disks can't be read.
    #[error(
        "loop devices can't be listed: read {file:?}: {source}; hint: check that proc is mounted at /proc"
    )]
    UnreadableDiskList {
        /// The file with the list.
        file: PathBuf,
        /// The error of opening or reading the file.
        source: std::io::Error,
    },
    /// The file of a loop device is on a file system that doesn't respond.
    #[error(
        "loop device {0}: its backing file is unknown, because the file system of that file doesn't respond; \
         hint: find the path of the file with losetup(8)"
    )]
    Unresponsive(DeviceNumber),
    /// Loop devices can't be probed.
    #[error("loop devices on the same data can't be found: {0}")]
    Probe(ProbeError),
}

impl Device {
    /// Finds the device that `path` leads to, following symbolic links (`/dev/disk/by-id/…`). The path must be
    /// absolute. Reads nothing from the device and doesn't hold it.
    ///
    /// The path is trusted to lead to the right device: `crust_ops` checked it when the volume was staged, or root
    /// wrote it.
    pub fn open(path: &Path) -> Result<Self, DeviceError> {
        if !path.is_absolute() {
            return Err(DeviceError::NotAbsolute { path: path.into() });
        }
        let failed = |call| {
            move |errno| DeviceError::Call {
                path: path.into(),
                call,
                errno,
            }
        };
        // Most paths contain no link. Then the path is resolved already, and a readlink(2) is saved.
        let without_links = is_normal(path)
            .then(|| openat2::open(CWD, path, OFlags::PATH, ResolveFlags::NO_SYMLINKS))
            .and_then(Result::ok);
        let is_resolved = without_links.is_some();
        let opened = without_links.map_or_else(
            || open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()),
            Ok,
        );
        let node = match opened {
            Ok(node) => node,
            Err(Errno::NOENT) => return Err(DeviceError::Missing { path: path.into() }),
            Err(errno @ (Errno::NOTDIR | Errno::LOOP | Errno::NAMETOOLONG)) => {
                let path = path.into();
                return Err(DeviceError::Path { path, errno });
            }
            Err(errno) => return Err(failed("open")(errno)),
        };
        let stat = fstat(&node).map_err(failed("fstat"))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind != FileType::BlockDevice {
            return Err(DeviceError::NotBlock {
                path: path.into(),
                kind: kind_name(kind),
            });
        }
        let resolved = if is_resolved {
            path.to_owned()
        } else {
            std::fs::read_link(own_fd_path(&node))
                .map_err(|error| failed("readlink")(errno::from_io_error(&error)))?
        };
        Ok(Self {
            path: path.into(),
            resolved,
            number: DeviceNumber::new(major(stat.st_rdev), minor(stat.st_rdev)),
            node: Arc::new(node),
        })
    }

    /// Finds the device with this number; `None` if the kernel has no such device. Uses sysfs, because not every node
    /// has udev's `/dev/block`.
    pub fn find_by_number(number: DeviceNumber) -> Result<Option<Self>, DeviceError> {
        let Some(name) = sysfs::name(Path::new(SYSFS), number)? else {
            return Ok(None);
        };
        let path = Path::new("/dev").join(name);
        let device = Self::open(&path)?;
        if device.number == number {
            return Ok(Some(device));
        }
        Err(DeviceError::WrongNumber {
            path,
            found: device.number,
            expected: number,
        })
    }

    /// Returns the path as it was given.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path without symbolic links, as it was when the device was found.
    #[must_use]
    pub fn resolved_path(&self) -> &Path {
        &self.resolved
    }

    /// Returns the device number.
    #[must_use]
    pub fn number(&self) -> DeviceNumber {
        self.number
    }

    /// Returns whether the device refuses writes (`blockdev --setro`, `losetup --read-only`).
    pub fn is_read_only(&self) -> Result<bool, DeviceError> {
        sysfs::is_read_only(Path::new(SYSFS), self.number)
    }

    /// Returns the device's current size in bytes.
    pub fn size(&self) -> Result<u64, DeviceError> {
        sysfs::size(Path::new(SYSFS), self.number)
    }

    /// Returns the sequence number of the disk; `None` before Linux 5.15. A partition has the number of its disk.
    pub fn disk_seq(&self) -> Result<Option<DiskSeq>, DeviceError> {
        sysfs::disk_seq(Path::new(SYSFS), self.number)
    }

    /// Returns whether the device is claimed exclusively: by a mount in any namespace, device mapper, md, swap, or an
    /// open with `O_EXCL` (open(2)).
    ///
    /// The claim of this call ends when it returns. To keep other processes of runcrust away, hold the volume's lock.
    pub fn is_held_exclusively(&self) -> Result<bool, DeviceError> {
        match self.open_for_reading(OFlags::EXCL) {
            Ok(_) => Ok(false),
            Err(Errno::BUSY) => Ok(true),
            Err(errno) => Err(DeviceError::Call {
                path: self.path.clone(),
                call: "open(O_EXCL)",
                errno,
            }),
        }
    }

    /// Returns whether sysfs lists a device that lies on this one and claims it: device mapper, md, bcache.
    pub fn has_holders(&self) -> Result<bool, DeviceError> {
        sysfs::has_holders(Path::new(SYSFS), self.number)
    }

    /// Returns the loop devices whose backing file has this name, in any directory. Doesn't access the files, so it
    /// can't hang on them.
    pub(crate) fn loop_devices_by_file_name(name: &OsStr) -> Result<Vec<Self>, DeviceError> {
        let found =
            sysfs::with_file_name(Path::new(SYSFS), sysfs::loop_devices()?, name)?.into_iter();
        let opened = found.filter_map(|number| Self::find_by_number(number).transpose());
        opened.collect()
    }

    /// Returns the path of a loop device's backing file, as sysfs shows it; `None` if no file is attached.
    pub(crate) fn backing_file(&self) -> Result<Option<PathBuf>, DeviceError> {
        sysfs::backing_file(Path::new(SYSFS), self.number)
    }

    /// Opens the device itself for reading, without blocking (`O_NONBLOCK`). It can't be detached while the descriptor
    /// is open.
    pub fn open_for_reading(&self, flags: OFlags) -> Result<OwnedFd, Errno> {
        // Closing a descriptor that was open for writing would cause a "change" event of udev.
        self.open_node(flags | OFlags::RDONLY)
    }

    /// Opens the device itself for reading and writing, as [`open_for_reading`](Self::open_for_reading) does.
    pub(crate) fn open_for_writing(&self, flags: OFlags) -> Result<OwnedFd, Errno> {
        self.open_node(flags | OFlags::RDWR)
    }

    /// Opens the device through the node that was found, whatever the path leads to now.
    fn open_node(&self, flags: OFlags) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK;
        retry_on_intr(|| open(own_fd_path(&self.node), flags, Mode::empty()))
    }
}

impl AsFd for Device {
    /// Borrows the descriptor of the device node, which is open with `O_PATH`.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.node.as_fd()
    }
}

/// Returns whether the kernel has a block device with this number.
pub fn exists(number: DeviceNumber) -> Result<bool, DeviceError> {
    Ok(sysfs::name(Path::new(SYSFS), number)?.is_some())
}

/// Returns the status of a loop device, as the device itself reports it; `None` if no file is attached, or if the
/// device can't be reached from this process.
fn read_loop_status(number: DeviceNumber) -> Result<Option<LoopStatus>, DeviceError> {
    let device = match Device::find_by_number(number) {
        Ok(Some(device)) => device,
        // A container's `/dev` may lack the device node.
        Ok(None) | Err(DeviceError::Missing { .. } | DeviceError::WrongNumber { .. }) => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let opened = device.open_for_reading(OFlags::empty());
    loop_status_of_opened(&device, opened.as_ref().map_err(|errno| *errno))
}

/// Returns the status of a loop device, as [`read_loop_status`] does. `opened` is the result of opening it.
fn loop_status_of_opened(
    device: &Device,
    opened: Result<&OwnedFd, Errno>,
) -> Result<Option<LoopStatus>, DeviceError> {
    let status = match opened {
        Ok(opened) => loop_status(opened).map_err(|errno| ("ioctl(LOOP_GET_STATUS64)", errno)),
        Err(errno) => Err(("open", errno)),
    };
    match status {
        Ok(status) => Ok(Some(status)),
        // These errors are about this process or the node. Any other error is about the device, or about the file
        // system of its backing file.
        Err((call, errno @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::INTR))) => {
            let path = device.path.clone();
            Err(DeviceError::Call { path, call, errno })
        }
        Err(_) => Ok(None),
    }
}

/// Fills `buffer` from a device or an image, starting at `offset` in bytes. Returns false if the device ends before the
/// buffer is full.
pub(crate) fn read_at(
    device: impl AsFd,
    mut buffer: &mut [u8],
    mut offset: u64,
) -> Result<bool, Errno> {
    while !buffer.is_empty() {
        match retry_on_intr(|| pread(device.as_fd(), &mut *buffer, offset))? {
            0 => return Ok(false),
            read => {
                buffer = &mut buffer[read..];
                offset += read as u64;
            }
        }
    }
    Ok(true)
}

/// Returns whether an absolute path has no empty component and neither `.` nor `..`.
fn is_normal(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    let mut names = bytes.split(|byte| *byte == b'/').skip(1);
    names.all(|name| !matches!(name, b"" | b"." | b".."))
}

/// Returns the cause and the hint of [`DeviceError::Path`].
fn path_error(errno: Errno) -> &'static str {
    match errno {
        Errno::NOTDIR => {
            "a component of the path is not a directory; hint: write the device's path without a trailing / \
             and without anything after it"
        }
        Errno::LOOP => {
            "its symbolic links form a circle, or there are too many of them; hint: write the path of the device \
             that they should lead to"
        }
        _ => {
            "the path, or a name in it, is too long; hint: make a symbolic link with a shorter path"
        }
    }
}

pub(crate) fn own_fd_path(fd: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// Returns the name of a kind of file, with an article.
pub(crate) fn kind_name(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "a file",
        FileType::Directory => "a directory",
        FileType::Symlink => "a symbolic link",
        FileType::Fifo => "a named pipe",
        FileType::Socket => "a socket",
        FileType::CharacterDevice => "a character device",
        FileType::BlockDevice => "a block device",
        FileType::Unknown => "something unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(path: &str) -> String {
        Device::open(Path::new(path))
            .expect_err("not a block device")
            .to_string()
    }

    #[test]
    fn another_file_than_a_block_device_is_refused_with_a_reason() {
        for (path, start) in [
            ("loop0", "device \"loop0\": not an absolute path"),
            (
                "/dev/no-such-device",
                "device \"/dev/no-such-device\": ENOENT: ",
            ),
            (
                "/dev/null",
                "device \"/dev/null\": ENOTBLK: a character device, ",
            ),
            ("/dev", "device \"/dev\": ENOTBLK: a directory, "),
            (
                "/proc/self/exe",
                "device \"/proc/self/exe\": ENOTBLK: a file, ",
            ),
            (
                "/proc/self/exe/x",
                "device \"/proc/self/exe/x\": ENOTDIR: a component of the path",
            ),
            (
                "/dev/null/",
                "device \"/dev/null/\": ENOTDIR: a component of the path",
            ),
        ] {
            let error = error(path);
            assert!(error.starts_with(start), "{error}");
        }
        let long = error(&format!("/dev/{}", "x".repeat(256)));
        assert!(long.contains("ENAMETOOLONG: the path, or a name"), "{long}");
        let directory = tempfile::tempdir().unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&link, &link).unwrap();
        let circle = error(link.to_str().unwrap());
        assert!(circle.contains("ELOOP: its symbolic links"), "{circle}");
    }
}
