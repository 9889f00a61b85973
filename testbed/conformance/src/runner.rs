//! Checks the requirements: first those that need the machine for themselves, then the rest in parallel. A failing or
//! hanging check does not affect the others.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use crate::options::Options;
use crate::requirement::{Group, Requirement};
use crate::scene::{Scene, SharedDirectories};
use crate::suite::Suite;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CheckOutcome {
    Passed,
    /// Failed, with what the check observed.
    Failed(String),
    /// Not checked, with what this machine lacks.
    Skipped(String),
}

/// Checks that a volume can be created on this machine. Otherwise every failure would be blamed on the runtime.
pub(crate) fn can_run_here(suite: &Suite) -> Result<(), String> {
    set_hook(Box::new(|_| {}));
    attempt(|| {
        let scene = Scene::new(suite);
        let _ = scene.volume();
    })
}

/// Checks the selected requirements, and passes each outcome to `report`, in the order of the table.
pub(crate) fn run(
    options: &Options,
    mut report: impl FnMut((&'static Group, &'static Requirement), CheckOutcome),
) {
    let _directories = SharedDirectories::prepare(&options.suite);
    let selected: Vec<_> = options.selection.requirements().collect();
    let requirements = selected.iter().map(|(_, requirement)| *requirement);
    let (alone, parallel): (Vec<_>, Vec<_>) = requirements.partition(|it| it.alone);
    let checked = alone.iter().map(|it| (it.id, check(it, &options.suite)));
    let mut unreported: Vec<_> = checked.collect();
    let next = AtomicUsize::new(0);
    let (sender, results) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            let (sender, next, parallel) = (sender.clone(), &next, &parallel);
            scope.spawn(move || {
                while let Some(requirement) = parallel.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcome = check(requirement, &options.suite);
                    let _ = sender.send((requirement.id, outcome));
                }
            });
        }
        drop(sender);
        for selected in &selected {
            let outcome = loop {
                let id = selected.1.id;
                if let Some(at) = unreported.iter().position(|(checked, _)| *checked == id) {
                    break unreported.swap_remove(at).1;
                }
                unreported.push(results.recv().expect("an outcome for each requirement"));
            };
            report(*selected, outcome);
        }
    });
}

fn check(requirement: &Requirement, suite: &Suite) -> CheckOutcome {
    if let Some(missing) = requirement
        .needs
        .and_then(|need| need.missing(&suite.crust_root))
    {
        return CheckOutcome::Skipped(missing);
    }
    let scene = match attempt(|| Scene::new(suite)) {
        Ok(scene) => scene,
        Err(reason) => return CheckOutcome::Failed(reason),
    };
    match attempt(|| (requirement.check)(&scene)) {
        Ok(()) => CheckOutcome::Passed,
        Err(reason) => CheckOutcome::Failed(reason),
    }
}

/// Runs `work`, and returns the message of its panic on one line.
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
        .unwrap_or("panic without a message")
}
