//! `runcrust crust gc` after everything that can be killed was killed: a dry run reports what the real run does, and
//! running pods are not affected. Also `list` and `inspect`.

mod boot;
mod gone;
mod killed;
mod links;
mod list_and_inspect;
mod running_pods;
mod unknown;

use std::path::{Path, PathBuf};

use runcrust_tests::Node;
use runcrust_tests::gc::collect;
use runcrust_tests::node::utf8;
use serde_json::Value;

const OTHER_POD: &str = "bbbbbbbb-6666-5555-4444-333333333333";

/// Returns the kinds of findings, sorted and without duplicates.
fn kinds(findings: &[Value]) -> Vec<&str> {
    let mut kinds: Vec<&str> = findings
        .iter()
        .map(|it| it["kind"].as_str().expect("a kind"))
        .collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}

/// Asserts that `gc` removes exactly findings of these kinds, and that nothing is left as unknown.
#[track_caller]
fn assert_collected(node: &Node, expected: &[&str]) {
    let report = collect(node);
    assert_eq!(kinds(&report.removed), expected, "{report:?}");
    assert_eq!(report.left, <[Value; 0]>::default());
}

/// Asserts that `gc` leaves exactly one finding, of this kind, and returns the reason.
#[track_caller]
fn reason_of_finding(node: &Node, kind: &str) -> String {
    let report = collect(node);
    let [left] = &report.left[..] else {
        panic!("{report:?}");
    };
    assert_eq!(left["kind"], kind, "{report:?}");
    left["why"].as_str().expect("why").to_owned()
}

/// Asserts that a new pod has the volume, and ends it.
#[track_caller]
fn assert_next_pod_works(node: &Node, pod: &str, target: &Path) {
    let sandbox = node.sandbox(pod);
    let app = node.app(&sandbox, target, "/data");
    assert_eq!(app.sh("echo on > /data/file; cat /data/file"), "on");
    runcrust_tests::container::end([app, sandbox]);
}

/// Returns kubelet's directory of a pod.
fn pod_directory(node: &Node, pod: &str) -> PathBuf {
    node.handler().kubelet_dir().join("pods").join(pod)
}

/// Runs a subcommand, and returns the JSON object that it prints.
#[track_caller]
fn answer(node: &Node, arguments: &[&str]) -> Value {
    let run = node.handler().crust(arguments).success();
    serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run}"))
}

/// Returns the output of `inspect`.
#[track_caller]
fn inspected(node: &Node, volume: &Path) -> Value {
    answer(node, &["inspect", utf8(volume), "--json"])
}
