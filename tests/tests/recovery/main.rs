//! `runcrust crust gc`, after everything that can be killed was: what it says that it would do is what
//! it does, and whoever lives is never touched. And what `list` and `inspect` see.

mod boot;
mod gone;
mod killed;
mod links;
mod live;
mod look;
mod unsure;

use std::path::{Path, PathBuf};

use runcrust_tests::Node;
use runcrust_tests::gc::collect;
use runcrust_tests::node::utf8;
use serde_json::Value;

const OTHER_POD: &str = "bbbbbbbb-6666-5555-4444-333333333333";

/// The kinds of findings, each once and in their order.
fn kinds(findings: &[Value]) -> Vec<&str> {
    let mut kinds: Vec<&str> = findings
        .iter()
        .map(|it| it["kind"].as_str().expect("a kind"))
        .collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}

/// What `gc` does, of these kinds, and that nothing is left unsure.
#[track_caller]
fn assert_collected(node: &Node, expected: &[&str]) {
    let said = collect(node);
    assert_eq!(kinds(&said.removed), expected, "{said:?}");
    assert_eq!(said.left, <[Value; 0]>::default());
}

/// The reason why the only thing is left that is.
#[track_caller]
fn why_left(node: &Node, kind: &str) -> String {
    let said = collect(node);
    let [left] = &said.left[..] else {
        panic!("{said:?}");
    };
    assert_eq!(left["kind"], kind, "{said:?}");
    left["why"].as_str().expect("why").to_owned()
}

/// A pod's app that has the volume: the next create works.
#[track_caller]
fn next_works(node: &Node, pod: &str, target: &Path) {
    let sandbox = node.sandbox(pod);
    let app = node.app(&sandbox, target, "/data");
    assert_eq!(app.sh("echo on > /data/file; cat /data/file"), "on");
    runcrust_tests::container::end([app, sandbox]);
}

/// The directory that kubelet keeps of a pod.
fn pod_directory(node: &Node, pod: &str) -> PathBuf {
    node.handler().kubelet_dir().join("pods").join(pod)
}

/// A verb's answer as one object.
#[track_caller]
fn answer(node: &Node, arguments: &[&str]) -> Value {
    let run = node.handler().crust(arguments).success();
    serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run}"))
}

/// `inspect` of a volume.
#[track_caller]
fn inspected(node: &Node, volume: &Path) -> Value {
    answer(node, &["inspect", utf8(volume), "--json"])
}
