//! The transient namespace: where the delegate finds the volumes, and nobody else does.
//!
//! The runtime leaves the host's mount namespace for a copy of its own and execs the delegate in
//! it. In the copy, and only there, the attach directory holds a tmpfs with the volumes; the
//! container's mounts name them as ordinary bind sources. The copy ends with the delegate.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crust_blockfs::Deadline;
use crust_state::config::Attach;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxAttributes, StatxFlags, open, openat, statx};
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, UnmountFlags, move_mount, open_tree, unmount};

use crate::tmpfs;
use crust_blockfs::device_mounts::DeviceMounts;
use crust_blockfs::errno::Name;
use crust_blockfs::mountinfo::{MountInfoError, Table};
use crust_blockfs::subpath::Kind;
use crust_blockfs::sys;
use crust_blockfs::view::{self, DetachedMount, View, ViewError};

/// The error of attaching volumes for the delegate.
#[derive(Debug, thiserror::Error)]
#[error("{call}: {}", Name(*errno))]
pub struct AttachError {
    /// The call, with its arguments.
    pub call: String,
    /// The kernel's answer.
    pub errno: Errno,
}

fn failed(call: impl Into<String>) -> impl FnOnce(Errno) -> AttachError {
    let call = call.into();
    move |errno| AttachError { call, errno }
}

/// The error of making views for a container without a sandbox.
#[derive(Debug, thiserror::Error)]
pub enum ViewsError {
    /// It can't be mounted in the transient namespace.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// It can't be shown as the container wants it.
    #[error(transparent)]
    View(#[from] ViewError),
}

pub(crate) const ONTO: MoveMountFlags =
    MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH.union(MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH);

/// The name of the whole volume while views of it are taken; the views' names are numbers.
const WHOLE: &str = "volume";

/// The attach directory in the transient namespace.
#[derive(Debug)]
pub struct Attachments {
    tmpfs: OwnedFd,
    path: PathBuf,
    before: DeviceMounts,
    seen: Instant,
}

/// A mount that somebody else makes on the host after the table was read fails the create.
const RECENT: Duration = Duration::from_secs(1);

impl Attachments {
    /// Leaves the host's mount namespace for good and mounts the tmpfs on `directory`, which must
    /// exist.
    ///
    /// Propagation is left as it is: a Bidirectional mount of the same container must still reach
    /// the host. Only the tmpfs must not, so the mount P that holds the directory is made private
    /// for a moment, and put back into its peer group by way of a clone of it that never left
    /// (`MOVE_MOUNT_SET_GROUP`, Linux 5.15). Making everything a slave, as `unshare(1)` can, would
    /// cut the container's own mounts off.
    ///
    /// Where the directory was [held privately](hold_privately) there is nothing to put back.
    pub fn new(directory: &Path) -> Result<Self, AttachError> {
        sys::unshare_mount_namespace().map_err(failed("unshare(CLONE_NEWNS)"))?;
        let attach = open_directory(directory)?;
        let holder = root_of_mount(&attach)?;
        let seen = Instant::now();
        let before = Table::own().map_err(|error| unread(&error))?;
        let peer = if propagates(&holder, &before)? {
            let peer = open_tree(&holder, "", clone_flags());
            let peer = peer.map_err(failed("open_tree(P, CLONE)"))?;
            sys::set_propagation_private(&holder)
                .map_err(failed("mount_setattr(P, MS_PRIVATE)"))?;
            Some(peer)
        } else {
            None
        };
        let tmpfs = tmpfs::detached().map_err(failed("fsopen(\"tmpfs\")"))?;
        let named = format!("move_mount(tmpfs, {})", directory.display());
        move_mount(&tmpfs, "", &attach, "", ONTO).map_err(failed(named))?;
        if let Some(peer) = peer {
            let set_group = ONTO | MoveMountFlags::MOVE_MOUNT_SET_GROUP;
            move_mount(&peer, "", &holder, "", set_group)
                .map_err(failed("move_mount(clone of P, P, MOVE_MOUNT_SET_GROUP)"))?;
        }
        Ok(Self {
            tmpfs,
            path: directory.to_owned(),
            before: DeviceMounts::of(&before).map_err(|error| unread(&error))?,
            seen,
        })
    }

