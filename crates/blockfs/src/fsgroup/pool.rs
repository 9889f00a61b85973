//! The pool of workers of a walk: the queue of tasks, the counts, and whether to go on.

use std::num::NonZero;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::batch::Batch;
use super::directory::Open;
use super::error::FsGroupError;
use super::progress::EntryCounts;
use super::queue::{Queue, Task, Waiting};

/// The number of entries from which helpers are worth starting.
const WORTH_HELP: u64 = 256;
/// A worker waits for the disk most of the time where nothing is in memory.
const PER_PROCESSOR: usize = 4;
/// Each holds up to three descriptors, and the names of one small directory.
const MOST: usize = 16;
/// How often a worker that waits for the others checks the clock.
const TICK: Duration = Duration::from_millis(100);

/// The reason why a walk ends early.
#[derive(Debug)]
pub(super) enum Halt {
    /// The deadline, or the caller's wish.
    Stopped,
    Failed(FsGroupError),
}

impl From<FsGroupError> for Halt {
    fn from(error: FsGroupError) -> Self {
        Self::Failed(error)
    }
}

/// The answer to a worker that asks for a task.
#[derive(Debug)]
pub(super) enum NextTask {
    Task(Task),
    /// Others are at work, and may find more.
    Wait,
    /// All is done, or the walk was halted.
    End,
}

#[derive(Debug, Default)]
pub(super) struct WorkerPool {
    shared: Mutex<Shared>,
    changed: Condvar,
    halted: AtomicBool,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Queue,
    /// Workers with a task.
    busy: usize,
    /// Workers that wait for one.
    idle: usize,
    staff: Staff,
    counts: EntryCounts,
    /// The entries of earlier passes, which `counts` includes.
    earlier: u64,
    halt: Option<Halt>,
}

/// The number of helpers. Pure.
#[derive(Debug, Default)]
struct Staff {
    helpers: usize,
    /// Once it was asked for.
    most: Option<usize>,
}

impl Staff {
    /// Whether to start a helper, after so many `entries`, with work that nobody does.
    fn hire(&mut self, entries: u64, most: impl FnOnce() -> usize) -> bool {
        let hire = entries >= WORTH_HELP && self.helpers < *self.most.get_or_insert_with(most);
        self.helpers += usize::from(hire);
        hire
    }

    /// Starts no more helpers.
    fn hire_no_more(&mut self) {
        self.most = Some(0);
    }
}

/// Beside the caller.
fn most_helpers() -> usize {
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    (processors * PER_PROCESSOR).min(MOST) - 1
}

impl WorkerPool {
    /// The next task, for a worker that has done its last one, if it had one, and what it counted
    /// since then. Who isn't `patient` waits no longer than a moment.
    pub(super) fn next(&self, had_task: bool, counts: &mut EntryCounts, patient: bool) -> NextTask {
        let mut shared = self.lock();
        shared.busy -= usize::from(had_task);
        shared.counts += std::mem::take(counts);
        loop {
            if shared.halt.is_some() {
                return NextTask::End;
            }
            if let Some(task) = shared.queue.take() {
                shared.busy += 1;
                if shared.idle > 0 && shared.queue.has_task() {
                    self.changed.notify_one();
                }
                return NextTask::Task(task);
            }
            if shared.busy == 0 {
                self.changed.notify_all();
                return NextTask::End;
            }
            shared.idle += 1;
            if patient {
                shared = self
                    .changed
                    .wait(shared)
                    .unwrap_or_else(PoisonError::into_inner);
                shared.idle -= 1;
            } else {
                let waited = self.changed.wait_timeout(shared, TICK);
                let (again, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
                shared = again;
                shared.idle -= 1;
                if timeout.timed_out() {
                    return NextTask::Wait;
                }
            }
        }
    }

    pub(super) fn push(&self, waiting: Waiting) {
        let mut shared = self.lock();
        shared.queue.push(waiting);
        self.announce(&shared);
    }

    pub(super) fn push_listing(&self, directory: Open) {
        let mut shared = self.lock();
        shared.queue.push_listing(directory);
        self.announce(&shared);
    }

    pub(super) fn push_run(&self, directory: Open, entries: Batch) {
        let mut shared = self.lock();
        shared.queue.push_run(directory, entries);
        self.announce(&shared);
    }

    fn announce(&self, shared: &Shared) {
        if shared.idle > 0 {
            self.changed.notify_one();
        }
    }

    /// Whether the worker that asks is to start a helper; `entries` it has not told of yet.
    pub(super) fn hires(&self, entries: u64) -> bool {
        let mut shared = self.lock();
        let entries = shared.counts.entries - shared.earlier + entries;
        shared.idle == 0 && shared.queue.has_task() && shared.staff.hire(entries, most_helpers)
    }

    /// None could be started: as many as there are will have to do.
    pub(super) fn hires_no_more(&self) {
        self.lock().staff.hire_no_more();
    }

    /// Returns the counts that all workers have reported.
    pub(super) fn counts(&self) -> EntryCounts {
        self.lock().counts
    }

    /// Ends the walk; the first reason counts.
    pub(super) fn halt(&self, why: Halt, counts: EntryCounts) {
        let mut shared = self.lock();
        shared.counts += counts;
        shared.halt.get_or_insert(why);
        self.halted.store(true, Ordering::Relaxed);
        self.changed.notify_all();
    }

    pub(super) fn is_halted(&self) -> bool {
        self.halted.load(Ordering::Relaxed)
    }

    /// Prepares for another pass, after all workers have ended.
    pub(super) fn begin_again(&self) {
        let mut shared = self.lock();
        shared.staff = Staff::default();
        shared.earlier = shared.counts.entries;
    }

    /// How it ended, once all workers have.
    pub(super) fn end(&self) -> Result<EntryCounts, (Halt, EntryCounts)> {
        let mut shared = self.lock();
        match shared.halt.take() {
            Some(halt) => Err((halt, shared.counts)),
            None => Ok(shared.counts),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        // Who panicked takes the walk along by its scope.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn helpers_start_for_many_entries_up_to_a_limit() {
        let mut staff = Staff::default();
        let unasked = || panic!("it isn't asked for a small tree");
        assert!(!staff.hire(0, unasked));
        assert!(!staff.hire(WORTH_HELP - 1, unasked));
        assert!(staff.hire(WORTH_HELP, || 2));
        assert!(staff.hire(WORTH_HELP, || 9), "asked for once");
        assert!(!staff.hire(u64::MAX, || 9));
    }

    #[test]
    fn where_none_can_be_started_none_is_tried_again() {
        let mut staff = Staff::default();
        assert!(staff.hire(WORTH_HELP, || 7));
        staff.hire_no_more();
        assert!(!staff.hire(WORTH_HELP, || 7));
    }

    #[test]
    fn the_first_reason_to_halt_counts_and_every_count_does() {
        let pool = WorkerPool::default();
        let group = u32::MAX;
        let counts = |entries| EntryCounts {
            entries,
            ..EntryCounts::default()
        };
        pool.halt(FsGroupError::InvalidGroup { group }.into(), counts(2));
        pool.halt(Halt::Stopped, counts(3));
        assert!(pool.is_halted());
        assert!(matches!(
            pool.next(false, &mut counts(4), true),
            NextTask::End
        ));
        let (halt, counts) = pool.end().expect_err("it was halted");
        assert_eq!(counts.entries, 9);
        assert!(matches!(halt, Halt::Failed(_)), "{halt:?}");
    }
}
