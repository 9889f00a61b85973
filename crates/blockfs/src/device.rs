//! Block devices: their identity, other devices with the same bytes, and whether they are in use.

mod aliases;
mod facts;
mod neighbours;
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
pub use neighbours::{Neighbours, Revision};

use crate::errno::{self, Name};
use crate::openat2;
use crate::sys::loops::{LoopStatus, loop_status};
use crate::timed_probe::ProbeError;

/// The directory where the kernel describes its devices (sysfs(5)).
const SYSFS: &str = "/sys";

/// A block device, found once: later calls act on what was found, whatever becomes of the path. Clones share the
/// descriptor.
#[derive(Debug, Clone)]
pub struct Device {
    path: PathBuf,
    resolved: PathBuf,
    number: DeviceNumber,
    /// `O_PATH`: it holds the node, not the device, which stays free for others.
    node: Arc<OwnedFd>,
}

/// The error of a path that leads to no block device, or of a device that can't be examined.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The path is relative: whose current directory would it be?
    #[error("device {path:?}: not an absolute path; hint: write /dev/…")]
    NotAbsolute {
        /// The path as it was given.
        path: PathBuf,
    },
    /// There is nothing there.
    #[error(
        "device {path:?}: ENOENT: there is no such device; \
         hint: is it attached to this node? a by-id name appears with udev"
    )]
    Missing {
        /// The path as it was given.
        path: PathBuf,
    },
    /// No device has such a path.
    #[error("device {path:?}: {}: {}", Name(*errno), in_words(*errno))]
    Path {
        /// The path as it was given.
        path: PathBuf,
        /// ENOTDIR, ELOOP or ENAMETOOLONG.
        errno: Errno,
    },
    /// It is something else.
    #[error(
        "device {path:?}: ENOTBLK: {kind}, not a block device; \
         hint: an image file needs a loop device (losetup --find --show)"
    )]
    NotBlock {
        /// The path as it was given.
        path: PathBuf,
        /// The kind of file that it is, with an article.
        kind: &'static str,
    },
    /// The path is another device's.
    #[error("device {path:?}: is {found} instead of {expected}; hint: is /dev a devtmpfs?")]
    Other {
        /// The path by the name that the kernel gives the device.
        path: PathBuf,
        /// The number that was found.
        found: DeviceNumber,
        /// The number that was expected.
        expected: DeviceNumber,
    },
    /// A system call failed otherwise.
    #[error("device {path:?}: {call}: {}", Name(*errno))]
    Call {
        /// The path as it was given.
        path: PathBuf,
        /// The call.
        call: &'static str,
        /// The error number.
        errno: Errno,
    },
    /// sysfs doesn't have what it has for every block device.
    #[error("device {number}: read {file:?}: {source}; hint: is sysfs mounted at /sys?")]
    Sysfs {
        /// The device's number.
        number: DeviceNumber,
        /// The file in sysfs.
        file: PathBuf,
        /// The error; `InvalidData` if the contents aren't as expected.
        source: std::io::Error,
    },
    /// The kernel's list of disks can't be read.
    #[error(
        "loop devices can't be listed: read {file:?}: {source}; hint: is proc mounted at /proc?"
    )]
    Unlisted {
        /// The list.
        file: PathBuf,
        /// The error.
        source: std::io::Error,
    },
    /// A loop device's file is on a file system that hangs.
    #[error(
        "device {0}: what it shows can't be told: its file doesn't answer; hint: which file that is, losetup tells"
    )]
    Silent(DeviceNumber),
    /// It can't be told what loop devices show.
    #[error("loop devices that may show the same can't be looked at: {0}")]
    Probe(ProbeError),
}

