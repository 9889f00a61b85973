//! `resize`: a volume grows to its device's size, under the pods that use it or before they do.

mod in_use;
mod limits;
mod pending;

use std::path::Path;

use runcrust_tests::{Container, Delegate, LoopDevice, Node, Run, StagedVolume};
use serde_json::Value;

pub(crate) const MIB: u64 = 1 << 20;

/// A device with an empty file system of a usual size: `mkfs.xfs` makes none below 300 MiB, and
/// btrfs grows from 256 MiB on.
fn device(node: &Node, fstype: &'static str) -> LoopDevice {
    let mebibytes = match fstype {
        "xfs" => 320,
        "btrfs" => 256,
        _ => 64,
    };
    LoopDevice::formatted(node.dir(), fstype, mebibytes)
}

/// Stages a volume with such a device.
#[track_caller]
fn staged(delegate: Delegate, fstype: &'static str) -> StagedVolume {
    let node = Node::new(delegate);
    let device = device(&node, fstype);
    StagedVolume::of(node, device, &[])
}

/// The size of the device's file.
fn size(device: &LoopDevice) -> u64 {
    device.file().metadata().expect("stat").len()
}

/// The only thing that an answer tells.
#[track_caller]
fn capacity(run: Run) -> u64 {
    let run = run.success();
    assert_eq!(run.stderr, "");
    let answer: Value = serde_json::from_str(&run.stdout).expect("JSON");
    let capacity = answer["capacity_bytes"].as_u64().expect("a number");
    assert_eq!(run.stdout, format!("{{\"capacity_bytes\":{capacity}}}\n"));
    capacity
}

/// What statfs says in the container: all blocks that files can have, in bytes.
#[track_caller]
fn seen(app: &Container, at: &str) -> u64 {
    let text = app.sh(&format!("stat -f -c '%S %b' {at}"));
    let numbers: Vec<u64> = text.split(' ').map(|word| word.parse().unwrap()).collect();
    numbers.iter().product()
}

/// Whether an entry has a `resize.json`.
fn is_recorded(entry: &Path) -> bool {
    entry.join("resize.json").exists()
}
