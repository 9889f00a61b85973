//! Reads the inodes of an xfs with an ioctl (`XFS_IOC_BULKSTAT`), one allocation group at a time.

use std::num::NonZero;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, Builder};
use std::time::Duration;

use crate::fstypes::descriptor::{self, InodeCheck};
use crate::kernel;
use crate::sys::bulkstat::{Inode, Inodes};
use crate::sys::{self, growth};

/// Number of threads for each processor. The threads wait for the disk, and for each other in the kernel.
const THREADS_PER_PROCESSOR: usize = 2;
const MAX_THREADS: usize = 8;
/// Interval between two calls of `may_continue`.
const CONTINUE_INTERVAL: Duration = Duration::from_millis(100);

/// The first Linux version in which the call changes nothing.
///
/// Before, the call freed inodes that an earlier mount had left unlinked, and the file system was shut down if that
/// failed ("xfs: reload entire unlinked bucket lists"). Before 5.15 it never returned if an index block pointed to
/// itself.
const SAFE_SINCE: kernel::KernelVersion = (6, 6);

/// Returns true if the inode with this number and these attributes matches.
type InodeFilter<'a> = &'a (dyn Fn(u64, descriptor::InodeAttributes) -> bool + Sync);

/// Returns the number of inodes in use if all of them match; `None` if one doesn't, or if that is unknown.
pub(super) fn count_matching(check: InodeCheck<'_>) -> Option<u64> {
    let InodeCheck {
        root,
        matches,
        may_continue,
        ..
    } = check;
    if kernel::version() < SAFE_SINCE {
        return None;
    }
    let count = growth::xfs_geometry(root).ok()?.allocation_groups;
    let groups = AllocationGroups {
        root,
        count,
        next: AtomicU32::new(0),
        inodes: AtomicU64::new(0),
        failed: AtomicBool::new(false),
    };
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    let threads = (processors * THREADS_PER_PROCESSOR)
        .min(MAX_THREADS)
        .min(count as usize);
    thread::scope(|scope| {
        // Nothing is sent. The channel is closed when the last thread has ended.
        let (running, ended) = mpsc::channel::<()>();
        for _ in 0..threads {
            let (groups, running) = (&groups, running.clone());
            let worker = move || {
                let _running = running;
                groups.check(matches);
            };
            let name = "fsgroup".to_owned();
            let started = Builder::new().name(name).spawn_scoped(scope, worker);
            groups.give_up_if(started.is_err());
        }
        drop(running);
        while ended.recv_timeout(CONTINUE_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            groups.give_up_if(!may_continue());
        }
    });
    let all_match = !groups.failed.into_inner();
    all_match.then(|| groups.inodes.into_inner())
}

/// The allocation groups of an xfs, which several threads check.
struct AllocationGroups<'a> {
    root: BorrowedFd<'a>,
    /// Number of allocation groups.
    count: u32,
    /// The first group that no thread has taken.
    next: AtomicU32,
    /// Number of inodes read so far.
    inodes: AtomicU64,
    /// Set when an inode doesn't match or can't be read, and when the check is to end.
    failed: AtomicBool,
}

impl AllocationGroups<'_> {
    /// Checks one group after the other, until there are none left or the check has failed.
    fn check(&self, matches: InodeFilter<'_>) {
        // Without this call the caller's thread would share its fs attributes with this one, and setns(2) into a
        // sandbox's mount namespace would fail.
        self.give_up_if(sys::unshare_fs().is_err());
        while !self.failed.load(Ordering::Relaxed) {
            let group = self.next.fetch_add(1, Ordering::Relaxed);
            if group >= self.count {
                break;
            }
            self.give_up_if(!self.check_group(group, matches));
        }
    }

    /// Returns true if all inodes of a group match.
    fn check_group(&self, group: u32, matches: InodeFilter<'_>) -> bool {
        let mut inodes = Inodes::new(group);
        while !self.failed.load(Ordering::Relaxed) {
            let Ok(batch) = inodes.next(self.root) else {
                return false;
            };
            if batch.is_empty() {
                return true;
            }
            self.inodes.fetch_add(batch.len() as u64, Ordering::Relaxed);
            let matches = |inode: &Inode| {
                let found = descriptor::InodeAttributes {
                    mode: u32::from(inode.mode),
                    group: inode.group,
                };
                matches(inode.number, found)
            };
            if !batch.iter().all(matches) {
                return false;
            }
        }
        false
    }

    fn give_up_if(&self, failed: bool) {
        if failed {
            self.failed.store(true, Ordering::Relaxed);
        }
    }
}
