//! `explain` creates no file or directory, takes no lock, and mounts nothing.

use std::fs;
use std::process::Command;

use runcrust_tests::node::utf8;
use runcrust_tests::system_calls::{CallKind, names};
use runcrust_tests::{Bundle, Node, POD, Run, StagedVolume, on_each_delegate};

use crate::scene::explain;

/// Returns the lines of a trace that show a change.
fn changes(trace: &str) -> Vec<&str> {
    let is_harmless = |line: &&str| {
        let call = line.split_once('(').map_or("", |(call, _)| call);
        let opens = matches!(call, "open" | "openat" | "openat2");
        let writes = ["O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC", "O_EXCL"];
        // A child process probes loop devices for their backing files, because that may hang.
        let asks = ["LOOP_GET_STATUS64", "clone(child_stack=NULL, flags=0)"];
        line.starts_with("+++")
            || asks.iter().any(|word| line.contains(word))
            || (opens && !writes.iter().any(|flag| line.contains(flag)))
    };
    trace.lines().filter(|line| !is_harmless(line)).collect()
}

#[track_caller]
fn assert_changes_nothing(node: &Node, bundle: &Bundle) {
    let file = node.dir().join("strace");
    let mut strace = Command::new("strace");
    let changing = names(&[CallKind::Open, CallKind::Object, CallKind::Request]);
    // `?` because not every version of strace knows all of the calls.
    let traced: Vec<String> = changing
        .chain(["connect", "setrlimit", "socket"])
        .map(|call| format!("?{call}"))
        .collect();
    strace
        .args([
            "-f",
            "-qq",
            "-e",
            &format!("trace={}", traced.join(",")),
            "-o",
        ])
        .arg(&file);
    strace.arg(node.handler().path());
    let run = Run::capture(strace.args(["crust", "explain", utf8(bundle.path())])).success();
    let trace = fs::read_to_string(&file).unwrap();
    // With -f each line begins with a pid.
    let lines = trace.lines().map(|line| {
        line.split_once(' ')
            .map_or(line, |(_, call)| call.trim_start())
    });
    let trace = lines.collect::<Vec<_>>().join("\n");
    assert!(
        trace.contains("config.json"),
        "the trace is incomplete: {trace}"
    );
    assert_eq!(changes(&trace), <[&str; 0]>::default(), "{run}");
}

on_each_delegate! {
    fn explain_changes_nothing_on_an_empty_node(delegate: Delegate) {
        let node = Node::logging(delegate);
        let bundle = Bundle::plain(node.dir()).bind("/etc", "/data", &["rbind", "ro"]).write();
        assert_changes_nothing(&node, &bundle);
        let _ = explain(&node, &bundle);
        let handler = node.handler();
        for path in [handler.crust_root(), handler.state_dir(), node.log_path()] {
            assert!(!path.exists(), "{} was created", path.display());
        }
    }

    fn explaining_a_pod_with_a_volume_changes_nothing(delegate: Delegate) {
        let volume = StagedVolume::with(delegate, &["--fs-group", "2000"]);
        let bundle = volume.sandbox_bundle(POD).write();
        assert_changes_nothing(&volume, &bundle);
        let sandbox = volume.run(&bundle);
        assert_changes_nothing(&volume, &bundle);
        let app = volume.node.app_bundle(&sandbox).bind(volume.target.join("sub"), "/data", &[]).write();
        assert_changes_nothing(&volume, &app);
        let plain = volume.plain_bundle();
        assert_changes_nothing(&volume, &plain.user_namespace(100_000, None).write());
    }
}

#[test]
fn the_check_detects_changes() {
    let opens = "openat(AT_FDCWD, \"/x\", O_RDONLY|O_CLOEXEC) = 3";
    let makes = "openat(AT_FDCWD, \"/x\", O_WRONLY|O_CREAT, 0600) = 3";
    let trace = format!("{opens}\nmkdir(\"/x\", 0700) = 0\n{makes}\n+++ exited with 0 +++");
    assert_eq!(changes(&trace), ["mkdir(\"/x\", 0700) = 0", makes]);
}
