//! A create without a staged volume: the config is read, its mounts are looked up, and the delegate gets the unchanged
//! config.

mod real;

use runcrust_tests::Delegate;

use super::Row;
use crate::effort::Effort;
use crate::fixtures;
use crate::measure::{Measure, Target, Unit};
use crate::programs::NOOP;
use crate::starts::{Round, Starter};
use crate::statistics::differences;

pub(super) const ROW: Row = Row {
    name: "create",
    about: "a create with 60 KB of config, 30 mounts of depth 10, and no volume among them",
    run,
};

const ROUNDS: usize = 20;
/// For a delegate that does nothing.
const STARTS: Round = Round {
    blocks: 10,
    starts: 20,
};

fn run(effort: &Effort) -> Vec<Measure> {
    let mut measures = measure_before_noop(effort);
    for delegate in [Delegate::Runc, Delegate::Crun] {
        measures.extend(real::measured(effort, delegate));
    }
    measures
}

/// Measures what runcrust adds by itself.
fn measure_before_noop(effort: &Effort) -> Vec<Measure> {
    let node = fixtures::node(Delegate::Runc);
    let starter = Starter::new(node.dir());
    let delegate = NOOP.build(node.dir());
    node.handler().set_delegate(&delegate);
    let bundle = fixtures::bundle(&node).write();
    let [bare, ours] =
        [&delegate, node.handler().path()].map(|program| fixtures::create(program, &bundle));

    let added = || {
        let rounds = effort.rounds(ROUNDS);
        let [bare, ours] = starter.rounds(rounds, STARTS, [&bare, &ours]);
        differences(&ours, &bare)
    };
    let nothing_staged = added();
    let device = fixtures::device(&node);
    let target = node.stage("another-pod", "pv-1", &device, &[]);
    let one_staged = added();
    let _ = node.unstage(&target).success();
    let measure =
        |case: &str, added| Measure::with_target(case, Unit::Added, added, Target::AtMost(0.3));
    vec![
        measure("added, nothing is staged", nothing_staged),
        measure("added, another pod's volume is staged", one_staged),
    ]
}
