//! `resize`: growing a volume to the size of its device, while pods use it or before they do.

mod in_use;
mod limits;
mod pending;

use std::path::Path;

use runcrust_tests::{Container, Delegate, LoopDevice, Node, Run, StagedVolume};
use serde_json::Value;

pub(crate) const MIB: u64 = 1 << 20;

/// Creates a device with an empty file system. `mkfs.xfs` refuses less than 300 MiB, and btrfs only grows from 256 MiB
/// on.
fn device(node: &Node, fstype: &'static str) -> LoopDevice {
    let mebibytes = match fstype {
        "xfs" => 320,
        "btrfs" => 256,
        _ => 64,
    };
    LoopDevice::formatted(node.dir(), fstype, mebibytes)
}

/// Stages a volume on a device from [`device`].
#[track_caller]
pub(crate) fn stage_new(delegate: Delegate, fstype: &'static str) -> StagedVolume {
    let node = Node::new(delegate);
    let device = device(&node, fstype);
    StagedVolume::on_device(node, device, &[])
}

/// Returns the size of the device's backing file in bytes.
pub(crate) fn device_size(device: &LoopDevice) -> u64 {
    device.file().metadata().expect("stat").len()
}

/// Asserts that the capacity is the only output, and returns it in bytes.
#[track_caller]
fn capacity(run: Run) -> u64 {
    let run = run.success();
    assert_eq!(run.stderr, "");
    let answer: Value = serde_json::from_str(&run.stdout).expect("JSON");
    let capacity = answer["capacity_bytes"].as_u64().expect("a number");
    assert_eq!(run.stdout, format!("{{\"capacity_bytes\":{capacity}}}\n"));
    capacity
}

/// Returns the size in bytes that statfs reports in the container.
#[track_caller]
fn size_in_container(app: &Container, at: &str) -> u64 {
    let text = app.sh(&format!("stat -f -c '%S %b' {at}"));
    let numbers: Vec<u64> = text.split(' ').map(|word| word.parse().unwrap()).collect();
    numbers.iter().product()
}

/// Returns whether an entry has a `resize.json`.
fn is_recorded(entry: &Path) -> bool {
    entry.join("resize.json").exists()
}