impl Device {
    /// Finds the device at `path`, which must be absolute; symbolic links (`/dev/disk/by-id/…`) are
    /// followed. Nothing is read from the device, and it isn't kept from anybody.
    ///
    /// The path is vouched for by whoever staged the volume (`crust_ops` checks it; root wrote it).
    pub fn open(path: &Path) -> Result<Self, DeviceError> {
        if !path.is_absolute() {
            return Err(DeviceError::NotAbsolute { path: path.into() });
        }
        let call = |call| {
            move |errno| DeviceError::Call {
                path: path.into(),
                call,
                errno,
            }
        };
        // Most are named plainly, and then the name is where it leads.
        let plain = is_normal(path)
            .then(|| openat2::open(CWD, path, OFlags::PATH, ResolveFlags::NO_SYMLINKS))
            .and_then(Result::ok);
        let is_plain = plain.is_some();
        let opened = plain.map_or_else(
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
            Err(errno) => return Err(call("open")(errno)),
        };
        let stat = fstat(&node).map_err(call("fstat"))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind != FileType::BlockDevice {
            return Err(DeviceError::NotBlock {
                path: path.into(),
                kind: kind_name(kind),
            });
        }
        let resolved = if is_plain {
            path.to_owned()
        } else {
            std::fs::read_link(own_fd_path(&node))
                .map_err(|error| call("readlink")(errno::of(&error)))?
        };
        Ok(Self {
            path: path.into(),
            resolved,
            number: DeviceNumber::new(major(stat.st_rdev), minor(stat.st_rdev)),
            node: Arc::new(node),
        })
    }

    /// Finds the device that the kernel knows by a number; `None` when there is none (any more).
    /// By sysfs: udev's `/dev/block` isn't on every node.
    pub fn of_number(number: DeviceNumber) -> Result<Option<Self>, DeviceError> {
        let Some(name) = sysfs::name(Path::new(SYSFS), number)? else {
            return Ok(None);
        };
        let path = Path::new("/dev").join(name);
        let device = Self::open(&path)?;
        if device.number == number {
            return Ok(Some(device));
        }
        Err(DeviceError::Other {
            path,
            found: device.number,
            expected: number,
        })
    }

    /// The path as it was given.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path with its symbolic links followed, as it was when the device was found.
    #[must_use]
    pub fn resolved_path(&self) -> &Path {
        &self.resolved
    }

    /// Major and minor number.
    #[must_use]
    pub fn number(&self) -> DeviceNumber {
        self.number
    }

    /// Whether the device refuses writes (`blockdev --setro`, `losetup --read-only`).
    pub fn is_read_only(&self) -> Result<bool, DeviceError> {
        sysfs::is_read_only(Path::new(SYSFS), self.number)
    }

    /// How many bytes it has now, as far as the kernel knows.
    pub fn size(&self) -> Result<u64, DeviceError> {
        sysfs::size(Path::new(SYSFS), self.number)
    }

    /// Returns the sequence number of the disk among all that the kernel has created; `None` if the kernel doesn't tell
    /// it (before Linux 5.15). A partition has its disk's.
    pub fn disk_seq(&self) -> Result<Option<DiskSeq>, DeviceError> {
        sysfs::disk_seq(Path::new(SYSFS), self.number)
    }

    /// Whether somebody has the device for itself: a mount in whatever namespace, device mapper,
    /// md, swap, or an `O_EXCL` open (open(2)). A look, not a claim: hold the volume's lock.
    pub fn in_use_exclusively(&self) -> Result<bool, DeviceError> {
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

    /// Whether other devices lie on it and have it for themselves, by sysfs: device mapper, md, bcache.
    pub fn has_holders(&self) -> Result<bool, DeviceError> {
        sysfs::has_holders(Path::new(SYSFS), self.number)
    }

    /// The loop devices whose file has this name, wherever it is. None of their files is asked.
    pub(crate) fn loops_named(name: &OsStr) -> Result<Vec<Self>, DeviceError> {
        let named = sysfs::named(Path::new(SYSFS), sysfs::loops()?, name)?.into_iter();
        let opened = named.filter_map(|number| Self::of_number(number).transpose());
        opened.collect()
    }

    /// The path of a loop device's file, as the kernel tells it; `None` when it shows nothing (any more).
    pub(crate) fn backing_file(&self) -> Result<Option<PathBuf>, DeviceError> {
        sysfs::backing_file(Path::new(SYSFS), self.number)
    }

    /// Opens the device itself, read-only, without waiting for it. While the descriptor is open
    /// the device can't be detached.
    pub fn open_for_reading(&self, flags: OFlags) -> Result<OwnedFd, Errno> {
        // Opening for reading only makes no udev "change" event when it is closed again.
        self.open_node(flags | OFlags::RDONLY)
    }

    /// The same for writing.
    pub(crate) fn open_for_writing(&self, flags: OFlags) -> Result<OwnedFd, Errno> {
        self.open_node(flags | OFlags::RDWR)
    }

    /// Through the node, so that it is the device that was found.
    fn open_node(&self, flags: OFlags) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK;
        retry_on_intr(|| open(own_fd_path(&self.node), flags, Mode::empty()))
    }
}

