//! Limits on the system calls of a stage. Unlike times, which `make bench` measures, their number is stable.

use std::fs;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;
use runcrust_tests::node::utf8;
use runcrust_tests::ops::stage_request;
use runcrust_tests::trace::{calls, traced};
use runcrust_tests::{Delegate, LoopDevice, Node, Ops, Run};

/// Limit for a volume whose target path contains no link: the entry, its lock, and the device.
const CALL: usize = 60;
/// Further calls if the target path exists. It must not be a mount point, and it is listed because it must be empty.
const EXISTING_TARGET: usize = 9;
/// Limit for the command line: its start, the configuration, opening the directories, and the stage itself.
const COMMAND_LINE: usize = 112;

/// Reports whether a line of the trace gives an entry its name, which is the last change of a stage.
fn is_entry_rename(line: &str) -> bool {
    line.contains("renameat2(")
}

/// Returns the lines of one stage, from the received request to the line in the log. `at` is the line that gives the
/// entry its name.
fn lines_of_stage(trace: &[String], at: usize) -> Vec<&String> {
    let thread = trace[at].split_whitespace().next();
    // A call that other threads interrupt in the trace has two lines, and the second one says "resumed".
    let own =
        |line: &&String| line.split_whitespace().next() == thread && !line.contains(" resumed>");
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
fn a_stage_needs_few_system_calls() {
    let counts = calls_of_stages(|_| {});
    assert!(counts <= CALL + EXISTING_TARGET, "{counts}");
    let counts = calls_of_stages(|target| fs::remove_dir(target).unwrap());
    assert!(counts <= CALL, "{counts}");
}

/// Returns the median of the system calls of several stages. `prepared` is called for each target path first.
fn calls_of_stages(prepare: impl Fn(&Path)) -> usize {
    const VOLUMES: usize = 12;
    let node = Node::well_configured(Delegate::Runc, "");
    let device = node.ext4();
    let ops = Ops::stopped(&node, "");
    let file = node.dir().join("strace");
    ops.spawn(traced(&ops.command(), &[], &file));
    for number in 0..VOLUMES {
        let target = node.target("pod-a", &format!("pv-{number}"));
        prepare(&target);
        ops.stage(stage_request(&target, &device)).unwrap();
    }
    end_traced(&ops);

    let trace = calls(&file);
    let named = (0..trace.len()).filter(|at| is_entry_rename(&trace[*at]));
    let stages: Vec<_> = named.map(|at| lines_of_stage(&trace, at)).collect();
    assert_eq!(stages.len(), VOLUMES, "{trace:#?}");
    // The first stage also opened the directories.
    let mut counts: Vec<usize> = stages[1..].iter().map(Vec::len).collect();
    counts.sort_unstable();
    // Now and then a stage also allocates memory, so the median is compared.
    eprintln!("{counts:?} {:#?}", stages[1]);
    counts[counts.len() / 2]
}

/// Ends the daemon below strace with SIGTERM, which strace itself does not pass on.
fn end_traced(ops: &Ops) {
    let children = format!("/proc/{0}/task/{0}/children", ops.pid());
    let child = fs::read_to_string(children).expect("a running strace");
    let child = child.trim().parse().expect("one child");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(child), Signal::SIGTERM).unwrap();
    let _ = ops.wait();
}

#[test]
fn a_stage_by_hand_needs_few_system_calls() {
    let node = Node::well_configured(Delegate::Runc, "");
    let device = node.ext4();
    // Creates what only the first volume of a node needs.
    let _ = node.stage("pod-a", "pv-1", &device, &[]);
    let target = node.target("pod-a", "pv-2");
    let file = node.dir().join("strace");
    let _ = Run::capture(&mut traced(&stage(&node, &target, &device), &[], &file)).success();
    let trace = calls(&file);
    assert!(trace.iter().any(|line| is_entry_rename(line)), "{trace:#?}");
    assert!(trace.len() <= COMMAND_LINE, "{}: {trace:#?}", trace.len());
}

fn stage(node: &Node, target: &Path, device: &LoopDevice) -> Command {
    let mut command = Command::new(node.handler().path());
    command.args(["crust", "stage", utf8(target)]);
    command.args(["--device", utf8(device.path()), "--fstype", "ext4"]);
    command
}
