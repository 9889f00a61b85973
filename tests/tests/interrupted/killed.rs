//! The crash matrix: each row is killed after each of its steps, in whichever of runcrust's programs makes the step.
//! Then its caller continues.
//!
//! To try all steps takes long. `make torture` tries all of them, and `make test` a few of each row, which change every
//! day.

use std::collections::BTreeSet;
use std::panic::catch_unwind;

use runcrust_tests::steps::{self, Step};
use runcrust_tests::{Delegate, on_each_delegate};

use crate::choice::Choice;
use crate::row::{FirstCaller, Row};
use crate::rows::{creates, ends, verbs};
use crate::scene::Scene;

/// Runs a row without a kill, and returns its steps.
pub(crate) fn steps_of(delegate: Delegate, row: &Row) -> Vec<Step> {
    let scene = Scene::of(delegate, row);
    let prepared = (row.prepare)(&scene);
    let (steps, _) = steps::trace(&prepared.command, |command| prepared.spawn(command));
    prepared.end();
    scene.unstage_and_assert_clean();
    let programs: BTreeSet<&str> = steps.iter().map(|step| &*step.program).collect();
    let expected = row.programs(delegate);
    assert_eq!(
        programs, expected,
        "programs that make the steps: {steps:?}"
    );
    steps
}

/// Kills a row after one step. Each call uses a new node, so that the steps are always the same: the first calls on a
/// node make more steps than later ones.
fn kill_after(delegate: Delegate, row: &Row, step: &Step, first: FirstCaller) {
    let scene = Scene::of(delegate, row);
    let prepared = (row.prepare)(&scene);
    let ended = steps::kill_after(&prepared.command, step, |command| prepared.spawn(command));
    assert!(ended.killed, "it ended without this step: {ended:?}");
    prepared.delete_like_shim();
    row.assert_recovers(prepared, &scene, first);
}

/// Kills a row after each of the chosen steps. After a failure the other steps are still tried.
fn kill(delegate: Delegate, row: &Row) {
    let test = std::thread::current().name().unwrap_or_default().to_owned();
    let all = steps_of(delegate, row);
    println!("{test}: {} steps", all.len());
    for step in &all {
        println!("  {step}");
    }
    let choice = Choice::from_env();
    let mut failed = Vec::new();
    for step in choice.select(all) {
        let turns = match &choice {
            Choice::One(_) => FirstCaller::EACH,
            _ => row.first_callers(delegate, &step),
        };
        for first in turns {
            println!("killed right after {step}, first: {first:?}");
            if catch_unwind(|| kill_after(delegate, row, &step, *first)).is_err() {
                failed.push(format!(
                    "make torture TEST={test} STEP='{step}' # first: {first:?}"
                ));
            }
        }
    }
    assert!(failed.is_empty(), "to reproduce:\n{}", failed.join("\n"));
}

on_each_delegate! {
    fn creating_a_sandbox(delegate: Delegate) {
        kill(delegate, &creates::SANDBOX);
    }

    fn creating_a_sandbox_whose_volume_grows(delegate: Delegate) {
        kill(delegate, &creates::SANDBOX_THAT_GROWS);
    }

    fn creating_the_first_container_in_a_sandbox(delegate: Delegate) {
        kill(delegate, &creates::FIRST);
    }

    fn creating_a_container_where_the_sandbox_has_the_volume(delegate: Delegate) {
        kill(delegate, &creates::SECOND);
    }

    fn creating_the_first_container_in_a_sandbox_behind_a_link(delegate: Delegate) {
        kill(delegate, &creates::FIRST_LINKED);
    }

    fn creating_a_container_where_the_sandbox_has_it_behind_a_link(delegate: Delegate) {
        kill(delegate, &creates::SECOND_LINKED);
    }

    fn creating_a_container_without_a_sandbox(delegate: Delegate) {
        kill(delegate, &creates::PLAIN);
    }

    fn creating_a_container_in_a_user_namespace(delegate: Delegate) {
        kill(delegate, &creates::USER_NAMESPACE);
    }

    fn creating_a_container_on_an_older_kernel(delegate: Delegate) {
        kill(delegate, &creates::FALLBACK);
    }

    fn creating_a_container_whose_hook_mounts(delegate: Delegate) {
        kill(delegate, &creates::HOOKED);
    }

    fn creating_a_container_with_two_volumes(delegate: Delegate) {
        kill(delegate, &creates::TWO);
    }

    fn creating_a_container_whose_subpath_is_created(delegate: Delegate) {
        kill(delegate, &creates::SUBPATH);
    }

    fn recreating_a_container_of_the_same_bundle(delegate: Delegate) {
        kill(delegate, &creates::AGAIN);
    }

    fn creating_a_container_of_the_same_bundle_without_its_volume(delegate: Delegate) {
        kill(delegate, &creates::AGAIN_WITHOUT);
    }

    fn restoring_a_container(delegate: Delegate) {
        kill(delegate, &creates::RESTORE);
    }

    fn deleting_a_container_in_a_sandbox(delegate: Delegate) {
        kill(delegate, &ends::APP);
    }

    fn deleting_a_container_in_a_sandbox_behind_a_link(delegate: Delegate) {
        kill(delegate, &ends::APP_LINKED);
    }

    fn deleting_a_container_without_a_sandbox(delegate: Delegate) {
        kill(delegate, &ends::PLAIN);
    }

    fn deleting_a_sandbox(delegate: Delegate) {
        kill(delegate, &ends::SANDBOX);
    }

    fn publishing_in_a_sandbox(delegate: Delegate) {
        kill(delegate, &verbs::PUBLISH);
    }
}

// The delegate takes no part in these operations. It does in the creates that follow.
on_each_delegate! {
    fn staging(delegate: Delegate) {
        kill(delegate, &verbs::STAGE);
    }

    fn staging_behind_a_link(delegate: Delegate) {
        kill(delegate, &verbs::STAGE_LINKED);
    }

    fn unstaging(delegate: Delegate) {
        kill(delegate, &verbs::UNSTAGE);
    }

    fn unstaging_behind_a_link(delegate: Delegate) {
        kill(delegate, &verbs::UNSTAGE_LINKED);
    }

    fn requesting_growth(delegate: Delegate) {
        kill(delegate, &verbs::RESIZE);
    }

    fn collecting_garbage(delegate: Delegate) {
        kill(delegate, &verbs::GC);
    }
}

/// This holds for any number of a step. After a step of a program that only one delegate runs, both callers are tested
/// with that delegate.
#[test]
fn each_first_caller_is_tested_with_one_of_the_delegates() {
    for nth in 1..=4 {
        let step = Step::new("runcrust", "fsmount", nth);
        let [runc, crun] =
            [Delegate::Runc, Delegate::Crun].map(|it| creates::FIRST.first_callers(it, &step));
        assert_ne!(runc, crun, "{step}");
        assert_eq!((runc.len(), crun.len()), (1, 1), "{step}");
        let alone = Step::new("crust-mount-hook release", "fsync", nth);
        let turns = creates::RESTORE.first_callers(Delegate::Runc, &alone);
        assert_eq!(turns, FirstCaller::EACH, "{alone}");
    }
}

/// runcrust creates files with openat2(2), whose flags are in memory that the tracer has to read.
#[test]
fn creating_a_file_is_a_step() {
    for row in [&verbs::STAGE, &verbs::PUBLISH, &creates::PLAIN] {
        let steps = steps_of(Delegate::Runc, row);
        let first = Step::new("runcrust", "openat2", 1);
        assert!(steps.contains(&first), "{steps:?}");
    }
}
