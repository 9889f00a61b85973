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
    let scene = Scene::for_row(delegate, row);
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
    let scene = Scene::for_row(delegate, row);
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
    fn a_killed_create_of_a_sandbox_can_be_repeated(delegate: Delegate) {
        kill(delegate, &creates::SANDBOX);
    }

    fn a_killed_create_with_a_pending_resize_can_be_repeated(delegate: Delegate) {
        kill(delegate, &creates::SANDBOX_THAT_GROWS);
    }

    fn a_killed_first_create_in_a_sandbox_can_be_repeated(delegate: Delegate) {
        kill(delegate, &creates::FIRST);
    }

    fn a_killed_later_create_in_a_sandbox_can_be_repeated(delegate: Delegate) {
        kill(delegate, &creates::LATER);
    }

    fn a_killed_first_create_behind_a_link_can_be_repeated(delegate: Delegate) {
        kill(delegate, &creates::FIRST_LINKED);
    }

    fn a_killed_later_create_behind_a_link_can_be_repeated(delegate: Delegate) {
        kill(delegate, &creates::LATER_LINKED);
    }

    fn a_killed_create_without_a_sandbox_can_be_repeated(delegate: Delegate) {
        kill(delegate, &creates::STANDALONE);
    }

    fn a_killed_create_in_a_user_namespace_can_be_repeated(delegate: Delegate) {
        kill(delegate, &creates::USER_NAMESPACE);
    }

    fn a_killed_create_on_an_older_kernel_can_be_repeated(delegate: Delegate) {
        kill(delegate, &creates::FALLBACK);
    }

    fn a_killed_create_whose_hook_mounts_can_be_repeated(delegate: Delegate) {
        kill(delegate, &creates::HOOK_MOUNTS);
    }

    fn a_killed_create_with_two_volumes_can_be_repeated(delegate: Delegate) {
        kill(delegate, &creates::TWO_VOLUMES);
    }

    fn a_killed_create_that_makes_a_subpath_can_be_repeated(delegate: Delegate) {
        kill(delegate, &creates::SUBPATH);
    }

    fn a_killed_second_create_of_a_bundle_can_be_repeated(delegate: Delegate) {
        kill(delegate, &creates::SECOND_CREATE);
    }

    fn a_killed_create_that_restores_a_config_can_be_repeated(delegate: Delegate) {
        kill(delegate, &creates::RESTORED_CONFIG);
    }

    fn a_killed_restore_can_be_followed_by_a_create(delegate: Delegate) {
        kill(delegate, &creates::RESTORE);
    }

    fn a_killed_delete_in_a_sandbox_can_be_repeated(delegate: Delegate) {
        kill(delegate, &ends::CONTAINER);
    }

    fn a_killed_delete_behind_a_link_can_be_repeated(delegate: Delegate) {
        kill(delegate, &ends::CONTAINER_LINKED);
    }

    fn a_killed_delete_without_a_sandbox_can_be_repeated(delegate: Delegate) {
        kill(delegate, &ends::STANDALONE);
    }

    fn a_killed_delete_of_a_sandbox_can_be_repeated(delegate: Delegate) {
        kill(delegate, &ends::SANDBOX);
    }

    fn a_killed_publish_in_a_sandbox_can_be_repeated(delegate: Delegate) {
        kill(delegate, &verbs::PUBLISH);
    }
}

// The delegate takes no part in these operations. It does in the creates that follow.
on_each_delegate! {
    fn a_killed_stage_can_be_repeated(delegate: Delegate) {
        kill(delegate, &verbs::STAGE);
    }

    fn a_killed_stage_behind_a_link_can_be_repeated(delegate: Delegate) {
        kill(delegate, &verbs::STAGE_LINKED);
    }

    fn a_killed_unstage_can_be_repeated(delegate: Delegate) {
        kill(delegate, &verbs::UNSTAGE);
    }

    fn a_killed_unstage_behind_a_link_can_be_repeated(delegate: Delegate) {
        kill(delegate, &verbs::UNSTAGE_LINKED);
    }

    fn a_killed_resize_can_be_repeated(delegate: Delegate) {
        kill(delegate, &verbs::RESIZE);
    }

    fn a_killed_gc_harms_no_volume_and_leaves_nothing(delegate: Delegate) {
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
    for row in [&verbs::STAGE, &verbs::PUBLISH, &creates::STANDALONE] {
        let steps = steps_of(Delegate::Runc, row);
        let first = Step::new("runcrust", "openat2", 1);
        assert!(steps.contains(&first), "{steps:?}");
    }
}