    /// Returns the mounts of the transient namespace before its delegate runs, as they were just before the turn of a
    /// volume: the one before it may have taken minutes.
    pub fn before(&mut self) -> Result<&DeviceMounts, AttachError> {
        if self.seen.elapsed() >= RECENT {
            self.seen = Instant::now();
            let before = Table::own().and_then(|table| DeviceMounts::of(&table));
            self.before = before.map_err(|error| unread(&error))?;
        }
        Ok(&self.before)
    }

    /// Views of a volume that is mounted nowhere: it is, here, while they are taken.
    pub fn views<'v>(
        &self,
        mount: &OwnedFd,
        views: impl ExactSizeIterator<Item = View<'v>>,
        deadline: Deadline,
    ) -> Result<Vec<DetachedMount>, ViewsError> {
        let path = self.path.join(WHOLE);
        let named = |call: &str| failed(format!("{call}({})", path.display()));
        match rustix::fs::mkdirat(&self.tmpfs, WHOLE, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(named("mkdir")(errno).into()),
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let place = openat(&self.tmpfs, WHOLE, flags, Mode::empty()).map_err(named("open"))?;
        views_at(&place, &path, mount, views, deadline)
    }

    /// Attaches a volume as `<directory>/<name>`.
    pub fn add(&self, name: &str, mount: &DetachedMount) -> Result<(), AttachError> {
        let path = self.path.join(name);
        let place = match mount.kind {
            Kind::Directory => {
                rustix::fs::mkdirat(&self.tmpfs, name, Mode::RWXU)
                    .map_err(failed(format!("mkdir({})", path.display())))?;
                OFlags::DIRECTORY
            }
            Kind::File => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                openat(&self.tmpfs, name, flags, Mode::RUSR)
                    .map_err(failed(format!("create({})", path.display())))?;
                OFlags::empty()
            }
        };
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC | place;
        let place = openat(&self.tmpfs, name, flags, Mode::empty())
            .map_err(failed(format!("open({})", path.display())))?;
        move_mount(&mount.fd, "", &place, "", ONTO)
            .map_err(failed(format!("move_mount(volume, {})", path.display())))?;
        sys::set_propagation_shared(&mount.fd).map_err(failed("mount_setattr(volume, MS_SHARED)"))
    }

    /// Covers the volumes with slave mounts of them, which the delegate will bind.
    ///
    /// The volumes themselves stay below, out of reach: each is the only member of its peer group, in
    /// this namespace alone. Whatever is copied from a slave is a slave of the same group, wherever it
    /// propagates to and whatever propagation the delegate gives its own mount afterwards:
    /// [`propagated`](crate::propagated) recognises copies on the host by their group. Nothing propagates in
    /// the other direction: a slave's mounts don't reach its master, and a container's mounts are private
    /// once this namespace has ended.
    pub fn cover(&self) -> Result<(), AttachError> {
        let flags = clone_flags() | OpenTreeFlags::AT_RECURSIVE;
        let slaves = open_tree(&self.tmpfs, "", flags);
        let slaves = slaves.map_err(failed("open_tree(attach, CLONE | RECURSIVE)"))?;
        sys::set_propagation_slave_recursively(&slaves)
            .map_err(failed("mount_setattr(attach, RECURSIVE, MS_SLAVE)"))?;
        let named = format!("move_mount(slaves, {})", self.path.display());
        move_mount(&slaves, "", &self.tmpfs, "", ONTO).map_err(failed(named))
    }
}

/// Views of a volume that is mounted nowhere: it is, on `place`, while they are taken. The caller
/// vouches that `path` is that place, and that nothing propagates from there.
pub(crate) fn views_at<'v>(
    place: &OwnedFd,
    path: &Path,
    mount: &OwnedFd,
    views: impl ExactSizeIterator<Item = View<'v>>,
    deadline: Deadline,
) -> Result<Vec<DetachedMount>, ViewsError> {
    let named = |call: &str| failed(format!("{call}({})", path.display()));
    move_mount(mount, "", place, "", ONTO).map_err(named("move_mount"))?;
    let taken = view::take_all(mount, views, deadline);
    // Whoever comes next in this namespace is to see the views alone.
    let gone = unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
    let taken = taken?;
    gone.map_err(named("umount2"))?;
    Ok(taken)
}

