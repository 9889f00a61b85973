//! `runcrust crust stage`: what a driver waits for that stages by the command line.

use runcrust_tests::Delegate;
use runcrust_tests::node::utf8;

use super::Row;
use crate::effort::Effort;
use crate::measure::{Measure, Reach, Unit};
use crate::programs::NOOP;
use crate::scene;
use crate::starts::{Line, Round, Starter};
use crate::statistics::differences;

pub(super) const ROW: Row = Row {
    name: "stage",
    about: "`runcrust crust stage` of a volume that isn't staged, against a program that does nothing",
    run,
};

const ROUNDS: usize = 20;
/// What was staged is taken away after each.
const ROUND: Round = Round {
    blocks: 50,
    starts: 1,
};

fn run(effort: &Effort) -> Vec<Measure> {
    let node = scene::node(Delegate::Runc);
    let starter = Starter::new(node.dir());
    let delegate = NOOP.build(node.dir());
    let device = scene::device(&node);
    let target = node.target("a-pod", "pv-1");
    let (path, device) = (utf8(&target), utf8(device.path()));
    let arguments = [
        "crust", "stage", path, "--device", device, "--fstype", "ext4",
    ];
    let [bare, ours] =
        [&delegate, node.handler().path()].map(|program| Line::new(program, arguments));

    let places = [node.entry(&target), node.lock_file(&target)];
    let take_away = || scene::unstaged(&places);
    let rounds = effort.rounds(ROUNDS);
    let [bare, ours] = starter.rounds_with(rounds, ROUND, [&bare, &ours], take_away);
    let added = differences(&ours, &bare);
    vec![Measure::to_reach(
        "added",
        Unit::Added,
        added,
        Reach::AtMost(0.3),
    )]
}
