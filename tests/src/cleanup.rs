//! Putting things away, once, whatever ends the process.
//!
//! A guard holds a [`Cleanup`]: an action in a process-wide list. It runs when the guard is
//! dropped; when SIGINT, SIGTERM or SIGHUP arrives, all those left run, newest first, before the
//! process dies of the signal; and, where panics abort, from the panic hook.

use std::cell::Cell;
use std::io::{Write as _, stderr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::wait::holds_within;

/// How long the end waits for what is under way: a create, not a `sleep` that a test executes.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

type Action = Box<dyn FnOnce() -> Vec<String> + Send>;

struct Registry {
    next: u64,
    actions: Vec<(u64, Action)>,
    /// How many run now.
    running: u32,
    /// Set when the process is ending: the thread that runs what is left.
    closing: Option<ThreadId>,
}

static REGISTRY: Mutex<Registry> = Mutex::new(Registry {
    next: 0,
    actions: Vec::new(),
    running: 0,
    closing: None,
});

thread_local! {
    /// How many [`Working`] this thread holds.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// An action that will run exactly once, at the latest when this is dropped.
#[must_use = "dropped at once, it runs at once"]
#[derive(Debug)]
pub struct Cleanup {
    key: u64,
}

impl Cleanup {
    /// Registers an action. It goes on after an error, and returns one line for each.
    pub fn register(action: impl FnOnce() -> Vec<String> + Send + 'static) -> Self {
        let _working = Working::begin();
        let mut registry = lock();
        registry.next += 1;
        let key = registry.next;
        registry.actions.push((key, Box::new(action)));
        Self { key }
    }
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        let _working = Working::begin();
        let mut registry = lock();
        let mut actions = registry.actions.iter();
        let Some(index) = actions.position(|(key, _)| *key == self.key) else {
            return;
        };
        let (_, action) = registry.actions.remove(index);
        drop(registry);
        perform(action);
    }
}

/// Held while something is under way that a cleanup must not miss, such as a runtime's `create`, or making a thing and
/// registering its cleanup: when the process is ending, nothing new begins, and what has begun is waited for.
#[must_use]
pub(crate) struct Working(());

impl Working {
    pub(crate) fn begin() -> Self {
        watch_for_the_end();
        enter().running += 1;
        DEPTH.set(DEPTH.get() + 1);
        Self(())
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        lock().running -= 1;
        DEPTH.set(DEPTH.get() - 1);
    }
}

/// Runs everything that is still registered, newest first, after what runs already. From then on
/// every other thread that registers or drops a guard stops for good: the process is ending.
pub fn run_all() {
    lock().closing.get_or_insert(thread::current().id());
    holds_within(SHUTDOWN_TIMEOUT, || lock().running == DEPTH.get());
    loop {
        let last = enter().actions.pop();
        let Some((_, action)) = last else { return };
        perform(action);
    }
}

/// Reports what went wrong; a guard's `Drop` must neither panic nor stop.
fn perform(action: Action) {
    let errors = catch_unwind(AssertUnwindSafe(action))
        .unwrap_or_else(|_| vec!["a cleanup panicked".to_owned()]);
    for error in errors {
        let _ = writeln!(stderr(), "cleanup: {error}");
    }
}

fn lock() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The registry, for those that may still change it: once the process is ending, the thread that
/// ends it, and others only until they are done with what they have begun.
fn enter() -> MutexGuard<'static, Registry> {
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

fn watch_for_the_end() {
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
                run_all();
                let _ = emulate_default_handler(signal);
            }
        });
    });
}
