//! The walk as a whole: the state that its workers share, and the change of the root at the end.

use std::ffi::CStr;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{SeekFrom, fstat, fstatfs};
use rustix::io::Errno;

use super::change::{self, EntryAttributes};
use super::directory::{Directory, OpenDirectory};
use super::distinct_entries::{DistinctEntries, RepeatedListing};
use super::entry::{self, EntryStat, FailedCall, ModeSetter};
use super::error::FsGroupError;
use super::pool::{HaltReason, WorkerPool};
use super::progress::{EntryCounts, EntryOutcome};
use crate::device::DeviceFacts;
use crate::fstypes::{self, InodeAttributes, InodeCheck};

/// Maximum number of unchangeable entries that are named in the log.
const MAX_LOGGED: u64 = 10;

/// Number of locks for files with several hard links.
const LINKED_LOCKS: usize = 64;

/// A callback that decides whether the walk continues, given the counts so far. It is called on the caller's thread.
pub(super) type ContinueCheck<'a> = &'a mut dyn FnMut(&EntryCounts) -> ControlFlow<()>;

pub(super) struct Walk {
    pub(super) group: u32,
    pub(super) root: OpenDirectory,
    pub(super) pool: WorkerPool,
    /// Id of the mount that is walked. Other mounts aren't entered.
    mount: u64,
    mode_setter: ModeSetter,
    /// Locks for files with several hard links. The inode number selects the lock.
    linked_locks: [Mutex<()>; LINKED_LOCKS],
    /// Number of unchangeable entries so far.
    unchangeable: AtomicU64,
    /// Time at which the walk began, comparable with `EntryStat::created`.
    start: (i64, u32),
    /// Counter of the entries that were listed in this pass.
    listed: DistinctEntries,
    /// Path of the first directory that was moved away while this pass was below it.
    moved_directory: Mutex<Option<PathBuf>>,
    /// Whether this pass changed an entry that is older than the walk, or found a listed directory gone.
    needs_another_pass: AtomicBool,
}

impl Walk {
    pub(super) fn new(root: BorrowedFd<'_>, group: u32) -> Result<Self, FsGroupError> {
        let failed = |(call, errno): FailedCall| FsGroupError::Call {
            call,
            path: PathBuf::new(),
            errno,
        };
        let mode_setter = ModeSetter::new()?;
        // Opened again, because the caller's descriptor may be O_PATH. If it isn't, listing would move its offset.
        let root = entry::open_directory(root, c".").map_err(|errno| failed(("openat2", errno)))?;
        let stat = entry::stat(&root, c"").map_err(|errno| failed(("statx", errno)))?;
        Ok(Self {
            group,
            root: OpenDirectory {
                directory: Arc::new(Directory::root(stat.identity)),
                descriptor: Arc::new(root),
            },
            pool: WorkerPool::default(),
            mount: stat.mount,
            mode_setter,
            linked_locks: [const { Mutex::new(()) }; LINKED_LOCKS],
            unchangeable: AtomicU64::new(0),
            start: now(),
            listed: DistinctEntries::default(),
            moved_directory: Mutex::default(),
            needs_another_pass: AtomicBool::new(false),
        })
    }

    /// Returns true if the volume's root is read-only.
    pub(super) fn is_read_only(&self) -> bool {
        entry::is_read_only(&self.root.descriptor)
    }

    /// Resets the state of the previous pass. All workers must have ended.
    pub(super) fn begin_pass(&mut self) -> Result<(), FsGroupError> {
        let rewound = rustix::fs::seek(&self.root.descriptor, SeekFrom::Start(0));
        rewound.map_err(|errno| call_error(&self.root.directory, None, ("lseek", errno)))?;
        self.pool.begin_pass();
        self.listed = DistinctEntries::default();
        self.moved_directory = Mutex::default();
        self.needs_another_pass = AtomicBool::new(false);
        Ok(())
    }

