//! What a stage may cost, counted in system calls: no clock is as steady. `make bench` has the times.

use std::fs;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;
use runcrust_tests::node::utf8;
use runcrust_tests::ops::stage_request;
use runcrust_tests::trace::{calls, traced};
use runcrust_tests::{Delegate, LoopDevice, Node, Ops, Run};

/// Of a volume whose target path has no link in it: the entry, its lock, the device.
const CALL: usize = 60;
/// And of one whose target path is there: it is looked at, for it must not be a mount, and listed, for it must be
/// empty.
const LOOK: usize = 9;
/// System calls of the command line: its start, the configuration, the way to the directories, and the call's own.
const COMMAND: usize = 112;

/// What ends a stage's changes.
fn names_an_entry(line: &str) -> bool {
    line.contains("renameat2(")
}

/// What the thread that stages does for it, from what it was told to its line in the log: `at` is where the entry
/// gets its name.
fn call(trace: &[String], at: usize) -> Vec<&String> {
    let thread = trace[at].split_whitespace().next();
    let own = |line: &&String| line.split_whitespace().next() == thread;
    let waits = |line: &&String| {
        let waits = ["recvfrom(", "epoll_pwait(", "futex("];
        waits.iter().any(|wait| line.contains(wait))
    };
    let before = trace[..at].iter().rev().filter(own);
    let mut calls: Vec<&String> = before.take_while(|line| !waits(line)).collect();
    calls.reverse();
    let after = trace[at..].iter().filter(own);
    let ends = |line: &&String| line.contains(" write(2, ") || waits(line);
    calls.extend(after.take_while(|line| !ends(line)));
    calls
}

#[test]
fn a_call_of_a_volume_in_memory_costs_its_files() {
    let counts = calls_of_stages(|_| {});
    assert!(counts <= CALL + LOOK, "{counts}");
    let counts = calls_of_stages(|target| fs::remove_dir(target).unwrap());
    assert!(counts <= CALL, "{counts}");
}

/// The median of what stages cost whose target paths were `prepared`.
fn calls_of_stages(prepared: impl Fn(&Path)) -> usize {
    const VOLUMES: usize = 12;
    let node = Node::well_configured(Delegate::Runc, "");
    let device = node.ext4();
    let ops = Ops::stopped(&node, "");
    let file = node.dir().join("strace");
    ops.spawn(traced(&ops.command(), &[], &file));
    for number in 0..VOLUMES {
        let target = node.target("pod-a", &format!("pv-{number}"));
        prepared(&target);
        ops.stage(stage_request(&target, &device)).unwrap();
    }
    end(&ops);

    let trace = calls(&file);
    let named = (0..trace.len()).filter(|at| names_an_entry(&trace[*at]));
    let stages: Vec<_> = named.map(|at| call(&trace, at)).collect();
    assert_eq!(stages.len(), VOLUMES, "{trace:#?}");
    // The first opened the directories.
    let mut counts: Vec<usize> = stages[1..].iter().map(Vec::len).collect();
    counts.sort_unstable();
    // Memory comes from the kernel now and then.
    eprintln!("{counts:?} {:#?}", stages[1]);
    counts[counts.len() / 2]
}

/// strace hands signals on to nobody but the one that it traces.
fn end(ops: &Ops) {
    let children = format!("/proc/{0}/task/{0}/children", ops.pid());
    let child = fs::read_to_string(children).expect("strace runs");
    let child = child.trim().parse().expect("one child");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(child), Signal::SIGTERM).unwrap();
    let _ = ops.wait();
}

#[test]
fn a_command_costs_its_start_and_its_files() {
    let node = Node::well_configured(Delegate::Runc, "");
    let device = node.ext4();
    // With it what a node's first volume makes.
    let _ = node.stage("pod-a", "pv-1", &device, &[]);
    let target = node.target("pod-a", "pv-2");
    let file = node.dir().join("strace");
    let _ = Run::of(&mut traced(&stage(&node, &target, &device), &[], &file)).success();
    let trace = calls(&file);
    assert!(trace.iter().any(|line| names_an_entry(line)), "{trace:#?}");
    assert!(trace.len() <= COMMAND, "{}: {trace:#?}", trace.len());
}

fn stage(node: &Node, target: &Path, device: &LoopDevice) -> Command {
    let mut command = Command::new(node.handler().path());
    command.args(["crust", "stage", utf8(target)]);
    command.args(["--device", utf8(device.path()), "--fstype", "ext4"]);
    command
}
