//! Cleanup that runs exactly once, however the process ends.
//!
//! A guard holds a [`Cleanup`], which is an action in a process-wide list. The action runs when the guard is dropped.
//! When SIGINT, SIGTERM or SIGHUP arrives, all remaining actions run, newest first, before the process dies of the
//! signal. If panics abort, they run from the panic hook.

use std::cell::Cell;
use std::io::{Write as _, stderr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, OnceLock, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::wait::holds_within;

/// The longest time that the end of the process waits for operations in progress. It suffices for a create, but not for
/// a `sleep` that a test runs.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

type Action = Box<dyn FnOnce() -> Vec<String> + Send>;

struct Registry {
    next: u64,
    actions: Vec<(u64, Action)>,
    /// The number of operations in progress.
    running: u32,
    /// The thread that runs the remaining actions, once the process is ending.
    closing: Option<ThreadId>,
}

static REGISTRY: Mutex<Registry> = Mutex::new(Registry {
    next: 0,
    actions: Vec::new(),
    running: 0,
    closing: None,
});

/// The message to print when a signal ends the process.
static INTERRUPTION: OnceLock<&str> = OnceLock::new();

/// Whether SIGINT has arrived, if the process announces that.
static INTERRUPTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

thread_local! {
    /// The number of [`OperationGuard`] guards that this thread holds.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// An action that runs exactly once, at the latest when this is dropped.
#[must_use = "the action runs as soon as this is dropped"]
#[derive(Debug)]
pub struct Cleanup {
    key: u64,
}

impl Cleanup {
    /// Registers an action. It must continue after an error, and returns one line for each error.
    pub fn register(action: impl FnOnce() -> Vec<String> + Send + 'static) -> Self {
        let _operation = OperationGuard::begin();
        let mut registry = lock();
        registry.next += 1;
        let key = registry.next;
        registry.actions.push((key, Box::new(action)));
        Self { key }
    }
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        let _operation = OperationGuard::begin();
        let mut registry = lock();
        let mut actions = registry.actions.iter();
        let Some(index) = actions.position(|(key, _)| *key == self.key) else {
            return;
        };
        let (_, action) = registry.actions.remove(index);
        drop(registry);
        run_action(action);
    }
}

/// A guard for an operation that a cleanup must not miss, such as a runtime's `create`, or creating something and
/// registering its cleanup. When the process is ending, no new operation begins, and the running ones are waited for.
#[must_use]
pub struct OperationGuard(());

impl OperationGuard {
    pub fn begin() -> Self {
        install_handlers();
        lock_for_change().running += 1;
        DEPTH.set(DEPTH.get() + 1);
        Self(())
    }
}

impl Drop for OperationGuard {
    fn drop(&mut self) {
        lock().running -= 1;
        DEPTH.set(DEPTH.get() - 1);
    }
}

/// Runs all registered actions, newest first, after the operations in progress have ended. From then on every other
/// thread that registers or drops a guard blocks forever, because the process is ending.
pub fn run_all() {
    lock().closing.get_or_insert(thread::current().id());
    holds_within(SHUTDOWN_TIMEOUT, || lock().running == DEPTH.get());
    loop {
        let last = lock_for_change().actions.pop();
        let Some((_, action)) = last else { return };
        run_action(action);
    }
}

/// Runs an action and reports its errors. A guard's `Drop` must neither panic nor stop at an error.
fn run_action(action: Action) {
    let errors = catch_unwind(AssertUnwindSafe(action))
        .unwrap_or_else(|_| vec!["a cleanup panicked".to_owned()]);
    for error in errors {
        let _ = writeln!(stderr(), "cleanup: {error}");
    }
}

fn lock() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks the registry for a thread that may still change it. Once the process is ending, these are the thread that ends
/// it and threads that hold a [`OperationGuard`].
fn lock_for_change() -> MutexGuard<'static, Registry> {
    loop {
        let registry = lock();
        let ending = registry
            .closing
            .is_some_and(|thread| thread != thread::current().id());
        if !ending || DEPTH.get() > 0 {
            return registry;
        }
        drop(registry);
        thread::park();
    }
}

/// Prints a message when a signal ends the process, and hides the panics of the main thread that follow from Ctrl-C: the
/// terminal sends SIGINT to the programs that this process runs as well, and they fail.
///
/// # Panics
///
/// If signal handlers cannot be installed.
pub fn announce_interruption(message: &'static str) {
    install_handlers();
    INTERRUPTION.get_or_init(|| message);
    let interrupted = INTERRUPTED.get_or_init(Arc::default);
    // The handler itself sets the flag, because the main thread may panic before another thread can run.
    signal_hook::flag::register(SIGINT, Arc::clone(interrupted)).expect("a handler for SIGINT");
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !(thread::current().name() == Some("main") && is_interrupted()) {
            report(panic);
        }
    }));
}

/// Waits for the end of the process if SIGINT has arrived, so that it dies of the signal and not of a panic that follows.
pub fn end_if_interrupted() {
    while is_interrupted() {
        thread::park();
    }
}

fn is_interrupted() -> bool {
    let interrupted = INTERRUPTED.get();
    interrupted.is_some_and(|flag| flag.load(Ordering::Relaxed))
}

fn install_handlers() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if cfg!(panic = "abort") {
            let report = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                report(panic);
                run_all();
            }));
        }
        let mut signals =
            Signals::new([SIGINT, SIGTERM, SIGHUP]).expect("signal handlers for the cleanup");
        thread::spawn(move || {
            for signal in signals.forever() {
                if let Some(message) = INTERRUPTION.get() {
                    let _ = writeln!(stderr(), "\n{message}");
                }
                run_all();
                let _ = emulate_default_handler(signal);
            }
        });
    });
}
