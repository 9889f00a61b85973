//! Failed calls leave no file behind, whatever the reason. The state directory is in memory, and a client can make any
//! number of failing calls.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use runcrust_tests::node::utf8;
use runcrust_tests::ops::{stage_request, stage_request_of};
use runcrust_tests::{Delegate, LoopDevice, Node, Ops, POD, TestDir, mounts};

use crate::storage::{publish, publish_request};

#[test]
fn a_failed_call_leaves_no_lock_and_no_record() {
    let dir = TestDir::new();
    let root = dir.subdir("root");
    let settings = format!("match_roots = [{root:?}]\nsandbox = \"always\"");
    let node = Node::trusted(Delegate::Runc, &settings);
    let ops = Ops::with(&node, "max_staged = 1");
    let (device, blank) = (node.ext4(), LoopDevice::new(node.dir(), 8));
    let sandbox = node.sandbox(POD);
    let target = |name: &str| node.target(POD, name);
    let missing = node.handler().target_path(POD, "missing");
    let outside = dir.subdir("outside/mnt");
    symlink(&outside, root.join("mnt")).unwrap();
    let with_files = target("with-files");
    fs::write(with_files.join("file"), "data").unwrap();
    let mounted = target("mounted");
    mounts::tmpfs(&mounted);

    let before = node.records();
    let assert_no_trace = |what: &str| {
        assert_eq!(node.records(), before, "{what}");
        assert_eq!(node.volume_locks(), <[&Path; 0]>::default(), "{what}");
    };
    let null = Path::new("/dev/null");
    let absent = Path::new("/dev/there-is-none");
    for (what, target, device, fstype) in [
        ("outside", &outside, device.path(), "ext4"),
        ("a link", &root.join("mnt"), device.path(), "ext4"),
        ("files", &with_files, device.path(), "ext4"),
        ("a mount", &mounted, device.path(), "ext4"),
        ("no block device", &target("pv"), null, "ext4"),
        ("no block device, at once", &missing, null, "ext4"),
        ("no device", &target("pv"), absent, "ext4"),
        ("a file system", &target("pv"), device.path(), "vfat"),
    ] {
        let staged = ops.stage(stage_request_of(target, device, fstype));
        staged.expect_err(what);
        assert_no_trace(what);
        // The command line, which root uses, accepts any target path.
        if device == null || device == absent || fstype == "vfat" {
            let _ = node.try_stage_as(fstype, target, device, &[]).failure();
            assert_no_trace(what);
        }
    }
    for (what, target, device) in [
        ("no file system", target("pv"), &blank),
        ("no file system, below a root", root.join("a"), &blank),
        ("a link", root.join("mnt"), &device),
    ] {
        let mut request = publish_request(&sandbox, &target, device);
        request.file_system = "ext4".to_owned();
        publish(&ops, request).expect_err(what);
        assert_no_trace(what);
    }
    let unknown = target("unknown");
    ops.stats(&unknown).expect_err("nothing is staged");
    ops.expand(&unknown, 0, 0).expect_err("nothing is staged");
    ops.unstage(&unknown)
        .expect("unstaging an unknown volume succeeds");
    for verb in ["stats", "inspect"] {
        let _ = node.handler().crust(&[verb, utf8(&unknown)]).failure();
    }
    let _ = node.resize(&unknown, 0, 0).failure();
    assert_no_trace("an unknown volume");

    let first = target("first");
    ops.stage(stage_request(&first, &device)).unwrap();
    let (records, locks) = (node.records(), node.volume_locks());
    assert_eq!(locks, [node.lock_file(&first)]);
    // An existing target path is examined in a thread of its own, a missing one is not.
    for target in [target("second"), missing] {
        let full = ops.stage(stage_request(&target, &device));
        full.expect_err("max_staged is reached");
        let request = publish_request(&sandbox, &target, &device);
        publish(&ops, request).expect_err("max_staged is reached");
    }
    assert_eq!(node.records(), records);
    assert_eq!(
        node.volume_locks(),
        locks,
        "only the lock of the staged volume"
    );
    ops.unstage(&first).unwrap();
    assert_no_trace("after the unstage");
}
