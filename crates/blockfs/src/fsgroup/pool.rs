//! The pool of a walk's workers, with the state that they share: the queue of tasks, the counts, and whether the walk
//! was halted.

use std::num::NonZero;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::batch::EntryBatch;
use super::directory::OpenDirectory;
use super::error::FsGroupError;
use super::progress::EntryCounts;
use super::queue::{PendingSubdirectories, Queue, Task};

/// Number of entries in a pass from which starting helpers pays.
const MIN_ENTRIES_FOR_HELPERS: u64 = 256;
/// Maximum number of workers for each processor. If nothing is cached, workers wait for the disk most of the time.
const WORKERS_PER_PROCESSOR: usize = 4;
/// Maximum number of workers. Each holds up to three descriptors, and the names of one small directory.
const MAX_WORKERS: usize = 16;
/// Interval at which a worker that may not block checks whether the walk continues.
const WAIT_INTERVAL: Duration = Duration::from_millis(100);

/// The reason why a walk ends early.
#[derive(Debug)]
pub(super) enum HaltReason {
    /// The caller stopped the walk, for example because the deadline has passed.
    Stopped,
    Failed(FsGroupError),
}

impl From<FsGroupError> for HaltReason {
    fn from(error: FsGroupError) -> Self {
        Self::Failed(error)
    }
}

/// The reply to a worker that asks for a task.
#[derive(Debug)]
pub(super) enum NextTask {
    Task(Task),
    /// There is no task now, but other workers are busy and may add some.
    Wait,
    /// The pass is complete, or the walk was halted.
    End,
}

#[derive(Debug, Default)]
pub(super) struct WorkerPool {
    state: Mutex<PoolState>,
    /// Notified when tasks were added, and when the walk has ended.
    changed: Condvar,
    /// Set together with `PoolState::halt`; can be read without the lock.
    halted: AtomicBool,
}

#[derive(Debug, Default)]
struct PoolState {
    queue: Queue,
    /// Number of workers with a task.
    busy: usize,
    /// Number of workers that wait for a task.
    idle: usize,
    helpers: HelperCount,
    /// The counts of all passes.
    counts: EntryCounts,
    /// Number of entries in the passes before this one.
    previous_entries: u64,
    halt: Option<HaltReason>,
}

/// The number of helpers that were started: workers besides the caller's own thread. Makes no system calls.
#[derive(Debug, Default)]
struct HelperCount {
    started: usize,
    /// Maximum number of helpers; `None` until it is needed.
    max: Option<usize>,
}

impl HelperCount {
    /// Returns true if a helper is to be started now that this pass has seen `entries` entries, and counts it. `max`
    /// returns the maximum number of helpers; it is called once.
    fn try_add(&mut self, entries: u64, max: impl FnOnce() -> usize) -> bool {
        let add =
            entries >= MIN_ENTRIES_FOR_HELPERS && self.started < *self.max.get_or_insert_with(max);
        self.started += usize::from(add);
        add
    }

    /// Makes [`HelperCount::try_add`] return false from now on.
    fn stop_adding(&mut self) {
        self.max = Some(0);
    }
}

/// Returns the maximum number of helpers. The caller's own thread is one of the workers.
fn max_helpers() -> usize {
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    (processors * WORKERS_PER_PROCESSOR).min(MAX_WORKERS) - 1
}