/// Whether the attach directory is to be [held privately](hold_privately).
#[must_use]
pub fn is_held_privately(how: Attach) -> bool {
    how == Attach::Bind || (how == Attach::Auto && !kernel_can_set_group())
}

/// Whether the kernel has `MOVE_MOUNT_SET_GROUP`: flags that it doesn't know are refused before the
/// descriptors are looked at.
fn kernel_can_set_group() -> bool {
    let set_group = MoveMountFlags::MOVE_MOUNT_SET_GROUP;
    move_mount(CWD, "", CWD, "", set_group) == Err(Errno::NOENT)
}

/// Makes the attach directory a private bind mount of itself in the host's namespace, where it
/// stays; that it is one already is fine. Two processes at once would make two.
pub fn hold_privately(directory: &Path) -> Result<(), AttachError> {
    let attach = open_directory(directory)?;
    let stat = statx(&attach, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)
        .map_err(failed("statx"))?;
    if stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) {
        // Private too, unless whoever made it was killed before that.
        return sys::set_propagation_private(&attach).map_err(failed("mount_setattr(MS_PRIVATE)"));
    }
    let bind = open_tree(&attach, "", clone_flags());
    let bind = bind.map_err(failed(format!("open_tree({}, CLONE)", directory.display())))?;
    sys::set_propagation_private(&bind).map_err(failed("mount_setattr(MS_PRIVATE)"))?;
    let named = format!("move_mount(bind, {})", directory.display());
    move_mount(&bind, "", &attach, "", ONTO).map_err(failed(named))?;
    // It came to be below a mount that may propagate, which makes it shared again.
    let attach = open_directory(directory)?;
    sys::set_propagation_private(&attach).map_err(failed("mount_setattr(MS_PRIVATE)"))
}

fn open_directory(directory: &Path) -> Result<OwnedFd, AttachError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let named = format!("open({})", directory.display());
    open(directory, flags, Mode::empty()).map_err(failed(named))
}

/// Whether a mount is in a peer group or a slave of one. Where it is neither there is nothing to
/// put back, and the kernel says EINVAL to it.
fn propagates(mount: &OwnedFd, table: &Table) -> Result<bool, AttachError> {
    let found = table.mount(identity(mount)?.mount);
    let found = found.map_err(|error| unread(&error))?;
    // One that isn't listed (in a chroot) may: too much is refused by the kernel, too little leaks.
    Ok(found.is_none_or(|mount| {
        mount.propagation.shared.is_some() || mount.propagation.master.is_some()
    }))
}

fn unread(error: &MountInfoError) -> AttachError {
    AttachError {
        call: error.to_string(),
        errno: Errno::IO,
    }
}

fn clone_flags() -> OpenTreeFlags {
    OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH
}

/// Climbs from a directory to the root of the mount that it is in. By descriptors: `/run` may be
/// mounted over, and only `..` leads to the mount that really is below.
fn root_of_mount(directory: &OwnedFd) -> Result<OwnedFd, AttachError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut here = openat(directory, ".", flags, Mode::empty()).map_err(failed("open(\".\")"))?;
    let mut place = identity(&here)?;
    loop {
        let parent = openat(&here, "..", flags, Mode::empty()).map_err(failed("open(\"..\")"))?;
        let above = identity(&parent)?;
        if above.mount != place.mount || above == place {
            return Ok(here);
        }
        here = parent;
        place = above;
    }
}

#[derive(PartialEq, Eq)]
struct Identity {
    mount: u64,
    inode: u64,
}

fn identity(directory: &OwnedFd) -> Result<Identity, AttachError> {
    let wanted = StatxFlags::MNT_ID | StatxFlags::INO;
    let stat = statx(directory, "", AtFlags::EMPTY_PATH, wanted).map_err(failed("statx"))?;
    Ok(Identity {
        mount: stat.stx_mnt_id,
        inode: stat.stx_ino,
    })
}
