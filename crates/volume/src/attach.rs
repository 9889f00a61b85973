//! Attaches volumes in the transient namespace, where only the delegate can see them.
//!
//! runcrust moves to a copy of the host's mount namespace and execs the delegate in it. In this copy alone, a tmpfs
//! with the volumes is mounted on the attach directory, and the container's mounts use them as ordinary bind sources.
//! The copy ends with the delegate.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crust_blockfs::Deadline;
use crust_state::config::AttachMode;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxAttributes, StatxFlags, open, openat, statx};
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, UnmountFlags, move_mount, open_tree, unmount};

use crate::tmpfs;
use crust_blockfs::device_mounts::DeviceMounts;
use crust_blockfs::errno::Name;
use crust_blockfs::mountinfo::{MountInfo, MountInfoError};
use crust_blockfs::subpath::MountPointType;
use crust_blockfs::sys;
use crust_blockfs::view::{self, DetachedMount, View, ViewError};

/// An error of attaching volumes for the delegate.
#[derive(Debug, thiserror::Error)]
#[error("{call}: {}", Name(*errno))]
pub struct AttachError {
    /// The failed call with its arguments, or the error of reading the mount table.
    pub call: String,
    pub errno: Errno,
}

fn failed(call: impl Into<String>) -> impl FnOnce(Errno) -> AttachError {
    let call = call.into();
    move |errno| AttachError { call, errno }
}

/// An error of making views of a volume that is mounted for one container alone.
#[derive(Debug, thiserror::Error)]
pub enum ViewsError {
    /// The volume can't be mounted while its views are taken.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// A view can't be made.
    #[error(transparent)]
    View(#[from] ViewError),
}

/// Flags of a `move_mount(2)` from one descriptor onto another.
pub(crate) const BETWEEN_FDS: MoveMountFlags =
    MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH.union(MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH);

/// The directory that a whole volume is mounted on while its views are taken. The views' own names are numbers.
const VOLUME_NAME: &str = "volume";

/// The attach directory in the transient namespace.
#[derive(Debug)]
pub struct AttachDirectory {
    tmpfs: OwnedFd,
    path: PathBuf,
    mounts_before: DeviceMounts,
    mounts_read_at: Instant,
}

/// The age at which the mount table is read again. It is short, because a mount of the device that appears on the host
/// after the table was read fails the create.
const MOUNTS_MAX_AGE: Duration = Duration::from_secs(1);

impl AttachDirectory {
    /// Moves this process to a copy of its mount namespace, for good, and mounts the tmpfs on `directory`, which must
    /// exist.
    ///
    /// The propagation of the other mounts stays the same, because a Bidirectional mount of the same container must
    /// still reach the host. The tmpfs must not. So the mount P that holds the directory is made private for a moment,
    /// and then rejoins its peer group through a clone of P that stayed in the group (`MOVE_MOUNT_SET_GROUP`,
    /// Linux 5.15). If all mounts were made slaves, as `unshare(1)` can, the container's own mounts couldn't reach the
    /// host.
    ///
    /// If the directory is a [private mount](make_private_mount) there is no peer group to rejoin.
    pub fn in_transient_namespace(directory: &Path) -> Result<Self, AttachError> {
        sys::unshare_mount_namespace().map_err(failed("unshare(CLONE_NEWNS)"))?;
        let attach = open_directory(directory)?;
        let parent = root_of_mount(&attach)?;
        let mounts_read_at = Instant::now();
        let table = MountInfo::read_own().map_err(|error| unreadable_mounts(&error))?;
        let peer = if propagates(&parent, &table)? {
            let peer = open_tree(&parent, "", clone_flags());
            let peer = peer.map_err(failed("open_tree(P, CLONE)"))?;
            sys::set_propagation_private(&parent)
                .map_err(failed("mount_setattr(P, MS_PRIVATE)"))?;
            Some(peer)
        } else {
            None
        };
        let tmpfs = tmpfs::detached().map_err(failed("fsopen(\"tmpfs\")"))?;
        let call = format!("move_mount(tmpfs, {})", directory.display());
        move_mount(&tmpfs, "", &attach, "", BETWEEN_FDS).map_err(failed(call))?;
        if let Some(peer) = peer {
            let set_group = BETWEEN_FDS | MoveMountFlags::MOVE_MOUNT_SET_GROUP;
            move_mount(&peer, "", &parent, "", set_group)
                .map_err(failed("move_mount(clone of P, P, MOVE_MOUNT_SET_GROUP)"))?;
        }
        Ok(Self {
            tmpfs,
            path: directory.to_owned(),
            mounts_before: DeviceMounts::from_table(&table)
                .map_err(|error| unreadable_mounts(&error))?,
            mounts_read_at,
        })
    }

