//! fsGroup on the other file systems, and on subvolumes of a btrfs.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use runcrust_tests::tree::Policy;
use runcrust_tests::volume::with_mounted;
use runcrust_tests::{Node, Run, on_each_delegate, on_each_file_system};

use crate::scene::{ALWAYS, GROUP, ON_ROOT_MISMATCH, Scene};

fn btrfs(verb: &[&str], paths: &[&Path]) {
    let _ = Run::capture(Command::new("btrfs").args(verb).args(paths)).success();
}

/// Creates two subvolumes, one in the other, and two snapshots of the inner one: a writable and a read-only one.
fn subvolumes(root: &Path) {
    let (outer, inner) = (root.join("outer"), root.join("outer/inner"));
    for subvolume in [&outer, &inner] {
        btrfs(&["subvolume", "create"], &[subvolume]);
        fs::create_dir(subvolume.join("directory")).unwrap();
        fs::write(subvolume.join("directory/file"), "").unwrap();
    }
    btrfs(
        &["subvolume", "snapshot"],
        &[&inner, &root.join("snapshot")],
    );
    btrfs(
        &["subvolume", "snapshot", "-r"],
        &[&inner, &root.join("read-only")],
    );
}

on_each_file_system! {
    fn always_changes_what_kubelet_would(delegate: Delegate, fstype: &'static str) {
        let scene = Scene::on(fstype, Node::new(delegate));
        scene.assert_walked_as_by_kubelet(GROUP, Policy::Always, &ALWAYS);
    }

    fn on_root_mismatch_depends_on_the_root(delegate: Delegate, fstype: &'static str) {
        let scene = Scene::on(fstype, Node::new(delegate)).with_root(GROUP, 0o2750);
        scene.assert_walked_as_by_kubelet(GROUP, Policy::OnRootMismatch, &ON_ROOT_MISMATCH);
        // After the walk the root matches.
        let scene = scene.with_data(|root| fs::write(root.join("new"), "").unwrap());
        scene.assert_untouched(&ON_ROOT_MISMATCH);
    }
}

on_each_delegate! {
    fn subvolumes_of_a_btrfs_are_walked_like_kubelet(delegate: Delegate) {
        let scene = Scene::on("btrfs", Node::logging(delegate)).with_data(subvolumes);
        let devices = with_mounted(scene.device.path(), |root| {
            ["right", "outer", "outer/inner", "snapshot", "read-only"]
                .map(|path| fs::symlink_metadata(root.join(path)).unwrap().dev())
        });
        for (index, device) in devices.iter().enumerate() {
            assert!(!devices[..index].contains(device), "two subvolumes have the same device number");
        }
        scene.assert_walked_as_by_kubelet(GROUP, Policy::Always, &ALWAYS);
        let log = scene.node.log();
        // Three files: the snapshot's root, its directory and its file.
        assert!(log.contains("3 in read-only subvolumes and left unchanged"), "{log}");
        assert!(log.contains("read-only/directory/file"), "the log does not name a file: {log}");
    }
}
