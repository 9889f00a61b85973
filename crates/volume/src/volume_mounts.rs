//! Finds the mounts of a volume in use from the host, without entering a namespace.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use crust_blockfs::bounded::{self, MAX_KERNEL_VALUE};
use crust_blockfs::openat2;
use crust_state::Process;
use crust_state::record::{UserKind, VolumeRecord};
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, open, openat};
use rustix::io::Errno;

use crust_blockfs::device_mounts::mount_id;
use crust_blockfs::mountinfo::{self, Mount, has_option};

/// The number of times that a process's mount table is read until its mount points can be opened. While the process is
/// being created, its `pivot_root` may change their paths in between.
const MAX_ATTEMPTS: u32 = 4;

/// A mount of the volume in the mount namespace of a live user. The descriptor keeps the file system busy.
#[derive(Debug)]
pub(super) struct VolumeMount {
    /// The root of the mount, opened with `O_PATH`: the volume's root, or a container's subPath.
    pub(super) root: OwnedFd,
    pub(super) mount: Mount,
}

impl VolumeMount {
    /// Returns true if this mount is writable. The superblock may be read-only nevertheless.
    pub(super) fn is_writable(&self) -> bool {
        !has_option(&self.mount.options, "ro")
    }

    /// Opens the root for reading, as [`open_directory_or_file`] does.
    pub(super) fn open(&self) -> Result<OwnedFd, Errno> {
        open_directory_or_file(&self.root)
    }
}

/// Opens the file of an `O_PATH` descriptor for reading. Fails with `ENOTDIR` unless it is a directory or a regular
/// file, because opening a device, FIFO or socket in a volume has side effects.
pub(super) fn open_directory_or_file(file: &OwnedFd) -> Result<OwnedFd, Errno> {
    let kind = FileType::from_raw_mode(fstat(file)?.st_mode);
    if !matches!(kind, FileType::Directory | FileType::RegularFile) {
        return Err(Errno::NOTDIR);
    }
    // Opened by the descriptor, so that it is the file whose type was checked.
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
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

/// Returns the children of a process.
pub(super) fn children(process: i32) -> Vec<i32> {
    let of_thread = |thread: i32| {
        let path = format!("/proc/{process}/task/{thread}/children");
        bounded::read_to_string(Path::new(&path), MAX_KERNEL_VALUE).unwrap_or_default()
    };
    let lists = threads(process).into_iter().map(of_thread);
    let all: Vec<String> = lists.collect();
    let pids = all.iter().flat_map(|list| list.split_ascii_whitespace());
    pids.filter_map(|pid| pid.parse().ok()).collect()
}

/// Finds the mounts of a volume in the namespaces of its live users. Sandboxes come first, because a container's mount
/// may be read-only.
pub(super) fn find(record: &VolumeRecord) -> impl Iterator<Item = VolumeMount> {
    let users_of_kind = |kind| record.users.iter().filter(move |user| user.kind == kind);
    let users = users_of_kind(UserKind::Sandbox).chain(users_of_kind(UserKind::Container));
    users.flat_map(|user| find_in_process(&user.process, record))
}

/// Finds the mounts of a volume's file system in a process's mount namespace. A container may control its own file
/// tree: paths are resolved within its root, and a mount is identified by its superblock and source.
fn find_in_process(process: &Process, record: &VolumeRecord) -> Vec<VolumeMount> {
    for _ in 0..MAX_ATTEMPTS {
        let Some(tree) = ProcessTree::read(process) else {
            break;
        };
        let mounts = record.find_mounts(&tree.mounts);
        if mounts.is_empty() {
            break;
        }
        // A mount that is hidden by another one can't be opened by its path.
        let found: Vec<_> = mounts
            .into_iter()
            .filter_map(|mount| tree.open(mount))
            .collect();
        if !found.is_empty() {
            return found;
        }
    }
    Vec::new()
}

/// The root and mount table of a process.
struct ProcessTree {
    root: OwnedFd,
    mounts: Vec<Mount>,
}

impl ProcessTree {
    /// Reads the root and mount table of a process; `None` if the process has ended.
    fn read(process: &Process) -> Option<Self> {
        // The first thread may have ended while others still run. A thread that has ended has no root and no mount
        // table any more.
        let tree = Self::read_thread(process.pid)
            .or_else(|| threads(process.pid).into_iter().find_map(Self::read_thread))?;
        // Checked last: if the process is alive now, its pid wasn't reused before.
        process.is_alive().then_some(tree)
    }

    fn read_thread(id: i32) -> Option<Self> {
        let root = format!("/proc/{id}/root");
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(CWD, root, flags, Mode::empty()).ok()?;
        let mounts = mountinfo::read(id).ok()?;
        Some(Self { root, mounts })
    }

    fn open(&self, mount: &Mount) -> Option<VolumeMount> {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let mount_point = mount.mount_point.as_path();
        let root = openat2::open(&self.root, mount_point, OFlags::PATH, resolve).ok()?;
        (mount_id(&root)? == mount.id).then(|| VolumeMount {
            root,
            mount: mount.clone(),
        })
    }
}
