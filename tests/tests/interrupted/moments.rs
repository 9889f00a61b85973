//! Delegates, their children, and whole process groups that are killed at a random moment.

use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::random::{Random, seed};
use runcrust_tests::{Delegate, on_each_delegate, process, wait_until};

use crate::choice::Choice;
use crate::row::{FirstCaller, Row};
use crate::rows::{creates, ends};
use crate::scene::Scene;

/// The process or process group that is killed.
#[derive(Debug, Clone, Copy)]
enum Victim {
    /// The process that runcrust became.
    Delegate,
    /// Children of the delegate: a container's first process, or a hook.
    Child,
    /// The whole process group.
    Group,
}

impl Victim {
    /// Kills the victim. Returns false if there was no child yet.
    fn kill(self, root: i32) -> bool {
        let children = process::children(root);
        match self {
            Self::Delegate => process::kill_now(root),
            Self::Child => children.iter().copied().for_each(process::kill_now),
            Self::Group => {
                let _ = killpg(Pid::from_raw(root), Signal::SIGKILL);
            }
        }
        !matches!(self, Self::Child) || !children.is_empty()
    }
}

/// Returns the time that a row takes if it is not killed.
fn duration(delegate: Delegate, row: &Row) -> Duration {
    let scene = Scene::for_row(delegate, row);
    let mut prepared = (row.prepare)(&scene);
    let start = Instant::now();
    let _ = prepared.start().wait().expect("waitpid");
    let duration = start.elapsed();
    prepared.end();
    scene.unstage_and_assert_clean();
    duration
}

fn kill_after(delegate: Delegate, row: &Row, victim: Victim, wait: Duration, first: FirstCaller) {
    let scene = Scene::for_row(delegate, row);
    let mut prepared = (row.prepare)(&scene);
    let mut child = prepared.start();
    thread::sleep(wait);
    while child.try_wait().expect("waitpid").is_none() && !victim.kill(child.id().cast_signed()) {}
    let _ = child.wait().expect("waitpid");
    if matches!(victim, Victim::Group) {
        // waitpid only covers the group's leader.
        wait_until("the killed processes to end", WAIT_TIMEOUT, || {
            process::in_group(child.id().cast_signed()).is_empty()
        });
    }
    if let Some((container, _)) = &prepared.container {
        container.clean_up_after_kill();
    }
    row.assert_recovers(prepared, &scene, first);
}

/// Kills a row at several random moments of its duration.
fn kill(delegate: Delegate, row: &Row, victim: Victim) {
    let whole = duration(delegate, row);
    let mut random = Random::new(seed());
    for nth in 0..Choice::from_env().moments() {
        let percent = u32::try_from(random.below(100)).expect("less than 100");
        let wait = whole * percent / 100;
        println!("{victim:?} killed after {wait:?} of {whole:?}");
        kill_after(delegate, row, victim, wait, FirstCaller::alternating(nth));
    }
}

on_each_delegate! {
    fn a_sandbox_can_be_recreated_after_a_killed_delegate(delegate: Delegate) {
        kill(delegate, &creates::SANDBOX, Victim::Delegate);
    }

    fn a_container_can_be_recreated_after_a_killed_delegate(delegate: Delegate) {
        kill(delegate, &creates::FIRST, Victim::Delegate);
    }

    fn a_sandbox_can_be_deleted_after_a_killed_delegate(delegate: Delegate) {
        kill(delegate, &ends::SANDBOX, Victim::Delegate);
    }

    fn creates_can_be_repeated_after_a_killed_child(delegate: Delegate) {
        kill(delegate, &creates::SANDBOX, Victim::Child);
        kill(delegate, &creates::FIRST, Victim::Child);
    }

    fn a_sandbox_can_be_recreated_after_a_killed_process_group(delegate: Delegate) {
        kill(delegate, &creates::SANDBOX, Victim::Group);
    }

    fn containers_can_be_recreated_after_a_killed_process_group(delegate: Delegate) {
        kill(delegate, &creates::FIRST, Victim::Group);
        kill(delegate, &creates::STANDALONE, Victim::Group);
    }
}
