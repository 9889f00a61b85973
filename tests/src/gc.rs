//! Runs `runcrust crust gc` and checks that it does what its dry run reports.

use serde_json::Value;

use crate::Node;
use crate::tree::Snapshot;

/// The result of `gc --json`.
#[derive(Debug, PartialEq)]
pub struct GcReport {
    /// Stale items that were removed.
    pub removed: Vec<Value>,
    /// Items that were kept because their state is unknown.
    pub left: Vec<Value>,
}

/// Runs `gc --json` with these flags and parses its output.
#[track_caller]
pub fn gc(node: &Node, flags: &[&str]) -> GcReport {
    let arguments = [&["gc", "--json"], flags].concat();
    let run = node.handler().crust(&arguments).success();
    assert_eq!(run.stderr, "", "{run}");
    let mut output: Value =
        serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run}"));
    assert_eq!(output["dry_run"], flags.contains(&"--dry-run"), "{run}");
    let mut list = |key: &str| match output[key].take() {
        Value::Array(list) => list,
        other => panic!("{key} is {other}"),
    };
    GcReport {
        removed: list("removed"),
        left: list("left"),
    }
}

/// Takes snapshots of all directories of runcrust on a node.
pub fn snapshots(node: &Node) -> Vec<Snapshot> {
    let roots = [node.handler().crust_root(), node.handler().state_dir()];
    let existing = roots.iter().filter(|root| root.exists());
    existing.map(|root| Snapshot::take(root)).collect()
}

/// Runs `gc` after a dry run. Checks that the dry run reports the same and changes nothing, and that a second `gc`
/// removes nothing and keeps the same.
#[track_caller]
pub fn collect(node: &Node) -> GcReport {
    let before = snapshots(node);
    let planned = gc(node, &["--dry-run"]);
    for (now, before) in snapshots(node).iter().zip(&before) {
        now.assert_is(before);
    }
    let done = gc(node, &[]);
    assert_eq!(done, planned);
    let second = gc(node, &[]);
    assert_eq!((second.removed, &second.left), (Vec::new(), &done.left));
    done
}

/// Checks with a dry run that `gc` would keep nothing as unknown.
#[track_caller]
pub fn assert_nothing_unknown(node: &Node) {
    let report = gc(node, &["--dry-run"]);
    assert_eq!(report.left, <[Value; 0]>::default(), "{report:?}");
}
