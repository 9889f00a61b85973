//! The same of volumes that the container runtime mounts: by `crust_ops`, and by the earlier draft.

use std::fs;
use std::path::{Path, PathBuf};

use crust_proto::csi::v1::{NodeExpandVolumeRequest, NodePublishVolumeRequest};
use runcrust_tests::csi::{CsiVolume, DRIVER, filesystem};
use runcrust_tests::host::mounts_of_device;
use runcrust_tests::node::utf8;

use super::{called, ext4, stage};
use crate::crashed::{Life, Row, at_each_moment};
use crate::deferring;
use crate::scene::Scene;

fn defer(scene: &Scene, volume: &CsiVolume, target: &PathBuf) {
    stage(scene, volume, target);
    scene.call_ok(deferring(volume, target));
}

/// What a runtime finds there is the volume, and the host has none of it.
fn is_deferred(scene: &Scene, life: &Life) {
    let staged = scene.node.entry(&life.target).join("mountInfo.json");
    let staged = fs::read_to_string(staged).expect("it is staged");
    let device = scene.device(&life.volume.id);
    let its = format!("\"{}\"", device.display());
    assert!(staged.contains(&its), "{its}: {staged}");
    assert_eq!(mounts_of_device(&device), Vec::<String>::new());
    assert_eq!(fs::read_dir(&life.target).expect("it is there").count(), 0);
}

fn is_nowhere(scene: &Scene, life: &Life) {
    assert!(
        !scene.node.entry(&life.target).exists(),
        "it is staged still"
    );
    assert!(!life.target.exists(), "kubelet's rmdir would fail for ever");
}

fn give_back(scene: &Scene, life: &Life) {
    scene.call_ok(life.volume.unpublish(&life.target));
    is_nowhere(scene, life);
}

#[test]
fn publishing_for_the_runtime() {
    at_each_moment(&Row {
        capability: ext4,
        before: stage,
        call: |client, life| called(client, deferring(&life.volume, &life.target)),
        has_data: true,
        after: |scene, life| {
            is_deferred(scene, life);
            give_back(scene, life);
        },
    });
}

#[test]
fn unpublishing_for_the_runtime() {
    at_each_moment(&Row {
        capability: ext4,
        before: |scene, volume, target| {
            defer(scene, volume, target);
            // As containerd makes them for a subPath.
            fs::create_dir_all(target.join("sub/deeper")).expect("mkdir");
        },
        call: |client, life| called(client, life.volume.unpublish(&life.target)),
        has_data: true,
        after: is_nowhere,
    });
}

/// The files below a directory, and what is in them.
fn files(directory: &Path) -> Vec<(PathBuf, String)> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let of = |path: PathBuf| {
        if path.is_dir() {
            return files(&path);
        }
        let text = fs::read_to_string(&path).expect("text");
        vec![(path, text)]
    };
    paths.flat_map(of).collect()
}

/// A pod under a handler without runcrust has written to the host's disk.
#[test]
fn unpublishing_where_files_are() {
    at_each_moment(&Row {
        capability: ext4,
        before: |scene, volume, target| {
            defer(scene, volume, target);
            fs::create_dir_all(target.join("sub/empty")).expect("mkdir");
            fs::write(target.join("one"), "1").expect("a file");
            fs::write(target.join("sub/other"), "2").expect("a file");
        },
        call: |client, life| called(client, life.volume.unpublish(&life.target)),
        has_data: true,
        after: |scene, life| {
            is_nowhere(scene, life);
            let plugin = scene
                .node
                .handler()
                .kubelet_dir()
                .join("plugins")
                .join(DRIVER);
            let mut kept = files(&plugin.join("quarantine"));
            kept.sort();
            let ends = [("one", "1"), ("sub/other", "2")];
            let are_those = kept
                .iter()
                .zip(ends)
                .all(|((path, text), (name, written))| path.ends_with(name) && text == written);
            assert!(kept.len() == 2 && are_those, "{kept:?}");
        },
    });
}

#[test]
fn growing_under_the_runtime() {
    at_each_moment(&Row {
        // Which grows everywhere.
        capability: || filesystem("xfs"),
        before: |scene, volume, target| {
            defer(scene, volume, target);
            scene.call_ok(volume.grow(volume.capacity * 2));
        },
        call: |client, life| {
            let expand = NodeExpandVolumeRequest {
                defer_fs_ops: true,
                ..life.volume.expand(&life.target, life.volume.capacity * 2)
            };
            called(client, expand)
        },
        has_data: true,
        after: |scene, life| {
            is_deferred(scene, life);
            give_back(scene, life);
        },
    });
}

/// For a runtime that kubelet tells what to mount.
fn draft(volume: &CsiVolume, target: &Path) -> NodePublishVolumeRequest {
    NodePublishVolumeRequest {
        runtime_supported_filesystems: vec!["ext4".to_owned()],
        ..volume.publish(target)
    }
}

#[test]
fn publishing_by_the_earlier_draft() {
    at_each_moment(&Row {
        capability: ext4,
        before: stage,
        call: |client, life| called(client, draft(&life.volume, &life.target)),
        has_data: true,
        after: |scene, life| {
            let again = scene.call(draft(&life.volume, &life.target));
            let told = again.expect("once more").runtime_mount_info;
            let device = scene.device(&life.volume.id);
            assert_eq!(told.expect("what to mount").source, utf8(&device));
            assert_eq!(mounts_of_device(&device), Vec::<String>::new());
            scene
                .call(life.volume.unstage())
                .expect_err("kubelet has it published");
            give_back(scene, life);
        },
    });
}

#[test]
fn unpublishing_by_the_earlier_draft() {
    at_each_moment(&Row {
        capability: ext4,
        before: |scene, volume, target| {
            stage(scene, volume, target);
            scene.call_ok(draft(volume, target));
        },
        call: |client, life| called(client, life.volume.unpublish(&life.target)),
        has_data: true,
        after: |scene, life| {
            is_nowhere(scene, life);
            scene.call(life.volume.unstage()).expect("nobody has it");
        },
    });
}
