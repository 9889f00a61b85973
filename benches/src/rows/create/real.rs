//! Before runc and crun: the whole of a create, a start and a state, each by itself. (In a `delete --force` a tenth
//! of a second of sleep would hide all of it.) What is started, or asked for its state, was created by the runtime
//! alone. What another program before a runtime costs it, whatever that does, a C pass-through tells.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use runcrust_tests::{Bundle, Delegate, Run, process};

use crate::effort::Effort;
use crate::measure::{Measure, Reach, Unit};
use crate::programs::PASSTHROUGH;
use crate::scene;
use crate::starts::{Line, Round, Starter};
use crate::statistics::ratios;

/// Many: a runtime's own time varies by more than what is asked of ours.
const ROUNDS: usize = 25;
/// Of containers, which have to be put away one by one.
const SINGLE: Round = Round {
    blocks: 20,
    starts: 1,
};
const STATES: Round = Round {
    blocks: 5,
    starts: 5,
};

/// Of each command how long it takes, and how many times as long through runcrust.
pub(super) fn measured(effort: &Effort, delegate: Delegate) -> Vec<Measure> {
    let node = scene::node(delegate);
    let starter = Starter::new(node.dir());
    let device = scene::device(&node);
    let target = node.stage("another-pod", "pv-1", &device, &[]);
    let bundle = scene::bundle(&node).write();
    let _guard = node.container(&bundle);
    let container = Container {
        delegate: delegate.program(),
        bundle,
    };
    let passthrough = PASSTHROUGH.build_with(node.dir(), &[("DELEGATE", &container.delegate)]);
    let through = |line: &dyn Fn(&Path) -> Line| {
        [&*container.delegate, node.handler().path(), &passthrough].map(line)
    };
    let rounds = effort.rounds(ROUNDS);

    let to_create = through(&|program| scene::create(program, &container.bundle));
    let put_away = || container.put_away();
    let create = starter.rounds_with(rounds, SINGLE, to_create.each_ref(), put_away);
    let anew = || starter.once(&to_create[0]);
    anew();
    let to_ask = through(&|program| container.line(program, "state"));
    let state = starter.rounds(rounds, STATES, to_ask.each_ref());
    let to_start = through(&|program| container.line(program, "start"));
    let start = starter.rounds_with(rounds, SINGLE, to_start.each_ref(), || {
        container.put_away();
        anew();
    });
    container.put_away();
    let _ = node.unstage(&target).success();

    let all = [
        ("create", create, Some(Reach::AtMost(1.01))),
        ("start", start, None),
        ("state", state, None),
    ];
    let measures = all.into_iter().flat_map(|(verb, [alone, ours, c], reach)| {
        let [ours, c] = [ours, c].map(|through| ratios(&through, &alone));
        let command = format!("`{delegate} {verb}`");
        [
            Measure::told(format!("{command} alone"), Unit::Time, alone),
            Measure {
                reach,
                ..Measure::told(format!("{command} through runcrust"), Unit::Ratio, ours)
            },
            Measure::told(
                format!("{command} through the C pass-through"),
                Unit::Ratio,
                c,
            ),
        ]
    });
    measures.collect()
}

/// One, of which there is at most one at a time.
struct Container {
    delegate: PathBuf,
    bundle: Bundle,
}

impl Container {
    /// A command about it.
    fn line(&self, program: &Path, verb: &str) -> Line {
        let root = self.bundle.runtime_root();
        let words = ["--root".as_ref(), root.as_os_str(), verb.as_ref()];
        Line::new(
            program,
            words.into_iter().chain([self.bundle.id().as_ref()]),
        )
    }

    fn put_away(&self) {
        let pid = fs::read_to_string(self.bundle.path().join("init.pid")).expect("a pid file");
        process::kill_and_wait(pid.trim().parse().expect("a pid"));
        let mut delete = Command::new(&self.delegate);
        delete.arg("--root").arg(self.bundle.runtime_root());
        let _ = Run::of(delete.args(["delete", self.bundle.id()])).success();
    }
}
