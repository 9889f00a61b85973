//! A command that isn't a create: what runcrust takes before it is the delegate.

use runcrust_tests::{Delegate, Node};

use super::Row;
use crate::effort::Effort;
use crate::measure::{Measure, Reach, Unit};
use crate::programs::{NOOP, PASSTHROUGH};
use crate::starts::{Line, Round, Starter};
use crate::statistics::{differences, ratios};

pub(super) const ROW: Row = Row {
    name: "passthrough",
    about: "`state` before a static delegate that does nothing, against a C pass-through",
    run,
};

/// Thousands of starts of each.
const ROUNDS: usize = 20;
const ROUND: Round = Round {
    blocks: 10,
    starts: 20,
};

fn run(effort: &Effort) -> Vec<Measure> {
    let node = Node::in_order(Delegate::Runc, "");
    let dir = node.dir();
    let starter = Starter::new(dir);
    let delegate = NOOP.build(dir);
    let passthrough = PASSTHROUGH.build_for(dir, &delegate);
    node.handler().delegate_to(&delegate);

    // As containerd's shim asks.
    let arguments = [
        "--root",
        "/run/runc",
        "--log",
        "/dev/null",
        "--log-format",
        "json",
    ];
    let arguments = || arguments.into_iter().chain(["state", "a-container"]);
    let [bare, c, ours] = [&*delegate, &passthrough, node.handler().path()]
        .map(|program| Line::new(program, arguments()));

    let times = starter.rounds(effort.rounds(ROUNDS), ROUND, [&bare, &c, &ours]);
    let [bare_took, c_took, ours_took] = times;
    let c_added = differences(&c_took, &bare_took);
    let added = differences(&ours_took, &bare_took);
    let reach = Reach::AtMost(1.5);
    let peak = || (0..5).map(|_| starter.peak(&ours)).collect();
    vec![
        Measure::told("the delegate alone", Unit::Time, bare_took),
        Measure::told("added by the C pass-through", Unit::Added, c_added.clone()),
        Measure::told("added by runcrust", Unit::Added, added.clone()),
        Measure::to_reach(
            "runcrust's added time over the pass-through's",
            Unit::Ratio,
            ratios(&added, &c_added),
            reach,
        ),
        Measure::to_reach(
            "peak RSS before the exec",
            Unit::Size,
            peak(),
            Reach::AtMost(0.8),
        ),
    ]
}
