//! What a stage may cost, counted in system calls: no clock is as steady. `make bench` has the times.

use std::fs;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;
use runcrust_tests::node::utf8;
use runcrust_tests::ops::stage_request;
use runcrust_tests::{Delegate, LoopDevice, Node, Ops, Run};

/// Of a volume whose target path is there, over no link: the entry, its lock, the device, the answer and the line
/// in the log.
const CALL: usize = 55;
/// And of the command line, which starts first: the configuration, the way to the directories.
const COMMAND: usize = 110;

/// strace, which writes to a file.
fn strace(file: &Path) -> Command {
    let mut strace = Command::new("/usr/bin/strace");
    strace.args(["-f", "-qq", "-o"]).arg(file).arg("--");
    strace
}

fn lines(file: &Path) -> Vec<String> {
    let text = fs::read(file).expect("strace has written");
    let text = String::from_utf8_lossy(&text).into_owned();
    // A call during which another thread made one has a second line.
    let calls = text.lines().filter(|line| !line.contains(" resumed>"));
    calls.map(str::to_owned).collect()
}

/// What ends a stage's changes.
fn names_an_entry(line: &str) -> bool {
    line.contains("renameat2(")
}

/// From the moment that a call's entry has its name to that of the next one's: there lie all of one call.
fn calls(trace: &[String]) -> Vec<&[String]> {
    let named: Vec<usize> = (0..trace.len())
        .filter(|at| names_an_entry(&trace[*at]))
        .collect();
    named.windows(2).map(|it| &trace[it[0]..it[1]]).collect()
}

#[test]
fn a_call_of_a_volume_in_memory_costs_its_files_and_no_other_thread() {
    const VOLUMES: usize = 12;
    let node = Node::in_order(Delegate::Runc, "");
    let device = node.ext4();
    let ops = Ops::stopped(&node, "");
    let file = node.dir().join("strace");
    let mut command = strace(&file);
    let daemon = ops.command();
    command.arg(daemon.get_program()).args(daemon.get_args());
    ops.spawn(command);
    for number in 0..VOLUMES {
        let target = node.target("pod-a", &format!("pv-{number}"));
        ops.stage(stage_request(&target, &device)).unwrap();
    }
    end(&ops);

    let trace = lines(&file);
    let calls = calls(&trace);
    assert_eq!(calls.len(), VOLUMES - 1, "{trace:#?}");
    // The first was a thread's, which opened the directories; and what the client does is now and then answered
    // between two.
    let mut counts: Vec<usize> = calls[1..].iter().map(|call| call.len()).collect();
    counts.sort_unstable();
    let median = counts[counts.len() / 2];
    assert!(median <= CALL, "{counts:?} {:#?}", calls[1]);
    for call in &calls[1..] {
        let thread = |name: &str| {
            let line = call.iter().find(|line| line.contains(name));
            line.and_then(|line| line.split_whitespace().next())
        };
        assert_eq!(thread("mkdirat("), thread("\"mountInfo.json\""));
        assert!(
            !call.iter().any(|line| line.contains("clone(")),
            "a thread was started: {call:#?}"
        );
    }
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
    let node = Node::in_order(Delegate::Runc, "");
    let device = node.ext4();
    // With it what a node's first volume makes.
    let _ = node.stage("pod-a", "pv-1", &device, &[]);
    let target = node.target("pod-a", "pv-2");
    let file = node.dir().join("strace");
    let _ = Run::of(&mut stage(&node, &target, &device, &file)).success();
    let trace = lines(&file);
    assert!(trace.iter().any(|line| names_an_entry(line)), "{trace:#?}");
    assert!(trace.len() <= COMMAND, "{}: {trace:#?}", trace.len());
}

fn stage(node: &Node, target: &Path, device: &LoopDevice, file: &Path) -> Command {
    let mut command = strace(file);
    command.arg(node.handler().path());
    command.args(["crust", "stage", utf8(target)]);
    command.args(["--device", utf8(device.path()), "--fstype", "ext4"]);
    command
}
