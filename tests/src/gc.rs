//! `runcrust crust gc`: what it says that it would do is what it does.

use serde_json::Value;

use crate::Node;
use crate::tree::Snapshot;

/// What `gc` said.
#[derive(Debug, PartialEq)]
pub struct GcReport {
    /// What nobody needs.
    pub removed: Vec<Value>,
    /// What it isn't sure of.
    pub left: Vec<Value>,
}

/// One form of `gc`, as one object.
#[track_caller]
pub fn gc(node: &Node, flags: &[&str]) -> GcReport {
    let arguments = [&["gc", "--json"], flags].concat();
    let run = node.handler().crust(&arguments).success();
    assert_eq!(run.stderr, "", "{run}");
    let mut said: Value =
        serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run}"));
    assert_eq!(said["dry_run"], flags.contains(&"--dry-run"), "{run}");
    let mut list = |key: &str| match said[key].take() {
        Value::Array(list) => list,
        other => panic!("{key} is {other}"),
    };
    GcReport {
        removed: list("removed"),
        left: list("left"),
    }
}

/// Everything of runcrust's on a node.
pub fn snapshots(node: &Node) -> Vec<Snapshot> {
    let roots = [node.handler().crust_root(), node.handler().state_dir()];
    let there = roots.iter().filter(|root| root.exists());
    there.map(|root| Snapshot::take(root)).collect()
}

/// What `gc` does. Before, it says the same and changes nothing; afterwards there is nothing to be
/// removed, and left is what was.
#[track_caller]
pub fn collect(node: &Node) -> GcReport {
    let before = snapshots(node);
    let would = gc(node, &["--dry-run"]);
    for (now, before) in snapshots(node).iter().zip(&before) {
        now.assert_is(before);
    }
    let did = gc(node, &[]);
    assert_eq!(did, would);
    let again = gc(node, &[]);
    assert_eq!((again.removed, &again.left), (Vec::new(), &did.left));
    did
}

/// `gc` would leave nothing, because it is sure of everything. Nothing is removed.
#[track_caller]
pub fn assert_nothing_unknown(node: &Node) {
    let said = gc(node, &["--dry-run"]);
    assert_eq!(said.left, <[Value; 0]>::default(), "{said:?}");
}
