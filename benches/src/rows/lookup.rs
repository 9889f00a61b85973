//! What a create asks of the crust directory, by how much is staged.

use std::fs;
use std::path::Path;
use std::process::Command;

use runcrust_tests::{Bundle, Delegate, Node, Run, trace};

use super::Row;
use crate::effort::Effort;
use crate::measure::{Measure, Reach, Unit};
use crate::programs::NOOP;
use crate::scene;
use crate::starts::{Line, Round, Starter};
use crate::statistics::ratios;

pub(super) const ROW: Row = Row {
    name: "lookup",
    about: "a create with no volume among its mounts, where 1 and where 100,000 others are staged",
    run,
};

const ROUNDS: usize = 20;
const ROUND: Round = Round {
    blocks: 10,
    starts: 20,
};
const MANY: usize = 100_000;

fn run(effort: &Effort) -> Vec<Measure> {
    // Side by side: the two take turns.
    let (few, many) = (Place::new(), Place::new());
    let nothing_staged = few.probes();
    few.stage(1);
    let one_staged = few.probes();
    many.stage(MANY);

    let starter = Starter::new(few.node.dir());
    let (one, all) = (few.create(), many.create());
    let [one, all] = starter.rounds(effort.rounds(ROUNDS), ROUND, [&one, &all]);
    vec![
        Measure::to_reach(
            "the create's whole time, 100,000 staged over 1",
            Unit::Ratio,
            ratios(&all, &one),
            Reach::AtMost(1.1),
        ),
        Measure::to_reach(
            "probes when nothing is staged",
            Unit::Count,
            vec![nothing_staged],
            Reach::AtMost(0.0),
        ),
        Measure::told(
            "probes when another pod's volume is",
            Unit::Count,
            vec![one_staged],
        ),
    ]
}

/// A node, and a bundle on it.
struct Place {
    bundle: Bundle,
    node: Node,
}

impl Place {
    fn new() -> Self {
        let node = scene::node(Delegate::Runc);
        let delegate = NOOP.build(node.dir());
        node.handler().set_delegate(&delegate);
        let bundle = scene::bundle(&node).write();
        Self { bundle, node }
    }

    fn create(&self) -> Line {
        scene::create(self.node.handler().path(), &self.bundle)
    }

    /// Stages a volume, and puts copies of its entry under the names of others.
    fn stage(&self, count: usize) {
        let device = scene::device(&self.node);
        let staged = self.node.stage("another-pod", "pv-0", &device, &[]);
        let first = self.node.entry(&staged);
        for index in 1..count {
            let pv = format!("pv-{index}");
            let target = self.node.handler().target_path("another-pod", &pv);
            copy(&first, &self.node.entry(&target));
        }
    }

    /// The system calls that name an entry of the crust directory, which is a SHA-256.
    fn probes(&self) -> f64 {
        let log = self.node.dir().join("strace.log");
        let mut strace = Command::new("strace");
        strace.args(["-f", "-s", "4096", "-o"]).arg(&log);
        let _ = Run::of(strace.args(self.create().words())).success();
        let calls = fs::read_to_string(&log).expect("strace's log");
        calls
            .lines()
            .filter(|call| trace::names_an_entry(call))
            .count() as f64
    }
}

/// The files of an entry, as they are.
fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).expect("an entry");
    for file in fs::read_dir(from).expect("an entry").flatten() {
        fs::copy(file.path(), to.join(file.file_name())).expect("an entry's file");
    }
    let mode = fs::metadata(from).expect("an entry").permissions();
    fs::set_permissions(to, mode).expect("chmod an entry");
}
