//! An explanation, and the create that it is held against.

use std::fs;
use std::path::{Path, PathBuf};

use runcrust_tests::node::utf8;
use runcrust_tests::tree::Snapshot;
use runcrust_tests::{Bundle, Container, Node, Run, host, refusal};
use serde_json::Value;

pub(crate) const OTHER_POD: &str = "99999999-8888-7777-6666-555555555555";

/// What `explain` says of a written bundle; nothing changes by it.
#[track_caller]
pub(crate) fn explain(node: &Node, bundle: &Bundle) -> Value {
    let before = all(node, bundle);
    let run = node
        .handler()
        .crust(&["explain", utf8(bundle.path()), "--json"]);
    assert_eq!(all(node, bundle), before, "it has changed something: {run}");
    answer(run)
}

/// The one object of an explanation.
#[track_caller]
pub(crate) fn answer(run: Run) -> Value {
    let run = run.success();
    assert_eq!(run.stderr, "", "{run}");
    let lines = run.stdout.lines().count();
    assert_eq!(lines, 1, "one object: {run}");
    serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run}"))
}

/// All that a create would change: records, the bundle, mounts.
fn all(node: &Node, bundle: &Bundle) -> (Vec<Option<Snapshot>>, Vec<PathBuf>) {
    let handler = node.handler();
    let trees = [&handler.crust_root(), &handler.state_dir(), bundle.path()];
    let trees = trees.map(|path| fs::exists(path).unwrap().then(|| Snapshot::take(path)));
    (trees.into(), host::mounts_below(node.dir().path()))
}

/// A create that is refused with the first of the sentences that were told.
#[track_caller]
pub(crate) fn assert_refused(node: &Node, bundle: &Bundle) -> (Value, String) {
    let told = explain(node, bundle);
    let sentence = refusal::create_refused(node, bundle).message();
    assert_eq!(told["refusals"][0], sentence, "{told:#}");
    (told, sentence)
}

/// A create that makes of the config what was told, and records it so.
#[track_caller]
pub(crate) fn assert_created(node: &Node, bundle: &Bundle) -> (Value, Container) {
    let told = explain(node, bundle);
    assert_eq!(told["refusals"], Value::Array(vec![]), "{told:#}");
    let container = node.run(bundle);
    let record = record(node, &bundle.config_path());
    for key in ["sources", "added", "removed"] {
        let recorded = record.get(key).cloned();
        let recorded = recorded.unwrap_or_else(|| Value::Array(vec![]));
        assert_eq!(told["rewrite"][key], recorded, "{key} of {told:#}");
    }
    (told, container)
}

/// The record of a bundle.
#[track_caller]
fn record(node: &Node, config: &Path) -> Value {
    let config = config.canonicalize().unwrap();
    let records = fs::read_dir(node.handler().state_dir().join("bundles")).unwrap();
    let records = records.map(|entry| fs::read(entry.unwrap().path()).unwrap());
    let mut records = records.map(|bytes| serde_json::from_slice::<Value>(&bytes).unwrap());
    let found = records.find(|record| record["config"] == utf8(&config));
    found.expect("a record of the bundle")
}

/// What was told of the mount at a destination.
#[track_caller]
pub(crate) fn mount<'a>(told: &'a Value, destination: &str) -> &'a Value {
    let mounts = told["mounts"].as_array().expect("mounts");
    let found = mounts
        .iter()
        .find(|mount| mount["destination"] == destination);
    found.unwrap_or_else(|| panic!("no mount at {destination} in {told:#}"))
}
