//! The lookups of a create in the crust directory, with few and with many staged volumes.

use std::fs;
use std::path::Path;
use std::process::Command;

use runcrust_tests::{Bundle, Delegate, Node, Run, trace};

use super::Row;
use crate::effort::Effort;
use crate::fixtures;
use crate::measure::{Measure, Target, Unit};
use crate::programs::NOOP;
use crate::starts::{CommandLine, Round, Starter};
use crate::statistics::ratios;

pub(super) const ROW: Row = Row {
    name: "lookup",
    about: "a create without a volume among its mounts, while 1 and while 100,000 others are staged",
    run,
};

const ROUNDS: usize = 20;
const ROUND: Round = Round {
    blocks: 10,
    starts: 20,
};
const MANY: usize = 100_000;

fn run(effort: &Effort) -> Vec<Measure> {
    // Both nodes exist at the same time, because they are measured in turns.
    let (few, many) = (LookupNode::new(), LookupNode::new());
    let nothing_staged = few.probes();
    few.stage(1);
    let one_staged = few.probes();
    many.stage(MANY);

    let starter = Starter::new(few.node.dir());
    let (one, all) = (few.create(), many.create());
    let [one, all] = starter.rounds(effort.rounds(ROUNDS), ROUND, [&one, &all]);
    vec![
        Measure::with_target(
            "the create's whole time, 100,000 staged over 1",
            Unit::Ratio,
            ratios(&all, &one),
            Target::AtMost(1.1),
        ),
        Measure::with_target(
            "probes when nothing is staged",
            Unit::Count,
            vec![nothing_staged],
            Target::AtMost(0.0),
        ),
        Measure::new(
            "probes when another pod's volume is staged",
            Unit::Count,
            vec![one_staged],
        ),
    ]
}

/// A node with a bundle.
struct LookupNode {
    bundle: Bundle,
    node: Node,
}

impl LookupNode {
    fn new() -> Self {
        let node = fixtures::node(Delegate::Runc);
        let delegate = NOOP.build(node.dir());
        node.handler().set_delegate(&delegate);
        let bundle = fixtures::bundle(&node).write();
        Self { bundle, node }
    }

    fn create(&self) -> CommandLine {
        fixtures::create(self.node.handler().path(), &self.bundle)
    }

    /// Stages a volume and copies its entry under the names of other volumes.
    fn stage(&self, count: usize) {
        let device = fixtures::device(&self.node);
        let staged = self.node.stage("another-pod", "pv-0", &device, &[]);
        let first = self.node.entry(&staged);
        for index in 1..count {
            let pv = format!("pv-{index}");
            let target = self.node.handler().target_path("another-pod", &pv);
            copy(&first, &self.node.entry(&target));
        }
    }

    /// Counts the system calls that name an entry of the crust directory, which is a SHA-256.
    fn probes(&self) -> f64 {
        let log = self.node.dir().join("strace.log");
        let mut strace = Command::new("strace");
        strace.args(["-f", "-s", "4096", "-o"]).arg(&log);
        let _ = Run::capture(strace.args(self.create().words())).success();
        let calls = fs::read_to_string(&log).expect("strace's log");
        calls
            .lines()
            .filter(|call| trace::names_an_entry(call))
            .count() as f64
    }
}

/// Copies an entry.
fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).expect("an entry");
    for file in fs::read_dir(from).expect("an entry").flatten() {
        fs::copy(file.path(), to.join(file.file_name())).expect("an entry's file");
    }
    let mode = fs::metadata(from).expect("an entry").permissions();
    fs::set_permissions(to, mode).expect("chmod an entry");
}