    /// Returns the mounts of the transient namespace before the delegate runs. They are read again if they are older
    /// than a second, because mounting the previous volume may have taken minutes.
    pub fn mounts_before_delegate(&mut self) -> Result<&DeviceMounts, AttachError> {
        if self.mounts_read_at.elapsed() >= MOUNTS_MAX_AGE {
            self.mounts_read_at = Instant::now();
            let mounts = MountInfo::read_own().and_then(|table| DeviceMounts::from_table(&table));
            self.mounts_before = mounts.map_err(|error| unreadable_mounts(&error))?;
        }
        Ok(&self.mounts_before)
    }

    /// Takes views of a detached volume. It is mounted in the attach directory meanwhile.
    pub fn take_views<'v>(
        &self,
        mount: &OwnedFd,
        views: impl ExactSizeIterator<Item = View<'v>>,
        deadline: Deadline,
    ) -> Result<Vec<DetachedMount>, ViewsError> {
        let path = self.path.join(VOLUME_NAME);
        let failed_at_path = |call: &str| failed(format!("{call}({})", path.display()));
        match rustix::fs::mkdirat(&self.tmpfs, VOLUME_NAME, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(failed_at_path("mkdir")(errno).into()),
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mount_point = openat(&self.tmpfs, VOLUME_NAME, flags, Mode::empty())
            .map_err(failed_at_path("open"))?;
        take_views_at(&mount_point, &path, mount, views, deadline)
    }

    /// Attaches a view of a volume as `<directory>/<name>`.
    pub fn attach(&self, name: &str, mount: &DetachedMount) -> Result<(), AttachError> {
        let path = self.path.join(name);
        let directory_flag = match mount.kind {
            MountPointType::Directory => {
                rustix::fs::mkdirat(&self.tmpfs, name, Mode::RWXU)
                    .map_err(failed(format!("mkdir({})", path.display())))?;
                OFlags::DIRECTORY
            }
            MountPointType::File => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                openat(&self.tmpfs, name, flags, Mode::RUSR)
                    .map_err(failed(format!("create({})", path.display())))?;
                OFlags::empty()
            }
        };
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC | directory_flag;
        let mount_point = openat(&self.tmpfs, name, flags, Mode::empty())
            .map_err(failed(format!("open({})", path.display())))?;
        move_mount(&mount.fd, "", &mount_point, "", BETWEEN_FDS)
            .map_err(failed(format!("move_mount(volume, {})", path.display())))?;
        sys::set_propagation_shared(&mount.fd).map_err(failed("mount_setattr(volume, MS_SHARED)"))
    }

    /// Mounts slaves of the attached views over them. The delegate binds the slaves.
    ///
    /// The views themselves stay hidden below. Each is the only member of its peer group, which exists in this
    /// namespace alone. Every copy of a slave is a slave of the same group, wherever it propagates to and whatever
    /// propagation the delegate gives its own mount later: [`propagated_mounts`](crate::propagated_mounts) recognizes
    /// copies on the host by their group. Nothing propagates in the other direction: mounts on a slave don't reach its
    /// master, and a container's mounts are private once this namespace has ended.
    pub fn cover_with_slaves(&self) -> Result<(), AttachError> {
        let flags = clone_flags() | OpenTreeFlags::AT_RECURSIVE;
        let slaves = open_tree(&self.tmpfs, "", flags);
        let slaves = slaves.map_err(failed("open_tree(attach, CLONE | RECURSIVE)"))?;
        sys::set_propagation_slave_recursively(&slaves)
            .map_err(failed("mount_setattr(attach, RECURSIVE, MS_SLAVE)"))?;
        let call = format!("move_mount(slaves, {})", self.path.display());
        move_mount(&slaves, "", &self.tmpfs, "", BETWEEN_FDS).map_err(failed(call))
    }
}

/// Takes views of a detached volume, which is mounted on `mount_point` meanwhile.
///
/// The caller must ensure that `path` leads to `mount_point`, and that mounts on it don't propagate.
pub(crate) fn take_views_at<'v>(
    mount_point: &OwnedFd,
    path: &Path,
    mount: &OwnedFd,
    views: impl ExactSizeIterator<Item = View<'v>>,
    deadline: Deadline,
) -> Result<Vec<DetachedMount>, ViewsError> {
    let failed_at_path = |call: &str| failed(format!("{call}({})", path.display()));
    move_mount(mount, "", mount_point, "", BETWEEN_FDS).map_err(failed_at_path("move_mount"))?;
    let views = view::create_all(mount, views, deadline);
    // Unmounted even after an error, so that only the views can be seen in this namespace from now on.
    let unmounted = unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
    let views = views?;
    unmounted.map_err(failed_at_path("umount2"))?;
    Ok(views)
}

