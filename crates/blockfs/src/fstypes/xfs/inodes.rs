//! The inodes of an xfs, by a call that can be made for each allocation group by itself.

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

/// Threads for each processor: they wait for the disk, and for each other in the kernel.
const PER_PROCESSOR: usize = 2;
const MOST: usize = 8;
/// Interval between two calls of `may_continue`.
const TICK: Duration = Duration::from_millis(100);

/// The first Linux where the call changes nothing. Before it the call freed an inode that an earlier mount left
/// unlinked, and the file system was shut down if that failed ("xfs: reload entire unlinked bucket lists"). Before 5.15
/// it never returned if an index led to itself.
const SAFE: kernel::KernelVersion = (6, 6);

/// Whether the inode of a number is as it should be.
type IsRight<'a> = &'a (dyn Fn(u64, descriptor::InodeAttributes) -> bool + Sync);

/// Returns how many inodes there are, if all of them are right.
pub(super) fn count_matching(survey: InodeCheck<'_>) -> Option<u64> {
    let InodeCheck {
        root,
        matches,
        may_continue,
        ..
    } = survey;
    if kernel::version() < SAFE {
        return None;
    }
    let groups = growth::xfs_geometry(root).ok()?.allocation_groups;
    let survey = Groups {
        root,
        count: groups,
        next: AtomicU32::new(0),
        inodes: AtomicU64::new(0),
        failed: AtomicBool::new(false),
    };
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    let most = (processors * PER_PROCESSOR).min(MOST).min(groups as usize);
    thread::scope(|scope| {
        // Nothing is sent. The channel is closed when the last thread has ended.
        let (at_work, ended) = mpsc::channel::<()>();
        for _ in 0..most {
            let (survey, at_work) = (&survey, at_work.clone());
            let asker = move || {
                let _at_work = at_work;
                survey.ask(matches);
            };
            let name = "fsgroup".to_owned();
            let started = Builder::new().name(name).spawn_scoped(scope, asker);
            survey.give_up_if(started.is_err());
        }
        drop(at_work);
        while ended.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
            survey.give_up_if(!may_continue());
        }
    });
    let known = !survey.failed.into_inner();
    known.then(|| survey.inodes.into_inner())
}

/// The allocation groups of an xfs, and how far those that ask for them have got.
struct Groups<'a> {
    root: BorrowedFd<'a>,
    /// Number of allocation groups.
    count: u32,
    /// The first group that no thread has asked for.
    next: AtomicU32,
    inodes: AtomicU64,
    failed: AtomicBool,
}

impl Groups<'_> {
    /// Asks for one group after the other, as long as there are any and all inodes are right.
    fn ask(&self, matches: IsRight<'_>) {
        // Otherwise the caller couldn't enter a sandbox afterwards.
        self.give_up_if(sys::unshare_fs().is_err());
        while !self.failed.load(Ordering::Relaxed) {
            let group = self.next.fetch_add(1, Ordering::Relaxed);
            if group >= self.count {
                break;
            }
            self.give_up_if(!self.group(group, matches));
        }
    }

    fn group(&self, group: u32, matches: IsRight<'_>) -> bool {
        let mut inodes = Inodes::new(group);
        while !self.failed.load(Ordering::Relaxed) {
            let Ok(some) = inodes.next(self.root) else {
                return false;
            };
            if some.is_empty() {
                return true;
            }
            self.inodes.fetch_add(some.len() as u64, Ordering::Relaxed);
            let matches = |inode: &Inode| {
                let found = descriptor::InodeAttributes {
                    mode: u32::from(inode.mode),
                    group: inode.group,
                };
                matches(inode.number, found)
            };
            if !some.iter().all(matches) {
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
