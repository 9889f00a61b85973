//! Compares explanations with the creates that follow.

use std::fs;
use std::path::{Path, PathBuf};

use runcrust_tests::node::utf8;
use runcrust_tests::tree::Snapshot;
use runcrust_tests::{Bundle, Container, Node, Run, host, refusal};
use serde_json::Value;

pub(crate) const OTHER_POD: &str = "99999999-8888-7777-6666-555555555555";

/// Explains a written bundle, and asserts that nothing changes.
#[track_caller]
pub(crate) fn explain(node: &Node, bundle: &Bundle) -> Value {
    let before = state(node, bundle);
    let run = node
        .handler()
        .crust(&["explain", utf8(bundle.path()), "--json"]);
    assert_eq!(
        state(node, bundle),
        before,
        "explain changed something: {run}"
    );
    parse(run)
}

/// Asserts success, and parses the JSON object on standard output.
#[track_caller]
pub(crate) fn parse(run: Run) -> Value {
    let run = run.success();
    assert_eq!(run.stderr, "", "{run}");
    let lines = run.stdout.lines().count();
    assert_eq!(lines, 1, "not one line: {run}");
    serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run}"))
}

/// Returns everything that a create would change: records, the bundle, and mounts.
fn state(node: &Node, bundle: &Bundle) -> (Vec<Option<Snapshot>>, Vec<PathBuf>) {
    let handler = node.handler();
    let trees = [&handler.crust_root(), &handler.state_dir(), bundle.path()];
    let trees = trees.map(|path| fs::exists(path).unwrap().then(|| Snapshot::take(path)));
    (trees.into(), host::mounts_below(node.dir().path()))
}

/// Explains and creates a bundle, and asserts that the create is refused with the first refusal of the explanation.
#[track_caller]
pub(crate) fn assert_refused(node: &Node, bundle: &Bundle) -> (Value, String) {
    let explained = explain(node, bundle);
    let sentence = refusal::create_refused(node, bundle).message();
    assert_eq!(explained["refusals"][0], sentence, "{explained:#}");
    (explained, sentence)
}

/// Explains and creates a bundle, and asserts that the recorded rewrite is the explained one.
#[track_caller]
pub(crate) fn assert_created(node: &Node, bundle: &Bundle) -> (Value, Container) {
    let explained = explain(node, bundle);
    assert_eq!(explained["refusals"], Value::Array(vec![]), "{explained:#}");
    let container = node.run(bundle);
    let record = record(node, &bundle.config_path());
    for key in ["sources", "added", "removed"] {
        let recorded = record.get(key).cloned();
        let recorded = recorded.unwrap_or_else(|| Value::Array(vec![]));
        assert_eq!(
            explained["rewrite"][key], recorded,
            "{key} of {explained:#}"
        );
    }
    (explained, container)
}

/// Returns the record of a bundle.
#[track_caller]
fn record(node: &Node, config: &Path) -> Value {
    let config = config.canonicalize().unwrap();
    let records = fs::read_dir(node.handler().state_dir().join("bundles")).unwrap();
    let records = records.map(|entry| fs::read(entry.unwrap().path()).unwrap());
    let mut records = records.map(|bytes| serde_json::from_slice::<Value>(&bytes).unwrap());
    let found = records.find(|record| record["config"] == utf8(&config));
    found.expect("a record of the bundle")
}

/// Returns the explanation of the mount at a destination.
#[track_caller]
pub(crate) fn mount<'a>(explained: &'a Value, destination: &str) -> &'a Value {
    let mounts = explained["mounts"].as_array().expect("mounts");
    let found = mounts
        .iter()
        .find(|mount| mount["destination"] == destination);
    found.unwrap_or_else(|| panic!("no mount at {destination} in {explained:#}"))
}
