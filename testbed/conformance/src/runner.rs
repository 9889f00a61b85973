//! Checks the requirements: first those that have to be alone, then several at a time. None of them can end or hang the
//! others.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use crate::options::Options;
use crate::requirement::{Group, Requirement};
use crate::scene::{Scene, SharedDirectories};
use crate::suite::Suite;

/// The outcome of a requirement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    /// The failure, with what was seen.
    Failed(String),
    /// Not checked, with what this machine lacks.
    Skipped(String),
}

/// Checks that a volume can be made on this machine. Else its failures would be reported as the runtime's.
pub(crate) fn can_run_here(suite: &Suite) -> Result<(), String> {
    set_hook(Box::new(|_| {}));
    attempt(|| {
        let scene = Scene::new(suite);
        let _ = scene.volume();
    })
}

/// Runs the selected requirements, and hands on each outcome in the order of the table.
pub(crate) fn run(
    options: &Options,
    mut tell: impl FnMut((&'static Group, &'static Requirement), Outcome),
) {
    let _directories = SharedDirectories::prepare(&options.suite);
    let wanted: Vec<_> = options.selection.requirements().collect();
    let requirements = wanted.iter().map(|(_, requirement)| *requirement);
    let (alone, together): (Vec<_>, Vec<_>) = requirements.partition(|it| it.alone);
    let looked_at = alone.iter().map(|it| (it.id, look_at(it, &options.suite)));
    let mut early: Vec<_> = looked_at.collect();
    let next = AtomicUsize::new(0);
    let (sender, results) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            let (sender, next, together) = (sender.clone(), &next, &together);
            scope.spawn(move || {
                while let Some(requirement) = together.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcome = look_at(requirement, &options.suite);
                    let _ = sender.send((requirement.id, outcome));
                }
            });
        }
        drop(sender);
        for wanted in &wanted {
            let outcome = loop {
                if let Some(at) = early.iter().position(|(id, _)| *id == wanted.1.id) {
                    break early.swap_remove(at).1;
                }
                early.push(results.recv().expect("each requirement has an outcome"));
            };
            tell(*wanted, outcome);
        }
    });
}

fn look_at(requirement: &Requirement, suite: &Suite) -> Outcome {
    if let Some(missing) = requirement
        .needs
        .and_then(|need| need.missing(&suite.crust_root))
    {
        return Outcome::Skipped(missing);
    }
    let scene = match attempt(|| Scene::new(suite)) {
        Ok(scene) => scene,
        Err(why) => return Outcome::Failed(why),
    };
    match attempt(|| (requirement.check)(&scene)) {
        Ok(()) => Outcome::Passed,
        Err(why) => Outcome::Failed(why),
    }
}

/// Runs work, and returns the message of its panic in one line.
fn attempt<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let lines = message(&*panic).lines().map(str::trim);
        let lines: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
        lines.join("; ")
    })
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    owned
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("a panic without a message")
}