    /// Counts entries that were listed in a directory. Fails if the same entries are listed over and over.
    pub(super) fn count_listed<'n>(
        &self,
        directory: &Directory,
        names: impl Iterator<Item = &'n [u8]>,
    ) -> Result<(), FsGroupError> {
        self.listed
            .count_listed(directory.identity, names)
            .map_err(|repeated| {
                let RepeatedListing { listed, distinct } = repeated;
                FsGroupError::RepeatedEntries { listed, distinct }
            })
    }

    /// Records that a directory was moved away. Only another pass finds its contents.
    pub(super) fn record_moved_directory(&self, path: PathBuf) {
        let moved = self.moved_directory.lock();
        let mut moved = moved.unwrap_or_else(PoisonError::into_inner);
        moved.get_or_insert(path);
    }

    /// Returns the path of the first directory that was moved away during this pass.
    pub(super) fn moved_directory(&self) -> Option<PathBuf> {
        let moved = self.moved_directory.lock();
        moved.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records that a listed directory couldn't be entered because it is gone. It was removed, or moved, perhaps to a
    /// directory that this pass has already visited.
    pub(super) fn record_missing_directory(&self) {
        self.needs_another_pass.store(true, Ordering::Relaxed);
    }

    /// Returns true if this pass found a listed directory gone, or changed an entry that is older than the walk. Newer
    /// entries don't count: their owner chose their mode when creating them.
    pub(super) fn needs_another_pass(&self) -> bool {
        self.needs_another_pass.load(Ordering::Relaxed)
    }

    pub(super) fn root_attributes(&self) -> Result<EntryAttributes, FsGroupError> {
        Ok(self.stat_root()?.attributes)
    }

    /// Reads the file system's inode tables. Returns the number of inodes in use if all of them already have the group
    /// and the mode, and `None` if the walk is needed.
    ///
    /// Also returns `None` if `check_continue` ends the reading. The walk then calls it again, and stops too.
    pub(super) fn count_matching_inodes(
        &self,
        device: &DeviceFacts,
        check_continue: ContinueCheck<'_>,
    ) -> Option<u64> {
        let root = self.root.descriptor.as_fd();
        let may_continue = || check_continue(&EntryCounts::default()).is_continue();
        count_matching_inodes(root, device, self.group, may_continue)
    }

    /// Ends the walk by changing the root, and returns the counts. All workers must have ended.
    pub(super) fn end(
        &self,
        check_continue: ContinueCheck<'_>,
    ) -> Result<EntryCounts, FsGroupError> {
        let below = self.pool.end();
        let counts = below.and_then(|counts| self.change_root(counts, check_continue));
        counts.map_err(|(halt, counts)| match halt {
            HaltReason::Stopped => FsGroupError::Stopped {
                group: self.group,
                counts,
            },
            HaltReason::Failed(error) => error,
        })
    }

    fn change_root(
        &self,
        mut counts: EntryCounts,
        check_continue: ContinueCheck<'_>,
    ) -> Result<EntryCounts, (HaltReason, EntryCounts)> {
        if check_continue(&counts).is_break() {
            return Err((HaltReason::Stopped, counts));
        }
        let outcome = self.stat_root().and_then(|stat| {
            let OpenDirectory {
                directory,
                descriptor,
            } = &self.root;
            self.apply_group(descriptor.as_fd(), &stat, directory, None)
        });
        counts.count(outcome.map_err(|error| (error.into(), counts))?);
        Ok(counts)
    }

    fn stat_root(&self) -> Result<EntryStat, FsGroupError> {
        let stat = entry::stat(&self.root.descriptor, c"");
        stat.map_err(|errno| call_error(&self.root.directory, None, ("statx", errno)))
    }

    /// Returns true if an entry is on the volume's mount, and not on another mount on top of it.
    pub(super) fn is_on_this_mount(&self, stat: &EntryStat) -> bool {
        stat.mount == self.mount
    }

    /// Returns true if an entry is in another subvolume of a btrfs than the root. All subvolumes are on one mount, but
    /// each has its own `st_dev`.
    fn is_in_another_subvolume(&self, stat: &EntryStat) -> bool {
        let (root, entry) = (self.root.directory.identity, stat.identity);
        (root.0, root.1) != (entry.0, entry.1)
    }

    /// Locks a file with several hard links, so that no other worker changes it at the same time.
    ///
    /// Between another worker's chown and chmod the file lacks its setuid bit. A worker that computes the mode in this
    /// moment would clear the bit for good.
    pub(super) fn lock_linked_file(&self, file: &EntryStat) -> MutexGuard<'_, ()> {
        let (.., inode) = file.identity;
        let index = usize::try_from(inode).unwrap_or_default() % LINKED_LOCKS;
        let guard = self.linked_locks[index].lock();
        guard.unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the group and the mode of the file behind `entry` if needed. The file is `directory`, or `name` in it.
    pub(super) fn apply_group(
        &self,
        entry: BorrowedFd<'_>,
        stat: &EntryStat,
        directory: &Directory,
        name: Option<&CStr>,
    ) -> Result<EntryOutcome, FsGroupError> {
        let outcome = match self.mode_setter.apply_group(entry, stat, self.group) {
            // A read-only snapshot on a writable volume. kubelet logs it and continues. If the whole file system became
            // read-only meanwhile, the change of the root fails.
            Err((_, Errno::ROFS)) if self.is_in_another_subvolume(stat) => EntryOutcome::ReadOnly,
            applied => applied.map_err(|failure| call_error(directory, name, failure))?,
        };
        if outcome == EntryOutcome::Changed
            && stat.created.is_none_or(|created| created < self.start)
        {
            self.needs_another_pass.store(true, Ordering::Relaxed);
        }
        if matches!(outcome, EntryOutcome::Immutable | EntryOutcome::ReadOnly) {
            self.log_unchangeable(outcome, directory, name);
        }
        Ok(outcome)
    }

    /// Logs an entry that can't be changed. Only the first few are logged, as examples for an operator who sees their
    /// number in the result.
    fn log_unchangeable(&self, outcome: EntryOutcome, directory: &Directory, name: Option<&CStr>) {
        if self.unchangeable.fetch_add(1, Ordering::Relaxed) < MAX_LOGGED {
            let (path, group) = (directory.path(name), self.group);
            tracing::warn!(?path, group, why = ?outcome, "fsGroup: entry can't be changed and was left unchanged");
        }
    }
}