/// Returns true if the attach directory needs a [private mount](make_private_mount): it is configured so, or the kernel
/// lacks `MOVE_MOUNT_SET_GROUP`.
#[must_use]
pub fn needs_private_mount(setting: AttachMode) -> bool {
    setting == AttachMode::Bind || (setting == AttachMode::Auto && !kernel_can_set_group())
}

/// Returns true if the kernel has `MOVE_MOUNT_SET_GROUP`. The kernel rejects unknown flags before it resolves the empty
/// paths.
fn kernel_can_set_group() -> bool {
    let set_group = MoveMountFlags::MOVE_MOUNT_SET_GROUP;
    move_mount(CWD, "", CWD, "", set_group) == Err(Errno::NOENT)
}

/// Makes the attach directory a private bind mount of itself in the host's namespace. The mount stays there. Nothing is
/// mounted if the directory is the root of a mount already.
///
/// The caller must hold the attach lock: two processes at once would make two mounts.
pub fn make_private_mount(directory: &Path) -> Result<(), AttachError> {
    let attach = open_directory(directory)?;
    let stat = statx(&attach, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)
        .map_err(failed("statx"))?;
    if stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) {
        // The process that made the mount may have been killed before it made the mount private.
        return sys::set_propagation_private(&attach).map_err(failed("mount_setattr(MS_PRIVATE)"));
    }
    let bind = open_tree(&attach, "", clone_flags());
    let bind = bind.map_err(failed(format!("open_tree({}, CLONE)", directory.display())))?;
    sys::set_propagation_private(&bind).map_err(failed("mount_setattr(MS_PRIVATE)"))?;
    let call = format!("move_mount(bind, {})", directory.display());
    move_mount(&bind, "", &attach, "", BETWEEN_FDS).map_err(failed(call))?;
    // The bind mount has become shared again if the mount that it was attached to is shared.
    let attach = open_directory(directory)?;
    sys::set_propagation_private(&attach).map_err(failed("mount_setattr(MS_PRIVATE)"))
}

fn open_directory(directory: &Path) -> Result<OwnedFd, AttachError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let call = format!("open({})", directory.display());
    open(directory, flags, Mode::empty()).map_err(failed(call))
}

/// Returns true if a mount is in a peer group or is a slave of one. Otherwise it has no group to rejoin, and the kernel
/// would return EINVAL for the attempt.
fn propagates(mount: &OwnedFd, table: &MountInfo) -> Result<bool, AttachError> {
    let found = table.mount(identity(mount)?.mount);
    let found = found.map_err(|error| unreadable_mounts(&error))?;
    // A mount that isn't listed (in a chroot) may propagate. If `true` is wrong, a later call fails. If `false` were
    // wrong, the tmpfs would propagate to the host.
    Ok(found.is_none_or(|mount| {
        mount.propagation.shared.is_some() || mount.propagation.master.is_some()
    }))
}

fn unreadable_mounts(error: &MountInfoError) -> AttachError {
    AttachError {
        call: error.to_string(),
        errno: Errno::IO,
    }
}

fn clone_flags() -> OpenTreeFlags {
    OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH
}

/// Returns the root of the mount that a directory is in. It walks up by `..` and not by path, because a directory on
/// the path, such as `/run`, may have another mount over it.
fn root_of_mount(directory: &OwnedFd) -> Result<OwnedFd, AttachError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut current =
        openat(directory, ".", flags, Mode::empty()).map_err(failed("open(\".\")"))?;
    let mut current_identity = identity(&current)?;
    loop {
        let parent =
            openat(&current, "..", flags, Mode::empty()).map_err(failed("open(\"..\")"))?;
        let parent_identity = identity(&parent)?;
        if parent_identity.mount != current_identity.mount || parent_identity == current_identity {
            return Ok(current);
        }
        current = parent;
        current_identity = parent_identity;
    }
}

#[derive(PartialEq, Eq)]
struct DirectoryIdentity {
    mount: u64,
    inode: u64,
}

fn identity(directory: &OwnedFd) -> Result<DirectoryIdentity, AttachError> {
    let fields = StatxFlags::MNT_ID | StatxFlags::INO;
    let stat = statx(directory, "", AtFlags::EMPTY_PATH, fields).map_err(failed("statx"))?;
    Ok(DirectoryIdentity {
        mount: stat.stx_mnt_id,
        inode: stat.stx_ino,
    })
}
