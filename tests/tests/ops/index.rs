//! The index of target paths. A daemon caches it, and other processes write it, too.

use std::fs;
use std::path::PathBuf;

use runcrust_tests::ops::stage_request;
use runcrust_tests::volume::with_mounted;
use runcrust_tests::{Bundle, Delegate, LoopDevice, Node, Ops, mounts};

fn index(node: &Node) -> PathBuf {
    node.handler().state_dir().join("targets.json")
}

/// Stages a volume, and asserts that a container with another mount of its target path gets the volume.
fn assert_served(node: &Node, ops: &Ops, device: &LoopDevice, volume: &str) {
    let target = node.target("pod-a", volume);
    ops.stage(stage_request(&target, device)).unwrap();
    let bind = node.dir().subdir(format!("bind-{volume}"));
    mounts::bind(&target, &bind);
    let bundle = Bundle::plain(node.dir()).bind(&bind, "/data", &[]);
    let app = node.run(&bundle.write());
    assert_eq!(app.sh("cat /data/mark"), "volume", "{volume}");
    app.end();
}

/// An error's hint says to remove the index and to stage again.
#[test]
fn a_removed_or_replaced_index_is_recreated() {
    let (node, ops) = Ops::with_node(Delegate::Runc);
    let device = node.ext4();
    with_mounted(device.path(), |root| {
        fs::write(root.join("mark"), "volume\n").unwrap();
    });
    // The second volume is found in the index, which the daemon caches from then on.
    for volume in ["pv-0", "pv-1"] {
        assert_served(&node, &ops, &device, volume);
    }
    fs::remove_file(index(&node)).unwrap();
    assert_served(&node, &ops, &device, "pv-2");
    assert!(index(&node).exists());

    // Another process creates the index, for a target path on another file system.
    for volume in ["pv-0", "pv-1", "pv-2"] {
        ops.unstage(&node.target("pod-a", volume)).unwrap();
    }
    fs::remove_file(index(&node)).unwrap();
    let memory = node.dir().subdir("memory");
    mounts::tmpfs(&memory);
    let target = memory.join("a");
    fs::create_dir(&target).unwrap();
    let _ = node.try_stage(&target, device.path(), &[]).success();
    assert_served(&node, &ops, &device, "pv-3");
}
