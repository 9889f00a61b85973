//! runc and crun with and without runcrust: a create, a start and a state are measured separately. (`delete --force` is
//! not measured, because it sleeps for a tenth of a second.) Containers that are started or queried were created by the
//! runtime alone. A C pass-through shows what any program in front of a runtime costs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use runcrust_tests::{Bundle, Delegate, Run, process};

use crate::effort::Effort;
use crate::fixtures;
use crate::measure::{Measure, Target, Unit};
use crate::programs::PASSTHROUGH;
use crate::starts::{CommandLine, Round, Starter};
use crate::statistics::ratios;

/// Many rounds, because a runtime's own time varies by more than what runcrust may add.
const ROUNDS: usize = 25;
/// For commands after which the container has to be removed.
const SINGLE: Round = Round {
    blocks: 20,
    starts: 1,
};
const STATES: Round = Round {
    blocks: 5,
    starts: 5,
};

/// Returns the time of each command alone, and the ratios through runcrust and through the C pass-through.
pub(super) fn measured(effort: &Effort, delegate: Delegate) -> Vec<Measure> {
    let node = fixtures::node(delegate);
    let starter = Starter::new(node.dir());
    let device = fixtures::device(&node);
    let target = node.stage("another-pod", "pv-1", &device, &[]);
    let bundle = fixtures::bundle(&node).write();
    let _guard = node.container(&bundle);
    let container = Container {
        delegate: delegate.program(),
        bundle,
    };
    let passthrough = PASSTHROUGH.build_with(node.dir(), &[("DELEGATE", &container.delegate)]);
    let through = |line: &dyn Fn(&Path) -> CommandLine| {
        [&*container.delegate, node.handler().path(), &passthrough].map(line)
    };
    let rounds = effort.rounds(ROUNDS);

    let to_create = through(&|program| fixtures::create(program, &container.bundle));
    let delete = || container.delete();
    let create = starter.rounds_with(rounds, SINGLE, to_create.each_ref(), delete);
    let anew = || starter.run_once(&to_create[0]);
    anew();
    let to_ask = through(&|program| container.line(program, "state"));
    let state = starter.rounds(rounds, STATES, to_ask.each_ref());
    let to_start = through(&|program| container.line(program, "start"));
    let start = starter.rounds_with(rounds, SINGLE, to_start.each_ref(), || {
        container.delete();
        anew();
    });
    container.delete();
    let _ = node.unstage(&target).success();

    let all = [
        ("create", create, Some(Target::AtMost(1.01))),
        ("start", start, None),
        ("state", state, None),
    ];
    let measures = all
        .into_iter()
        .flat_map(|(verb, [alone, ours, c], target)| {
            let [ours, c] = [ours, c].map(|through| ratios(&through, &alone));
            let command = format!("`{delegate} {verb}`");
            [
                Measure::new(format!("{command} alone"), Unit::Time, alone),
                Measure {
                    target,
                    ..Measure::new(format!("{command} through runcrust"), Unit::Ratio, ours)
                },
                Measure::new(
                    format!("{command} through the C pass-through"),
                    Unit::Ratio,
                    c,
                ),
            ]
        });
    measures.collect()
}

/// The only container, which is created and removed again and again.
struct Container {
    delegate: PathBuf,
    bundle: Bundle,
}

impl Container {
    /// Returns a command for the container.
    fn line(&self, program: &Path, verb: &str) -> CommandLine {
        let root = self.bundle.runtime_root();
        let words = ["--root".as_ref(), root.as_os_str(), verb.as_ref()];
        CommandLine::new(
            program,
            words.into_iter().chain([self.bundle.id().as_ref()]),
        )
    }

    fn delete(&self) {
        let pid = fs::read_to_string(self.bundle.path().join("init.pid")).expect("a pid file");
        process::kill_and_wait(pid.trim().parse().expect("a pid"));
        let mut delete = Command::new(&self.delegate);
        delete.arg("--root").arg(self.bundle.runtime_root());
        let _ = Run::capture(delete.args(["delete", self.bundle.id()])).success();
    }
}