impl WorkerPool {
    /// Returns the next task of a worker, and adds its `counts` to those of the pool.
    ///
    /// `had_task` is true if the worker has just completed a task. If there is no task, this waits for one. If
    /// `may_block` is false, it waits for [`WAIT_INTERVAL`] at most.
    pub(super) fn next(
        &self,
        had_task: bool,
        counts: &mut EntryCounts,
        may_block: bool,
    ) -> NextTask {
        let mut state = self.lock();
        state.busy -= usize::from(had_task);
        state.counts += std::mem::take(counts);
        loop {
            if state.halt.is_some() {
                return NextTask::End;
            }
            if let Some(task) = state.queue.take() {
                state.busy += 1;
                if state.idle > 0 && state.queue.has_task() {
                    self.changed.notify_one();
                }
                return NextTask::Task(task);
            }
            if state.busy == 0 {
                self.changed.notify_all();
                return NextTask::End;
            }
            state.idle += 1;
            if may_block {
                state = self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
            } else {
                let waited = self.changed.wait_timeout(state, WAIT_INTERVAL);
                let (locked, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
                state = locked;
                state.idle -= 1;
                if timeout.timed_out() {
                    return NextTask::Wait;
                }
            }
        }
    }

    pub(super) fn push(&self, subdirectories: PendingSubdirectories) {
        let mut state = self.lock();
        state.queue.push(subdirectories);
        self.wake_worker(&state);
    }

    pub(super) fn push_directory(&self, directory: OpenDirectory) {
        let mut state = self.lock();
        state.queue.push_directory(directory);
        self.wake_worker(&state);
    }

    pub(super) fn push_entries(&self, directory: OpenDirectory, entries: EntryBatch) {
        let mut state = self.lock();
        state.queue.push_entries(directory, entries);
        self.wake_worker(&state);
    }

    fn wake_worker(&self, state: &PoolState) {
        if state.idle > 0 {
            self.changed.notify_one();
        }
    }

    /// Returns true if the calling worker is to start a helper, and counts it. `entries` is the number of entries that
    /// the worker hasn't reported yet.
    pub(super) fn should_start_helper(&self, entries: u64) -> bool {
        let mut state = self.lock();
        let entries = state.counts.entries - state.previous_entries + entries;
        state.idle == 0 && state.queue.has_task() && state.helpers.try_add(entries, max_helpers)
    }

    /// Makes the walk continue with the present workers, because no further thread could be started.
    pub(super) fn stop_starting_helpers(&self) {
        self.lock().helpers.stop_adding();
    }

    /// Returns the counts that all workers have reported.
    pub(super) fn counts(&self) -> EntryCounts {
        self.lock().counts
    }

    /// Ends the walk, and adds the `counts` of the calling worker. Only the first reason is kept.
    pub(super) fn halt(&self, reason: HaltReason, counts: EntryCounts) {
        let mut state = self.lock();
        state.counts += counts;
        state.halt.get_or_insert(reason);
        self.halted.store(true, Ordering::Relaxed);
        self.changed.notify_all();
    }

    pub(super) fn is_halted(&self) -> bool {
        self.halted.load(Ordering::Relaxed)
    }

    /// Prepares for another pass. All workers must have ended.
    pub(super) fn begin_pass(&self) {
        let mut state = self.lock();
        state.helpers = HelperCount::default();
        state.previous_entries = state.counts.entries;
    }

    /// Returns the counts of the walk, and the reason if it was halted. All workers must have ended.
    pub(super) fn end(&self) -> Result<EntryCounts, (HaltReason, EntryCounts)> {
        let mut state = self.lock();
        match state.halt.take() {
            Some(halt) => Err((halt, state.counts)),
            None => Ok(state.counts),
        }
    }

    fn lock(&self) -> MutexGuard<'_, PoolState> {
        // A panic in a worker is propagated by the scope of its thread.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn helpers_start_for_many_entries_up_to_a_limit() {
        let mut helpers = HelperCount::default();
        let unused = || panic!("not called for a small tree");
        assert!(!helpers.try_add(0, unused));
        assert!(!helpers.try_add(MIN_ENTRIES_FOR_HELPERS - 1, unused));
        assert!(helpers.try_add(MIN_ENTRIES_FOR_HELPERS, || 2));
        assert!(
            helpers.try_add(MIN_ENTRIES_FOR_HELPERS, || 9),
            "called once"
        );
        assert!(!helpers.try_add(u64::MAX, || 9));
    }

    #[test]
    fn no_helper_is_started_after_a_failure_to_start_one() {
        let mut helpers = HelperCount::default();
        assert!(helpers.try_add(MIN_ENTRIES_FOR_HELPERS, || 7));
        helpers.stop_adding();
        assert!(!helpers.try_add(MIN_ENTRIES_FOR_HELPERS, || 7));
    }

    #[test]
    fn the_first_halt_reason_is_kept_and_all_counts_are_added() {
        let pool = WorkerPool::default();
        let group = u32::MAX;
        let counts = |entries| EntryCounts {
            entries,
            ..EntryCounts::default()
        };
        pool.halt(FsGroupError::InvalidGroup { group }.into(), counts(2));
        pool.halt(HaltReason::Stopped, counts(3));
        assert!(pool.is_halted());
        assert!(matches!(
            pool.next(false, &mut counts(4), true),
            NextTask::End
        ));
        let (halt, counts) = pool.end().expect_err("the pool was halted");
        assert_eq!(counts.entries, 9);
        assert!(matches!(halt, HaltReason::Failed(_)), "{halt:?}");
    }
}