impl AsFd for Device {
    /// The node, `O_PATH`.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.node.as_fd()
    }
}

/// Returns whether the kernel has a block device of this number.
pub fn exists(number: DeviceNumber) -> Result<bool, DeviceError> {
    Ok(sysfs::name(Path::new(SYSFS), number)?.is_some())
}

/// Returns the status of a loop device, as the device itself returns it; `None` if it can't be asked from here, or has
/// no file any more.
fn shown_by(number: DeviceNumber) -> Result<Option<LoopStatus>, DeviceError> {
    let device = match Device::of_number(number) {
        Ok(Some(device)) => device,
        // In a container `/dev` may lack it.
        Ok(None) | Err(DeviceError::Missing { .. } | DeviceError::Other { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    let opened = device.open_for_reading(OFlags::empty());
    shown_by_opened(&device, opened.as_ref().map_err(|errno| *errno))
}

/// The same of a device that was to be opened.
fn shown_by_opened(
    device: &Device,
    opened: Result<&OwnedFd, Errno>,
) -> Result<Option<LoopStatus>, DeviceError> {
    let status = match opened {
        Ok(opened) => loop_status(opened).map_err(|errno| ("ioctl(LOOP_GET_STATUS64)", errno)),
        Err(errno) => Err(("open", errno)),
    };
    match status {
        Ok(status) => Ok(Some(status)),
        // The others are the device's, or its file system's.
        Err((call, errno @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::INTR))) => {
            let path = device.path.clone();
            Err(DeviceError::Call { path, call, errno })
        }
        Err(_) => Ok(None),
    }
}

/// Fills a buffer with what a device or an image has from an offset on, in bytes; false if it ends before.
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

/// Whether an absolute path has no other spelling without its links.
fn is_normal(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    let mut names = bytes.split(|byte| *byte == b'/').skip(1);
    names.all(|name| !matches!(name, b"" | b"." | b".."))
}

/// Returns the cause of an errno of a path, with the next step.
fn in_words(errno: Errno) -> &'static str {
    match errno {
        Errno::NOTDIR => {
            "something on the way isn't a directory; hint: give the device's path without a / at \
             its end, and without what follows it"
        }
        Errno::LOOP => {
            "its symbolic links lead in a circle, or are too many; hint: give what they are to lead to"
        }
        _ => "it, or a name in it, is longer than paths can be; hint: a link can shorten it",
    }
}

pub(crate) fn own_fd_path(fd: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// With an article, for sentences.
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
    fn what_is_not_a_block_device_is_refused_with_what_it_is() {
        for (path, start) in [
            ("loop0", "device \"loop0\": not an absolute path"),
            (
                "/dev/there-is-none",
                "device \"/dev/there-is-none\": ENOENT: ",
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
                "device \"/proc/self/exe/x\": ENOTDIR: something on the way",
            ),
            (
                "/dev/null/",
                "device \"/dev/null/\": ENOTDIR: something on the way",
            ),
        ] {
            let error = error(path);
            assert!(error.starts_with(start), "{error}");
        }
        let long = error(&format!("/dev/{}", "x".repeat(256)));
        assert!(long.contains("ENAMETOOLONG: it, or a name"), "{long}");
        let directory = tempfile::tempdir().unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&link, &link).unwrap();
        let circle = error(link.to_str().unwrap());
        assert!(circle.contains("ELOOP: its symbolic links"), "{circle}");
    }
}
