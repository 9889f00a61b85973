//! A command that is not a create: the time until runcrust execs the delegate.

use std::path::Path;

use runcrust_tests::{Delegate, Node};

use super::Row;
use crate::effort::Effort;
use crate::measure::{Measure, Target, Unit};
use crate::programs::{CHECKED, NOOP, PASSTHROUGH};
use crate::starts::{CommandLine, Round, Starter};
use crate::statistics::{differences, ratios};

pub(super) const ROW: Row = Row {
    name: "passthrough",
    about: "`state` before a static delegate that does nothing, against a C pass-through",
    run,
};

/// Several thousand starts of each program.
const ROUNDS: usize = 20;
const ROUND: Round = Round {
    blocks: 10,
    starts: 20,
};

fn run(effort: &Effort) -> Vec<Measure> {
    let node = Node::well_configured(Delegate::Runc, "");
    let dir = node.dir();
    let starter = Starter::new(dir);
    let delegate = NOOP.build(dir);
    node.handler().set_delegate(&delegate);
    let passthrough = PASSTHROUGH.build_with(dir, &[("DELEGATE", &delegate)]);
    let configuration = node.handler().configuration();
    let files: [(_, &Path); 2] = [("DELEGATE", &delegate), ("CONFIGURATION", &configuration)];
    let checked = CHECKED.build_with(dir, &files);

    // The arguments of containerd's shim.
    let arguments = [
        "--root",
        "/run/runc",
        "--log",
        "/dev/null",
        "--log-format",
        "json",
    ];
    let arguments = || arguments.into_iter().chain(["state", "a-container"]);
    let [bare, c, checked, ours] = [&*delegate, &passthrough, &checked, node.handler().path()]
        .map(|program| CommandLine::new(program, arguments()));

    let commands = [&bare, &c, &checked, &ours];
    let [bare_took, others @ ..] = starter.rounds(effort.rounds(ROUNDS), ROUND, commands);
    let [c_added, checked_added, added] = others.map(|took| differences(&took, &bare_took));
    let target = Target::AtMost(1.5);
    let peak = || (0..5).map(|_| starter.peak(&ours)).collect();
    vec![
        Measure::new("the delegate alone", Unit::Time, bare_took),
        Measure::new("added by the C pass-through", Unit::Added, c_added.clone()),
        Measure::new(
            "added by C that checks the same files",
            Unit::Added,
            checked_added,
        ),
        Measure::new("added by runcrust", Unit::Added, added.clone()),
        Measure::with_target(
            "runcrust's added time over the pass-through's",
            Unit::Ratio,
            ratios(&added, &c_added),
            target,
        ),
        Measure::with_target(
            "peak RSS before the exec",
            Unit::Size,
            peak(),
            Target::AtMost(0.8),
        ),
    ]
}
