//! The walk as a whole: what its workers know, and the root, which comes last.

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
use super::directory::{Directory, Open};
use super::distinct_entries::{DistinctEntries, RepeatedListing};
use super::entry::{self, EntryStat, FailedCall, ModeSetter};
use super::error::FsGroupError;
use super::pool::{Halt, WorkerPool};
use super::progress::{EntryCounts, EntryOutcome};
use crate::device::DeviceFacts;
use crate::fstypes::{self, Inode, InodeSurvey};

/// So many of the entries that can't be changed are named in the log.
const NAMED: u64 = 10;

/// So many files of several names can be changed at once.
const LINKED: usize = 64;

/// Asked before each entry of the caller's own whether to go on.
pub(super) type Observe<'a> = &'a mut dyn FnMut(&EntryCounts) -> ControlFlow<()>;

pub(super) struct Walk {
    pub(super) group: u32,
    pub(super) root: Open,
    pub(super) pool: WorkerPool,
    /// The mount that is walked; others aren't entered.
    mount: u64,
    modes: ModeSetter,
    /// Locks of files with several names, by inode.
    linked: [Mutex<()>; LINKED],
    /// Entries that stay as they are, as far as they were named.
    named: AtomicU64,
    /// Time at which the walk began, comparable with `EntryStat::born`.
    start: (i64, u32),
    /// EntryCounts the entries listed in this pass.
    met: DistinctEntries,
    /// The first directory that was moved away while this pass was below it.
    left_behind: Mutex<Option<PathBuf>>,
    /// This pass changed an entry older than the walk, or found a listed directory gone.
    unsettled: AtomicBool,
}

impl Walk {
    pub(super) fn new(root: BorrowedFd<'_>, group: u32) -> Result<Self, FsGroupError> {
        let failed = |(call, errno): FailedCall| FsGroupError::Call {
            call,
            path: PathBuf::new(),
            errno,
        };
        let modes = ModeSetter::new()?;
        // The caller's may be O_PATH, and listing moves a shared offset.
        let root = entry::open_directory(root, c".").map_err(|errno| failed(("openat2", errno)))?;
        let look = entry::look(&root, c"").map_err(|errno| failed(("statx", errno)))?;
        Ok(Self {
            group,
            root: Open {
                directory: Arc::new(Directory::root(look.identity)),
                descriptor: Arc::new(root),
            },
            pool: WorkerPool::default(),
            mount: look.mount,
            modes,
            linked: [const { Mutex::new(()) }; LINKED],
            named: AtomicU64::new(0),
            start: now(),
            met: DistinctEntries::default(),
            left_behind: Mutex::default(),
            unsettled: AtomicBool::new(false),
        })
    }

    /// Whether the volume's root isn't writable.
    pub(super) fn is_read_only(&self) -> bool {
        entry::is_read_only(&self.root.descriptor)
    }

    /// Resets the state of the previous pass.
    pub(super) fn begin_pass(&mut self) -> Result<(), FsGroupError> {
        let rewound = rustix::fs::seek(&self.root.descriptor, SeekFrom::Start(0));
        rewound.map_err(|errno| failed(&self.root.directory, None, ("lseek", errno)))?;
        self.pool.begin_again();
        self.met = DistinctEntries::default();
        self.left_behind = Mutex::default();
        self.unsettled = AtomicBool::new(false);
        Ok(())
    }

