//! The mounts of a volume in use, found from the host without entering a namespace.

use std::os::fd::{AsRawFd, OwnedFd};

use crust_blockfs::{DeviceNumber, openat2};
use crust_state::Process;
use crust_state::record::{UserKind, VolumeRecord};
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, open, openat};
use rustix::io::Errno;

use crust_blockfs::device_mounts::{is_on, mount_id};
use crust_blockfs::mountinfo::{self, Mount, has_option};

/// How often a process's mounts are read anew when the places that they name aren't there. While
/// it is being created they are below the bundle's root, until it pivots.
const PIVOTS: u32 = 4;

/// A mount of the volume that a live user has. The file system is kept busy as long as this value lives.
#[derive(Debug)]
pub(super) struct VolumeMount {
    /// The volume's root or what a container's subPath leads to; `O_PATH`.
    pub(super) root: OwnedFd,
    /// The mount.
    pub(super) mount: Mount,
}

impl VolumeMount {
    /// Whether this mount can be written to, whatever the superblock can.
    pub(super) fn is_writable(&self) -> bool {
        !has_option(&self.mount.options, "ro")
    }

    /// Opens what `root` names for reading. Only a directory or a regular file: opening anything
    /// else in a volume means something else.
    pub(super) fn open(&self) -> Result<OwnedFd, Errno> {
        open_directory_or_file(&self.root)
    }
}

/// Opens what a descriptor names, as [`VolumeMount::open`] does.
pub(super) fn open_directory_or_file(named: &OwnedFd) -> Result<OwnedFd, Errno> {
    let kind = FileType::from_raw_mode(fstat(named)?.st_mode);
    if !matches!(kind, FileType::Directory | FileType::RegularFile) {
        return Err(Errno::NOTDIR);
    }
    // By the descriptor, so that it is what was looked at.
    let path = format!("/proc/self/fd/{}", named.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    open(path, flags, Mode::empty())
}

fn threads(process: i32) -> Vec<i32> {
    let Ok(listing) = std::fs::read_dir(format!("/proc/{process}/task")) else {
        return Vec::new();
    };
    let names = listing.flatten().map(|entry| entry.file_name());
    names
        .filter_map(|name| name.to_str()?.parse().ok())
        .collect()
}

/// The places where live users have a volume mounted, the sandboxes' first: what a container sees
/// may be read-only.
pub(super) fn find(record: &VolumeRecord) -> impl Iterator<Item = VolumeMount> {
    let of = |kind| record.users.iter().filter(move |user| user.kind == kind);
    let users = of(UserKind::Sandbox).chain(of(UserKind::Container));
    users.flat_map(|user| of_process(&user.process, record.device))
}

/// The mounts of a device's file system that a process sees. A container's tree is its own work:
/// nothing in it leads out, and a mount is believed only by its device.
fn of_process(process: &Process, device: DeviceNumber) -> Vec<VolumeMount> {
    for _ in 0..PIVOTS {
        let Some(tree) = Tree::of(process) else {
            break;
        };
        let there = tree.mounts.iter().filter(|mount| is_on(mount, device));
        let mut there = there.peekable();
        if there.peek().is_none() {
            break;
        }
        // What has been mounted over can't be opened by its path.
        let found: Vec<_> = there.filter_map(|mount| tree.open(mount)).collect();
        if !found.is_empty() {
            return found;
        }
    }
    Vec::new()
}

/// A process's file system.
struct Tree {
    root: OwnedFd,
    mounts: Vec<Mount>,
}

impl Tree {
    /// `None` when the process has ended.
    fn of(process: &Process) -> Option<Self> {
        // A thread that ended before the others has no tree any more, the first one's included.
        let tree = Self::of_thread(process.pid)
            .or_else(|| threads(process.pid).into_iter().find_map(Self::of_thread))?;
        // Asked last: until here the pid was this process's.
        process.is_alive().then_some(tree)
    }

    fn of_thread(id: i32) -> Option<Self> {
        let root = format!("/proc/{id}/root");
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(CWD, root, flags, Mode::empty()).ok()?;
        let mounts = mountinfo::read(id).ok()?;
        Some(Self { root, mounts })
    }

    fn open(&self, mount: &Mount) -> Option<VolumeMount> {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let place = mount.mount_point.as_path();
        let root = openat2::open(&self.root, place, OFlags::PATH, resolve).ok()?;
        (mount_id(&root)? == mount.id).then(|| VolumeMount {
            root,
            mount: mount.clone(),
        })
    }
}
