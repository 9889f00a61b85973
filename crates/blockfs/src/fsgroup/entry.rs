//! System calls on the entries of a directory, by descriptors.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    Access, AtFlags, CWD, Gid, Mode, OFlags, PROC_SUPER_MAGIC, ResolveFlags, Statx,
    StatxAttributes, StatxFlags, accessat, chmodat, chownat, fstatfs, openat, statx,
};
use rustix::io::Errno;
use rustix::path::DecInt;

use super::change::{self, AttributeChange, EntryAttributes};
use super::error::{FsGroupError, PROC_DESCRIPTORS};
use super::progress::EntryOutcome;
use crate::openat2;
use crate::sys;

/// The way to change the mode of the file that an `O_PATH` descriptor refers to.
#[derive(Debug)]
pub(super) enum ModeSetter {
    /// Calls fchmodat2(2), which Linux has since 6.6.
    Direct,
    /// Calls fchmodat(2) on the descriptor's link in this directory, [`PROC_DESCRIPTORS`].
    Links(OwnedFd),
}

/// The name of a failed call and its error.
pub(super) type FailedCall = (&'static str, Errno);

/// The major and minor number of `st_dev`, and `st_ino`.
pub(super) type InodeId = (u32, u32, u64);

/// The attributes of an entry, as statx(2) returned them.
#[derive(Debug, Clone, Copy)]
pub(super) struct EntryStat {
    pub(super) attributes: EntryAttributes,
    pub(super) identity: InodeId,
    /// Id of the entry's mount.
    pub(super) mount: u64,
    /// Whether the entry has several hard links. Another worker may then find it under another name.
    pub(super) has_other_links: bool,
    /// Creation time in seconds and nanoseconds; `None` if the file system doesn't record it.
    pub(super) created: Option<(i64, u32)>,
    /// Whether the entry is immutable or append-only (chattr(1)).
    is_immutable: bool,
}

/// Flags with which a lookup fails at symbolic links, at other mounts, and outside of the directory.
const RESOLVE_BELOW: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);
/// Flags for listing a directory without changing its access time, as backup programs do.
const LIST_DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOATIME);

/// Opens a directory for listing. `name` is a name in `directory`, or a path of several names.
pub(super) fn open_directory(directory: impl AsFd, name: &CStr) -> Result<OwnedFd, Errno> {
    openat2::open(directory, name, LIST_DIRECTORY, RESOLVE_BELOW)
}

/// Opens an entry of any type with `O_PATH`. That doesn't open a device, and doesn't wait for a named pipe.
pub(super) fn open_handle(directory: impl AsFd, name: &CStr) -> Result<OwnedFd, Errno> {
    openat2::open(
        directory,
        name,
        OFlags::PATH | OFlags::NOFOLLOW,
        RESOLVE_BELOW,
    )
}

/// Returns true if a directory is on a read-only mount, file system or btrfs subvolume. access(2) checks all three
/// (`sb_permission` and `btrfs_permission` in the kernel).
pub(super) fn is_read_only(directory: impl AsFd) -> bool {
    let access = accessat(directory, c".", Access::WRITE_OK, AtFlags::EACCESS);
    access == Err(Errno::ROFS)
}

/// Returns the attributes of `name` in `directory`, or of `directory` itself if the name is empty.
pub(super) fn stat(directory: impl AsFd, name: &CStr) -> Result<EntryStat, Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::EMPTY_PATH;
    let mask = StatxFlags::TYPE
        | StatxFlags::MODE
        | StatxFlags::GID
        | StatxFlags::NLINK
        | StatxFlags::INO
        | StatxFlags::BTIME
        | StatxFlags::MNT_ID;
    let stat = rustix::io::retry_on_intr(|| statx(directory.as_fd(), name, flags, mask))?;
    Ok(EntryStat::from(&stat))
}