    /// EntryCounts entries that were listed in a directory. Fails if the same ones are listed over and over.
    pub(super) fn list<'n>(
        &self,
        directory: &Directory,
        names: impl Iterator<Item = &'n [u8]>,
    ) -> Result<(), FsGroupError> {
        self.met
            .list(directory.identity, names)
            .map_err(|too_often| {
                let RepeatedListing { listed, different } = too_often;
                FsGroupError::RepeatedEntries { listed, different }
            })
    }

    /// Records that a directory was moved away: only another pass finds its contents.
    pub(super) fn leave_behind(&self, path: PathBuf) {
        let left = self.left_behind.lock();
        let mut left = left.unwrap_or_else(PoisonError::into_inner);
        left.get_or_insert(path);
    }

    /// Returns the first directory that was moved away during this pass.
    pub(super) fn left_behind(&self) -> Option<PathBuf> {
        let left = self.left_behind.lock();
        left.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records that a listed directory was gone when its turn came: it was removed, or moved, perhaps to
    /// a directory that this pass has visited.
    pub(super) fn miss(&self) {
        self.unsettled.store(true, Ordering::Relaxed);
    }

    /// Whether this pass found a listed directory gone, or changed an entry older than the walk. Newer
    /// entries are new files: their owner chose their mode.
    pub(super) fn is_unsettled(&self) -> bool {
        self.unsettled.load(Ordering::Relaxed)
    }

    /// How the root stands.
    pub(super) fn root_attributes(&self) -> Result<EntryAttributes, FsGroupError> {
        Ok(self.look_at_root()?.attributes)
    }

    /// How many inodes there are, where the file system knows each of them to be right. Who says meanwhile
    /// that it isn't to go on says it again to the walk.
    pub(super) fn all_right(&self, device: &DeviceFacts, observe: Observe<'_>) -> Option<u64> {
        let root = self.root.descriptor.as_fd();
        let goes_on = || observe(&EntryCounts::default()).is_continue();
        all_right(root, device, self.group, goes_on)
    }

    /// Ends the walk with the root, once its workers have ended, and returns the counts.
    pub(super) fn end(&self, observe: Observe<'_>) -> Result<EntryCounts, FsGroupError> {
        let below = self.pool.end();
        let counts = below.and_then(|counts| self.finish(counts, observe));
        counts.map_err(|(halt, counts)| match halt {
            Halt::Stopped => FsGroupError::Stopped {
                group: self.group,
                counts,
            },
            Halt::Failed(error) => error,
        })
    }

    /// The root's turn.
    fn finish(
        &self,
        mut counts: EntryCounts,
        observe: Observe<'_>,
    ) -> Result<EntryCounts, (Halt, EntryCounts)> {
        if observe(&counts).is_break() {
            return Err((Halt::Stopped, counts));
        }
        let touched = self.look_at_root().and_then(|look| {
            let Open {
                directory,
                descriptor,
            } = &self.root;
            self.touch(descriptor.as_fd(), &look, directory, None)
        });
        counts.count(touched.map_err(|error| (error.into(), counts))?);
        Ok(counts)
    }

    fn look_at_root(&self) -> Result<EntryStat, FsGroupError> {
        let look = entry::look(&self.root.descriptor, c"");
        look.map_err(|errno| failed(&self.root.directory, None, ("statx", errno)))
    }

    /// Whether an entry is of the volume, rather than of another mount on top of it.
    pub(super) fn is_of_this_mount(&self, look: &EntryStat) -> bool {
        look.mount == self.mount
    }

    /// Whether an entry is in another subvolume of a btrfs than the root: those have an `st_dev`
    /// each, on one mount.
    fn is_in_a_subvolume(&self, look: &EntryStat) -> bool {
        let (root, entry) = (self.root.directory.identity, look.identity);
        (root.0, root.1) != (entry.0, entry.1)
    }

    /// Until it is dropped nobody else changes the file, which has several names. Between another's
    /// chown and its chmod the file is without its setuid bit, and a mode that is made of that stays.
    pub(super) fn alone_with(&self, file: &EntryStat) -> MutexGuard<'_, ()> {
        let (.., inode) = file.identity;
        let place = usize::try_from(inode).unwrap_or_default() % LINKED;
        let turn = self.linked[place].lock();
        turn.unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what `entry` refers to, where that is needed: `directory`, or `name` in it.
    pub(super) fn touch(
        &self,
        entry: BorrowedFd<'_>,
        look: &EntryStat,
        directory: &Directory,
        name: Option<&CStr>,
    ) -> Result<EntryOutcome, FsGroupError> {
        let touched = match self.modes.touch(entry, look, self.group) {
            // A snapshot on a volume that can be written to, where kubelet logs and goes on. If all
            // of the volume became read-only meanwhile, the root fails at last.
            Err((_, Errno::ROFS)) if self.is_in_a_subvolume(look) => EntryOutcome::ReadOnly,
            touched => touched.map_err(|failure| failed(directory, name, failure))?,
        };
        if touched == EntryOutcome::Changed && look.born.is_none_or(|born| born < self.start) {
            self.unsettled.store(true, Ordering::Relaxed);
        }
        if matches!(touched, EntryOutcome::Immutable | EntryOutcome::ReadOnly) {
            self.tell_what_stays(touched, directory, name);
        }
        Ok(touched)
    }

    /// The first few by name: an operator who wonders about the sum wants one to look at.
    fn tell_what_stays(&self, touched: EntryOutcome, directory: &Directory, name: Option<&CStr>) {
        if self.named.fetch_add(1, Ordering::Relaxed) < NAMED {
            let (path, group) = (directory.path(name), self.group);
            tracing::warn!(?path, group, why = ?touched, "fsGroup: an entry stays as it is");
        }
    }
}

/// Returns the current time, by the clock of file timestamps.
fn now() -> (i64, u32) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let since = since.unwrap_or_default();
    (since.as_secs().cast_signed(), since.subsec_nanos())
}

/// The error for a failed call on a directory, or on `name` in it.
pub(super) fn failed(
    directory: &Directory,
    name: Option<&CStr>,
    (call, errno): FailedCall,
) -> FsGroupError {
    let path = directory.path(name);
    FsGroupError::Call { call, path, errno }
}

/// Returns how many inodes the file system has, where each is as it should be. `None` says nothing: one isn't, or
/// can't be asked, or `goes_on` says no.
///
/// `root` is any directory of the file system, open for reading, and `device` the one it is on.
pub(super) fn all_right(
    root: BorrowedFd<'_>,
    device: &DeviceFacts,
    group: u32,
    mut goes_on: impl FnMut() -> bool,
) -> Option<u64> {
    let (stat, whole) = (fstat(root).ok()?, fstatfs(root).ok()?);
    // That what was looked at is the file system that it was to be.
    let met_root = AtomicBool::new(false);
    let is_right = |number: u64, inode: Inode| {
        if number == stat.st_ino {
            met_root.store(true, Ordering::Relaxed);
        }
        change::needed(&EntryAttributes::new(inode.mode, inode.group), group).is_none()
    };
    if !goes_on() {
        return None;
    }
    let tables = fstypes::inode_tables(whole.f_type)?;
    let inodes = (tables.all_right)(InodeSurvey {
        root,
        whole: &whole,
        device,
        is_right: &is_right,
        goes_on: &mut goes_on,
    });
    inodes.filter(|_| met_root.into_inner())
}
