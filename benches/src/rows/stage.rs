//! `runcrust crust stage`: the time that a driver waits which stages through the command line.

use runcrust_tests::Delegate;
use runcrust_tests::node::utf8;

use super::Row;
use crate::effort::Effort;
use crate::fixtures;
use crate::measure::{Measure, Target, Unit};
use crate::programs::NOOP;
use crate::starts::{CommandLine, Round, Starter};
use crate::statistics::differences;

pub(super) const ROW: Row = Row {
    name: "stage",
    about: "`runcrust crust stage` of a volume that isn't staged, against a program that does nothing",
    run,
};

const ROUNDS: usize = 20;
/// The staged volume is removed after each start.
const ROUND: Round = Round {
    blocks: 50,
    starts: 1,
};

fn run(effort: &Effort) -> Vec<Measure> {
    let node = fixtures::node(Delegate::Runc);
    let starter = Starter::new(node.dir());
    let delegate = NOOP.build(node.dir());
    let device = fixtures::device(&node);
    let target = node.target("a-pod", "pv-1");
    let (path, device) = (utf8(&target), utf8(device.path()));
    let arguments = [
        "crust", "stage", path, "--device", device, "--fstype", "ext4",
    ];
    let [bare, ours] =
        [&delegate, node.handler().path()].map(|program| CommandLine::new(program, arguments));

    let places = [node.entry(&target), node.lock_file(&target)];
    let remove_staged = || fixtures::remove_staged(&places);
    let rounds = effort.rounds(ROUNDS);
    let [bare, ours] = starter.rounds_with(rounds, ROUND, [&bare, &ours], remove_staged);
    let added = differences(&ours, &bare);
    vec![Measure::with_target(
        "added",
        Unit::Added,
        added,
        Target::AtMost(0.3),
    )]
}
