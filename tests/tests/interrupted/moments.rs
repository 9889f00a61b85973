//! Delegates, what they start, and whole process groups that are killed at some moment: nobody knows
//! how far they were.

use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::random::{Random, seed};
use runcrust_tests::{Delegate, on_each_delegate, process, wait_until};

use crate::choice::Choice;
use crate::row::{First, Row};
use crate::rows::{creates, ends};
use crate::scene::Scene;

/// Who is killed.
#[derive(Debug, Clone, Copy)]
enum Victim {
    /// The process that was runcrust.
    Delegate,
    /// What that has started: a container's first process on its way, or a hook.
    Child,
    /// All of them.
    Group,
}

impl Victim {
    /// Kills it; whether there was one.
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

/// How long it takes when nobody disturbs it.
fn duration(delegate: Delegate, row: &Row) -> Duration {
    let scene = Scene::of(delegate, row);
    let mut begun = (row.begin)(&scene);
    let start = Instant::now();
    let _ = begun.start().wait().expect("waitpid");
    let duration = start.elapsed();
    begun.end();
    scene.put_away();
    duration
}

fn kill_after(delegate: Delegate, row: &Row, victim: Victim, wait: Duration, first: First) {
    let scene = Scene::of(delegate, row);
    let mut begun = (row.begin)(&scene);
    let mut child = begun.start();
    thread::sleep(wait);
    while child.try_wait().expect("waitpid").is_none() && !victim.kill(child.id().cast_signed()) {}
    let _ = child.wait().expect("waitpid");
    if matches!(victim, Victim::Group) {
        // Only the first is our child.
        wait_until("the killed to end", WAIT_TIMEOUT, || {
            process::in_group(child.id().cast_signed()).is_empty()
        });
    }
    if let Some((container, _)) = &begun.container {
        container.clean_up_after_kill();
    }
    row.goes_on(begun, &scene, first);
}

/// At moments of which a create by itself has each.
fn kill(delegate: Delegate, row: &Row, victim: Victim) {
    let whole = duration(delegate, row);
    let mut random = Random::new(seed());
    for nth in 0..Choice::made().moments() {
        let percent = u32::try_from(random.below(100)).expect("it is less");
        let wait = whole * percent / 100;
        println!("{victim:?} killed after {wait:?} of {whole:?}");
        kill_after(delegate, row, victim, wait, First::by_turns(nth));
    }
}

on_each_delegate! {
    fn the_delegate_that_creates_a_sandbox(delegate: Delegate) {
        kill(delegate, &creates::SANDBOX, Victim::Delegate);
    }

    fn the_delegate_that_creates_a_container(delegate: Delegate) {
        kill(delegate, &creates::FIRST, Victim::Delegate);
    }

    fn the_delegate_that_deletes_a_sandbox(delegate: Delegate) {
        kill(delegate, &ends::SANDBOX, Victim::Delegate);
    }

    fn what_the_delegate_starts(delegate: Delegate) {
        kill(delegate, &creates::SANDBOX, Victim::Child);
        kill(delegate, &creates::FIRST, Victim::Child);
    }

    fn everything_that_creates_a_sandbox(delegate: Delegate) {
        kill(delegate, &creates::SANDBOX, Victim::Group);
    }

    fn everything_that_creates_a_container(delegate: Delegate) {
        kill(delegate, &creates::FIRST, Victim::Group);
        kill(delegate, &creates::PLAIN, Victim::Group);
    }
}
