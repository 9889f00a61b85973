//! A create that nothing of ours is in: the config is read, its mounts are looked up, the delegate gets it
//! as it is.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use runcrust_tests::{Bundle, Delegate, Node, Run, process};

use super::Row;
use crate::Measure;
use crate::measure::{Reach, Unit};
use crate::options::Effort;
use crate::programs::NOOP;
use crate::starts::{Line, Round, Starter};
use crate::statistics::{differences, ratios};

pub(super) const ROW: Row = Row {
    name: "create",
    about: "a create with 60 KB of config, 30 mounts of depth 10, and no volume among them",
    run,
};

const ROUNDS: usize = 20;
/// Before a delegate that does nothing.
const STARTS: Round = Round {
    blocks: 10,
    starts: 20,
};
/// Before the real one, whose containers have to be put away one by one.
const CREATES: Round = Round {
    blocks: 20,
    starts: 1,
};

/// Of the config, in bytes.
const SIZE: usize = 60_000;
const MOUNTS: usize = 30;
/// Of their sources.
const DEPTH: usize = 10;

fn run(effort: &Effort) -> Vec<Measure> {
    let mut measures = before_noop(effort);
    measures.extend(before_runc(effort));
    measures
}

/// What it takes by itself.
fn before_noop(effort: &Effort) -> Vec<Measure> {
    let node = Node::in_order(Delegate::Runc, "");
    let starter = Starter::new(node.dir());
    let delegate = NOOP.build(node.dir());
    node.handler().delegate_to(&delegate);
    let bundle = bundle(&node);
    let [bare, ours] =
        [&*delegate, node.handler().path()].map(|program| create(program.into(), &bundle));

    let added = || {
        let rounds = effort.rounds(ROUNDS);
        let [bare, ours] = starter.rounds(rounds, STARTS, [&bare, &ours]);
        differences(&ours, &bare)
    };
    let nothing_staged = added();
    let device = node.ext4();
    let target = node.stage("another-pod", "pv-1", &device, &[]);
    let one_staged = added();
    let _ = node.unstage(&target).success();
    let reach = Reach::AtMost(0.3);
    vec![
        Measure::to_reach(
            "added, nothing is staged",
            Unit::Added,
            nothing_staged,
            reach,
        ),
        Measure::to_reach(
            "added, another pod's volume is staged",
            Unit::Added,
            one_staged,
            reach,
        ),
    ]
}

/// Of the whole: containers are made, and not started.
fn before_runc(effort: &Effort) -> Vec<Measure> {
    let node = Node::in_order(Delegate::Runc, "");
    let starter = Starter::new(node.dir());
    let device = node.ext4();
    let target = node.stage("another-pod", "pv-1", &device, &[]);
    let bundle = bundle(&node);
    let _guard = node.container(&bundle);
    let runc = Delegate::Runc.program();
    let [bare, ours] =
        [runc.clone(), node.handler().path().to_owned()].map(|program| create(program, &bundle));

    let put_away = || put_away(&runc, &bundle);
    let rounds = effort.rounds(ROUNDS);
    let [bare, ours] = starter.rounds_with(rounds, CREATES, [&bare, &ours], put_away);
    let _ = node.unstage(&target).success();
    let ratio = ratios(&ours, &bare);
    vec![
        Measure::told("`runc create` alone", Unit::Time, bare),
        Measure::to_reach(
            "`runc create` through runcrust",
            Unit::Ratio,
            ratio,
            Reach::AtMost(1.01),
        ),
    ]
}

/// A plain bundle: its mounts' sources are such as kubelet makes, and its environment fills it up, as that
/// of a pod among many services does.
fn bundle(node: &Node) -> Bundle {
    let volumes = node.handler().kubelet_dir().join("pods/a-pod/volumes");
    let mut bundle = Bundle::plain(node.dir());
    for index in 0..MOUNTS {
        let kind = ["configmap", "projected", "empty-dir"][index % 3];
        let source = volumes.join(format!("kubernetes.io~{kind}/volume-{index}/data"));
        assert_eq!(
            source.components().count() - 1,
            DEPTH,
            "{}",
            source.display()
        );
        fs::create_dir_all(&source).expect("a mount's source");
        bundle = bundle.bind(&source, &format!("/mnt/volume-{index}"), &[]);
    }
    let length = |bundle: &mut Bundle| bundle.spec_mut().to_string().len();
    let mut service = 0;
    while length(&mut bundle) < SIZE {
        let address = format!(
            "SERVICE_{service}_PORT_8080_TCP=tcp://10.96.0.{}:8080",
            service % 256
        );
        let environment = bundle.spec_mut()["process"]["env"].as_array_mut();
        environment.expect("an array").push(address.into());
        service += 1;
    }
    bundle.write()
}

fn create(program: PathBuf, bundle: &Bundle) -> Line {
    let (root, pid_file) = (bundle.runtime_root(), bundle.path().join("init.pid"));
    let arguments = [
        "--root".as_ref(),
        root.as_os_str(),
        "create".as_ref(),
        "--bundle".as_ref(),
        bundle.path().as_os_str(),
        "--pid-file".as_ref(),
        pid_file.as_os_str(),
        bundle.id().as_ref(),
    ];
    Line::new(&program, arguments)
}

/// Not by `delete --force`, which waits for a tenth of a second.
fn put_away(runc: &PathBuf, bundle: &Bundle) {
    let pid = fs::read_to_string(bundle.path().join("init.pid")).expect("a pid file");
    let pid = pid.trim().parse().expect("a pid");
    process::kill_and_wait(pid);
    let mut delete = Command::new(runc);
    delete
        .arg("--root")
        .arg(bundle.runtime_root())
        .args(["delete", bundle.id()]);
    let _ = Run::of(&mut delete).success();
}