/// Returns the current time by the clock of file timestamps, in seconds and nanoseconds.
fn now() -> (i64, u32) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let since = since.unwrap_or_default();
    (since.as_secs().cast_signed(), since.subsec_nanos())
}

/// Returns the error for a failed call on a directory, or on `name` in it.
pub(super) fn call_error(
    directory: &Directory,
    name: Option<&CStr>,
    (call, errno): FailedCall,
) -> FsGroupError {
    let path = directory.path(name);
    FsGroupError::Call { call, path, errno }
}

/// Returns the number of inodes in use if all of them already have the group and the mode.
///
/// `None` means that nothing is known: an inode doesn't match, the tables can't be read, or `may_continue` returned
/// false. `root` is any directory of the file system, open for reading; `device` is the file system's device.
fn count_matching_inodes(
    root: BorrowedFd<'_>,
    device: &DeviceFacts,
    group: u32,
    mut may_continue: impl FnMut() -> bool,
) -> Option<u64> {
    let (stat, statfs) = (fstat(root).ok()?, fstatfs(root).ok()?);
    // If the tables have the root's inode, they are those of this file system.
    let found_root = AtomicBool::new(false);
    let matches = |number: u64, inode: InodeAttributes| {
        if number == stat.st_ino {
            found_root.store(true, Ordering::Relaxed);
        }
        change::needed(&EntryAttributes::new(inode.mode, inode.group), group).is_none()
    };
    if !may_continue() {
        return None;
    }
    let tables = fstypes::inode_tables(statfs.f_type)?;
    let inodes = (tables.count_matching)(InodeCheck {
        root,
        statfs: &statfs,
        device,
        matches: &matches,
        may_continue: &mut may_continue,
    });
    inodes.filter(|_| found_root.into_inner())
}