impl From<&Statx> for EntryStat {
    fn from(stat: &Statx) -> Self {
        Self {
            attributes: EntryAttributes::new(u32::from(stat.stx_mode), stat.stx_gid),
            identity: (stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino),
            mount: stat.stx_mnt_id,
            has_other_links: stat.stx_nlink > 1,
            created: (stat.stx_mask & StatxFlags::BTIME.bits() != 0)
                .then_some((stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec)),
            is_immutable: stat
                .stx_attributes
                .intersects(StatxAttributes::IMMUTABLE | StatxAttributes::APPEND),
        }
    }
}

impl ModeSetter {
    pub(super) fn new() -> Result<Self, FsGroupError> {
        if sys::has_set_mode() {
            return Ok(Self::Direct);
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(CWD, PROC_DESCRIPTORS, flags, Mode::empty());
        Self::from_links(directory.map_err(|errno| FsGroupError::NoProcfs { errno: Some(errno) })?)
    }

    /// Makes a setter from the open directory [`PROC_DESCRIPTORS`]. All threads that share descriptors with the calling
    /// thread can use it until the calling thread ends.
    ///
    /// Fails if the directory isn't on a procfs: on another file system the paths below it could lead anywhere, and
    /// the chmod would follow them.
    fn from_links(directory: OwnedFd) -> Result<Self, FsGroupError> {
        let stat = fstatfs(&directory);
        let stat = stat.map_err(|errno| FsGroupError::NoProcfs { errno: Some(errno) })?;
        if stat.f_type == PROC_SUPER_MAGIC {
            Ok(Self::Links(directory))
        } else {
            Err(FsGroupError::NoProcfs { errno: None })
        }
    }

    /// Changes the group and the mode of the file behind `entry` if needed. `stat` must be that file's attributes.
    pub(super) fn apply_group(
        &self,
        entry: BorrowedFd<'_>,
        stat: &EntryStat,
        group: u32,
    ) -> Result<EntryOutcome, FailedCall> {
        let Some(change) = change::needed(&stat.attributes, group) else {
            return Ok(EntryOutcome::Matches);
        };
        match self.change(entry, change, group) {
            Ok(()) => Ok(EntryOutcome::Changed),
            Err((_, Errno::PERM)) if stat.is_immutable => Ok(EntryOutcome::Immutable),
            Err(failure) => Err(failure),
        }
    }

    fn change(
        &self,
        entry: BorrowedFd<'_>,
        change: AttributeChange,
        group: u32,
    ) -> Result<(), FailedCall> {
        if change.chown {
            let group = Some(Gid::from_raw(group));
            chownat(entry, c"", None, group, AtFlags::EMPTY_PATH)
                .map_err(|errno| ("fchownat", errno))?;
        }
        match change.chmod {
            Some(mode) => self.set_mode(entry, mode),
            None => Ok(()),
        }
    }

    fn set_mode(&self, entry: BorrowedFd<'_>, mode: u32) -> Result<(), FailedCall> {
        match self {
            Self::Direct => sys::set_mode(entry, mode).map_err(|errno| ("fchmodat2", errno)),
            Self::Links(directory) => {
                // The magic link leads to exactly this inode, which isn't a symbolic link.
                let link = DecInt::from_fd(entry);
                let mode = Mode::from_raw_mode(mode);
                chmodat(directory, link, mode, AtFlags::empty())
                    .map_err(|errno| ("fchmodat", errno))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn another_file_system_on_proc_is_reported_as_the_nodes_error() {
        let directory = tempfile::tempdir().expect("a directory");
        let directory = File::open(directory.path()).expect("the directory opens");
        let error = ModeSetter::from_links(directory.into()).expect_err("the directory is refused");
        assert!(
            matches!(error, FsGroupError::NoProcfs { errno: None }),
            "{error}"
        );
        let message = error.to_string();
        assert!(message.contains("mount a procfs on /proc"), "{message}");
        for wrong in ["shut down", "repair", "e2fsck"] {
            assert!(!message.contains(wrong), "{message}");
        }
        let descriptors = File::open(PROC_DESCRIPTORS).expect("the directory opens");
        assert!(matches!(
            ModeSetter::from_links(descriptors.into()),
            Ok(ModeSetter::Links(_))
        ));
    }
}
