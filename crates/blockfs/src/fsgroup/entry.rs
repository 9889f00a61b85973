//! System calls on the entries of a directory, by descriptors.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    Access, AtFlags, CWD, Gid, Mode, OFlags, PROC_SUPER_MAGIC, ResolveFlags, Statx,
    StatxAttributes, StatxFlags, accessat, chmodat, chownat, fstatfs, openat, statx,
};
use rustix::io::Errno;
use rustix::path::DecInt;

use super::change::{self, Change, EntryAttributes};
use super::error::{FsGroupError, PROC_DESCRIPTORS};
use super::progress::EntryOutcome;
use crate::openat2;
use crate::sys;

/// The way to change the mode of what an `O_PATH` descriptor refers to.
#[derive(Debug)]
pub(super) enum ModeSetter {
    /// Calls fchmodat2(2), since Linux 6.6.
    Direct,
    /// Calls fchmodat(2) on the descriptor's link in this directory, the descriptors of this process.
    Links(OwnedFd),
}

/// A call and why it failed.
pub(super) type FailedCall = (&'static str, Errno);

/// `st_dev`, its two numbers, and `st_ino`.
pub(super) type InodeId = (u32, u32, u64);

/// The attributes of an entry, as statx(2) returned them.
#[derive(Debug, Clone, Copy)]
pub(super) struct EntryStat {
    pub(super) attributes: EntryAttributes,
    pub(super) identity: InodeId,
    /// The id of its mount.
    pub(super) mount: u64,
    /// Whether it has another hard link, by which another worker may reach it.
    pub(super) linked: bool,
    /// Creation time in seconds and nanoseconds; `None` if the file system doesn't record it.
    pub(super) born: Option<(i64, u32)>,
    /// chattr +i or +a.
    frozen: bool,
}

/// Fails at symbolic links and other mounts, and outside of the directory.
const DOWN: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);
/// For listing a directory, without changing its access time, as backups do.
const LISTING: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOATIME);

/// Opens a directory for listing: `name` below `directory`, or a path of such names.
pub(super) fn open_directory(directory: impl AsFd, name: &CStr) -> Result<OwnedFd, Errno> {
    openat2::open(directory, name, LISTING, DOWN)
}

/// A handle on an entry of any kind, which opens nothing: not a device, not a named pipe.
pub(super) fn open_handle(directory: impl AsFd, name: &CStr) -> Result<OwnedFd, Errno> {
    openat2::open(directory, name, OFlags::PATH | OFlags::NOFOLLOW, DOWN)
}

/// Whether a directory is on a read-only mount, file system or btrfs subvolume. access(2) checks all
/// three (`sb_permission` and `btrfs_permission` in the kernel).
pub(super) fn is_read_only(directory: impl AsFd) -> bool {
    let writable = accessat(directory, c".", Access::WRITE_OK, AtFlags::EACCESS);
    writable == Err(Errno::ROFS)
}

/// Looks at `name` in `directory`, or with an empty name at `directory` itself.
pub(super) fn look(directory: impl AsFd, name: &CStr) -> Result<EntryStat, Errno> {
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
            linked: stat.stx_nlink > 1,
            born: (stat.stx_mask & StatxFlags::BTIME.bits() != 0)
                .then_some((stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec)),
            frozen: stat
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
        Self::links(directory.map_err(|errno| FsGroupError::NoProcfs { errno: Some(errno) })?)
    }

    /// Takes the open directory [`PROC_DESCRIPTORS`]. It can be used by all threads that share descriptors
    /// with the calling thread, until that ends. Fails if it isn't on a procfs: a path below something else would
    /// be a chmod of anything.
    fn links(directory: OwnedFd) -> Result<Self, FsGroupError> {
        let stat = fstatfs(&directory);
        let stat = stat.map_err(|errno| FsGroupError::NoProcfs { errno: Some(errno) })?;
        if stat.f_type == PROC_SUPER_MAGIC {
            Ok(Self::Links(directory))
        } else {
            Err(FsGroupError::NoProcfs { errno: None })
        }
    }

    /// Changes what `entry` refers to where `look`, a look at just that, says it is needed.
    pub(super) fn touch(
        &self,
        entry: BorrowedFd<'_>,
        look: &EntryStat,
        group: u32,
    ) -> Result<EntryOutcome, FailedCall> {
        let Some(change) = change::needed(&look.attributes, group) else {
            return Ok(EntryOutcome::Right);
        };
        match self.change(entry, change, group) {
            Ok(()) => Ok(EntryOutcome::Changed),
            Err((_, Errno::PERM)) if look.frozen => Ok(EntryOutcome::Immutable),
            Err(failure) => Err(failure),
        }
    }

    fn change(&self, entry: BorrowedFd<'_>, change: Change, group: u32) -> Result<(), FailedCall> {
        if change.chown {
            let group = Some(Gid::from_raw(group));
            chownat(entry, c"", None, group, AtFlags::EMPTY_PATH)
                .map_err(|errno| ("fchownat", errno))?;
        }
        match change.chmod {
            Some(mode) => self.set(entry, mode),
            None => Ok(()),
        }
    }

    fn set(&self, entry: BorrowedFd<'_>, mode: u32) -> Result<(), FailedCall> {
        match self {
            Self::Direct => sys::set_mode(entry, mode).map_err(|errno| ("fchmodat2", errno)),
            Self::Links(directory) => {
                // Follows the magic link to just this inode, which isn't a symbolic link.
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
    fn another_file_system_on_proc_is_no_failure_of_the_volume() {
        let directory = tempfile::tempdir().expect("a directory");
        let directory = File::open(directory.path()).expect("it opens");
        let error = ModeSetter::links(directory.into()).expect_err("it is refused");
        assert!(
            matches!(error, FsGroupError::NoProcfs { errno: None }),
            "{error}"
        );
        let sentence = error.to_string();
        assert!(sentence.contains("mount a procfs on /proc"), "{sentence}");
        for wrong in ["shut down", "repair", "e2fsck"] {
            assert!(!sentence.contains(wrong), "{sentence}");
        }
        let own = File::open(PROC_DESCRIPTORS).expect("it opens");
        assert!(matches!(
            ModeSetter::links(own.into()),
            Ok(ModeSetter::Links(_))
        ));
    }
}
