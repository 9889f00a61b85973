//! A create of a container with many mounts of one volume, while another container has as many.

use std::fs;
use std::path::Path;

use runcrust_tests::{Bundle, Container, Delegate, Node};

use super::Row;
use crate::effort::Effort;
use crate::fixtures;
use crate::measure::{Measure, Target, Unit};
use crate::programs::NOOP;
use crate::starts::{CommandLine, Round, Starter};
use crate::statistics::{differences, ratios};

pub(super) const ROW: Row = Row {
    name: "mounts",
    about: "a create with 100 and with 1,500 subPaths of a volume that its sandbox has mounted",
    run,
};

const FEW: usize = 100;
const MANY: usize = 1500;
const ROUNDS: usize = 5;
/// The config is restored after each start.
const ROUND: Round = Round {
    blocks: 4,
    starts: 1,
};

fn run(effort: &Effort) -> Vec<Measure> {
    let node = fixtures::node(Delegate::Runc);
    let device = fixtures::device(&node);
    let target = node.stage("a-pod", "pv-1", &device, &[]);
    let sandbox = node.sandbox("a-pod");
    let _first = node.run(&bundle(&node, &sandbox, &target, MANY));
    let [few, many] = [FEW, MANY].map(|count| bundle(&node, &sandbox, &target, count));
    let delegate = NOOP.build(node.dir());
    node.handler().set_delegate(&delegate);
    let starter = Starter::new(node.dir());
    let bundles = [&few, &many].map(|bundle| (bundle, bundle.config_bytes()));
    let ours = [&few, &many].map(|bundle| fixtures::create(node.handler().path(), bundle));
    let bare = fixtures::create(&delegate, &few);
    let put_back = || {
        for (bundle, config) in &bundles {
            fs::write(bundle.config_path(), config).expect("a config");
        }
    };
    let commands: [&CommandLine; 3] = [&bare, &ours[0], &ours[1]];
    let [bare, few, many] = starter.rounds_with(effort.rounds(ROUNDS), ROUND, commands, put_back);
    let [few, many] = [few, many].map(|times| differences(&times, &bare));
    let each = |times: &[f64], count: usize| -> Vec<f64> {
        times.iter().map(|time| time / count as f64).collect()
    };
    let over = ratios(&each(&many, MANY), &each(&few, FEW));
    vec![
        Measure::new("added, 100 subPaths of a volume", Unit::Added, few),
        Measure::new("added, 1,500 subPaths of a volume", Unit::Added, many),
        Measure::with_target(
            "one mount of 1,500 over one of 100",
            Unit::Ratio,
            over,
            Target::AtMost(1.0),
        ),
    ]
}

fn bundle(node: &Node, sandbox: &Container, target: &Path, count: usize) -> Bundle {
    let mut bundle = node.app_bundle(sandbox);
    for number in 0..count {
        let source = target.join(number.to_string());
        bundle = bundle.bind(source, &format!("/data/{number}"), &[]);
    }
    bundle.write()
}
