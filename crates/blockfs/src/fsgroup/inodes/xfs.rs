//! xfs has a call for it, which can be made for each allocation group by itself.

use std::num::NonZero;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, Builder};
use std::time::Duration;

use crate::fsgroup::change::Standing;
use crate::linux;
use crate::sys::bulkstat::{Inode, Inodes};
use crate::sys::{growth, handles};

/// Those that ask wait for the disk, and for each other in the kernel.
const PER_PROCESSOR: usize = 2;
const MOST: usize = 8;
/// How often it is asked whether to go on.
const TICK: Duration = Duration::from_millis(100);

/// The first Linux where to ask changes nothing. Before it an inode that was left unlinked by an earlier mount
/// was freed by who asked, and the file system shut down if that failed ("xfs: reload entire unlinked bucket
/// lists"); before 5.15 an index that leads to itself held who asked for ever.
const SAFE: linux::Version = (6, 6);

/// How many inodes there are, if all of them are right.
pub(super) fn all(
    root: BorrowedFd<'_>,
    is_right: impl Fn(u64, Standing) -> bool + Sync,
    mut goes_on: impl FnMut() -> bool,
) -> Option<u64> {
    if linux::version() < SAFE {
        return None;
    }
    let groups = growth::xfs_geometry(root).ok()?.allocation_groups;
    let survey = Survey {
        root,
        groups,
        next: AtomicU32::new(0),
        inodes: AtomicU64::new(0),
        failed: AtomicBool::new(false),
    };
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    let most = (processors * PER_PROCESSOR).min(MOST).min(groups as usize);
    thread::scope(|scope| {
        // Nobody sends anything: it is closed when the last asker has ended.
        let (at_work, ended) = mpsc::channel::<()>();
        for _ in 0..most {
            let (survey, is_right, at_work) = (&survey, &is_right, at_work.clone());
            let asker = move || {
                let _at_work = at_work;
                survey.ask(is_right);
            };
            let name = "fsgroup".to_owned();
            let started = Builder::new().name(name).spawn_scoped(scope, asker);
            survey.give_up_if(started.is_err());
        }
        drop(at_work);
        while ended.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
            survey.give_up_if(!goes_on());
        }
    });
    let known = !survey.failed.into_inner();
    known.then(|| survey.inodes.into_inner())
}

struct Survey<'a> {
    root: BorrowedFd<'a>,
    /// Allocation groups.
    groups: u32,
    /// The next that nobody has asked for.
    next: AtomicU32,
    inodes: AtomicU64,
    failed: AtomicBool,
}

impl Survey<'_> {
    /// One group after the other, as long as there are any and all is right.
    fn ask(&self, is_right: &impl Fn(u64, Standing) -> bool) {
        // Or the caller couldn't enter a sandbox when all is done.
        self.give_up_if(handles::unshare_place().is_err());
        while !self.failed.load(Ordering::Relaxed) {
            let group = self.next.fetch_add(1, Ordering::Relaxed);
            if group >= self.groups {
                break;
            }
            self.give_up_if(!self.group(group, is_right));
        }
    }

    fn group(&self, group: u32, is_right: &impl Fn(u64, Standing) -> bool) -> bool {
        let mut inodes = Inodes::new(group);
        while !self.failed.load(Ordering::Relaxed) {
            let Ok(some) = inodes.next(self.root) else {
                return false;
            };
            if some.is_empty() {
                return true;
            }
            self.inodes.fetch_add(some.len() as u64, Ordering::Relaxed);
            let is_right = |inode: &Inode| {
                let standing = Standing::new(u32::from(inode.mode), inode.group);
                is_right(inode.number, standing)
            };
            if !some.iter().all(is_right) {
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
