//! A create that nothing of ours is in: the config is read, its mounts are looked up, the delegate gets it
//! as it is.

use std::fs;
use std::path::Path;
use std::process::Command;

use runcrust_tests::{Bundle, Delegate, Run, process};

use super::Row;
use crate::effort::Effort;
use crate::measure::{Measure, Reach, Unit};
use crate::programs::NOOP;
use crate::scene;
use crate::starts::{Round, Starter};
use crate::statistics::{differences, ratios};

pub(super) const ROW: Row = Row {
    name: "create",
    about: "a create with 60 KB of config, 30 mounts of depth 10, and no volume among them",
    run,
};

const ROUNDS: usize = 20;
/// Before a delegate that does nothing.
const STARTS: Round = Round {
    blocks: 10,
    starts: 20,
};
/// Before the real one, whose containers have to be put away one by one.
const CREATES: Round = Round {
    blocks: 20,
    starts: 1,
};

fn run(effort: &Effort) -> Vec<Measure> {
    let mut measures = before_noop(effort);
    measures.extend(before_runc(effort));
    measures
}

/// What it takes by itself.
fn before_noop(effort: &Effort) -> Vec<Measure> {
    let node = scene::node("");
    let starter = Starter::new(node.dir());
    let delegate = NOOP.build(node.dir());
    node.handler().delegate_to(&delegate);
    let bundle = scene::bundle(&node).write();
    let [bare, ours] =
        [&delegate, node.handler().path()].map(|program| scene::create(program, &bundle));

    let added = || {
        let rounds = effort.rounds(ROUNDS);
        let [bare, ours] = starter.rounds(rounds, STARTS, [&bare, &ours]);
        differences(&ours, &bare)
    };
    let nothing_staged = added();
    let device = scene::device(&node);
    let target = node.stage("another-pod", "pv-1", &device, &[]);
    let one_staged = added();
    let _ = node.unstage(&target).success();
    let measure =
        |case: &str, added| Measure::to_reach(case, Unit::Added, added, Reach::AtMost(0.3));
    vec![
        measure("added, nothing is staged", nothing_staged),
        measure("added, another pod's volume is staged", one_staged),
    ]
}

/// Of the whole: containers are made, and not started.
fn before_runc(effort: &Effort) -> Vec<Measure> {
    let node = scene::node("");
    let starter = Starter::new(node.dir());
    let device = scene::device(&node);
    let target = node.stage("another-pod", "pv-1", &device, &[]);
    let bundle = scene::bundle(&node).write();
    let _guard = node.container(&bundle);
    let runc = Delegate::Runc.program();
    let [bare, ours] =
        [&runc, node.handler().path()].map(|program| scene::create(program, &bundle));

    let rounds = effort.rounds(ROUNDS);
    let put_away = || put_away(&runc, &bundle);
    let [bare, ours] = starter.rounds_with(rounds, CREATES, [&bare, &ours], put_away);
    let _ = node.unstage(&target).success();
    let ratio = ratios(&ours, &bare);
    vec![
        Measure::told("`runc create` alone", Unit::Time, bare),
        Measure::to_reach(
            "`runc create` through runcrust",
            Unit::Ratio,
            ratio,
            Reach::AtMost(1.01),
        ),
    ]
}

/// Not by `delete --force`, which waits for a tenth of a second.
fn put_away(runc: &Path, bundle: &Bundle) {
    let pid = fs::read_to_string(bundle.path().join("init.pid")).expect("a pid file");
    process::kill_and_wait(pid.trim().parse().expect("a pid"));
    let mut delete = Command::new(runc);
    delete.arg("--root").arg(bundle.runtime_root());
    let _ = Run::of(delete.args(["delete", bundle.id()])).success();
}
