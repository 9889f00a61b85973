//! `kata_layout = true`: volumes that an unmodified CSI driver staged for Kata Containers.

mod invalid_entries;
mod layouts;
mod pods;

use std::path::PathBuf;

use runcrust_tests::kata::KataEntry;
use runcrust_tests::{Delegate, LoopDevice, Node, POD};
use serde_json::{Value, json};

/// Returns what Kata's Go code writes for an ext4 on a block device.
fn info(device: &LoopDevice) -> Value {
    json!({"volume-type": "block", "device": device.path(), "fstype": "ext4"})
}

/// A node that reads Kata's layout, with `pv-1` staged there.
struct StagedNode {
    node: Node,
    device: LoopDevice,
    target: PathBuf,
    entry: KataEntry,
}

impl StagedNode {
    fn new(delegate: Delegate, metadata: Value) -> Self {
        Self::with(delegate, "kata_layout = true", metadata)
    }

    fn with(delegate: Delegate, extra: &str, metadata: Value) -> Self {
        let node = Node::with(delegate, extra);
        let device = node.ext4();
        let target = node.target(POD, "pv-1");
        let mut info = info(&device);
        if !metadata.is_null() {
            info["metadata"] = metadata;
        }
        Self {
            entry: KataEntry::add(&target, &info),
            node,
            device,
            target,
        }
    }
}
