//! Calls for volumes that the container runtime mounts: through `crust_ops`, and by the earlier draft.

use std::fs;
use std::path::{Path, PathBuf};

use crust_proto::csi::v1::{NodeExpandVolumeRequest, NodePublishVolumeRequest};
use runcrust_tests::csi::{CsiVolume, DRIVER, filesystem};
use runcrust_tests::host::mounts_of_device;
use runcrust_tests::node::utf8;

use super::{call, ext4, stage};
use crate::crashed::{CrashCase, VolumeUnderTest, kill_at_each_step};
use crate::deferred_publish_request;
use crate::scene::Scene;

fn stage_and_defer(scene: &Scene, volume: &CsiVolume, target: &PathBuf) {
    stage(scene, volume, target);
    scene.call_ok(deferred_publish_request(volume, target));
}

/// Asserts that a volume is staged for the runtime and not mounted on the host.
fn assert_deferred(scene: &Scene, volume_under_test: &VolumeUnderTest) {
    let staged = scene
        .node
        .entry(&volume_under_test.target)
        .join("mountInfo.json");
    let staged = fs::read_to_string(staged).expect("mountInfo.json");
    let device = scene.device(&volume_under_test.volume.id);
    let expected = format!("\"{}\"", device.display());
    assert!(staged.contains(&expected), "{expected}: {staged}");
    assert_eq!(mounts_of_device(&device), Vec::<String>::new());
    assert_eq!(
        fs::read_dir(&volume_under_test.target)
            .expect("the target")
            .count(),
        0
    );
}

fn assert_unpublished(scene: &Scene, volume_under_test: &VolumeUnderTest) {
    assert!(
        !scene.node.entry(&volume_under_test.target).exists(),
        "still staged"
    );
    assert!(
        !volume_under_test.target.exists(),
        "kubelet could never remove its directory"
    );
}

fn unpublish(scene: &Scene, volume_under_test: &VolumeUnderTest) {
    scene.call_ok(
        volume_under_test
            .volume
            .unpublish(&volume_under_test.target),
    );
    assert_unpublished(scene, volume_under_test);
}

#[test]
fn a_killed_deferred_publish_can_be_repeated() {
    kill_at_each_step(&CrashCase {
        capability: ext4,
        before: stage,
        call: |client, volume_under_test| {
            call(
                client,
                deferred_publish_request(&volume_under_test.volume, &volume_under_test.target),
            )
        },
        has_data: true,
        after: |scene, volume_under_test| {
            assert_deferred(scene, volume_under_test);
            unpublish(scene, volume_under_test);
        },
    });
}

#[test]
fn a_killed_deferred_unpublish_can_be_repeated() {
    kill_at_each_step(&CrashCase {
        capability: ext4,
        before: |scene, volume, target| {
            stage_and_defer(scene, volume, target);
            // containerd creates such directories for a subPath.
            fs::create_dir_all(target.join("sub/deeper")).expect("mkdir");
        },
        call: |client, volume_under_test| {
            call(
                client,
                volume_under_test
                    .volume
                    .unpublish(&volume_under_test.target),
            )
        },
        has_data: true,
        after: assert_unpublished,
    });
}

/// Returns the files below a directory with their contents.
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

/// A pod with a handler without runcrust has written to the host's disk.
#[test]
fn a_killed_deferred_unpublish_keeps_stray_files() {
    kill_at_each_step(&CrashCase {
        capability: ext4,
        before: |scene, volume, target| {
            stage_and_defer(scene, volume, target);
            fs::create_dir_all(target.join("sub/empty")).expect("mkdir");
            fs::write(target.join("one"), "1").expect("a file");
            fs::write(target.join("sub/other"), "2").expect("a file");
        },
        call: |client, volume_under_test| {
            call(
                client,
                volume_under_test
                    .volume
                    .unpublish(&volume_under_test.target),
            )
        },
        has_data: true,
        after: |scene, volume_under_test| {
            assert_unpublished(scene, volume_under_test);
            let plugin = scene
                .node
                .handler()
                .kubelet_dir()
                .join("plugins")
                .join(DRIVER);
            let mut kept = files(&plugin.join("quarantine"));
            kept.sort();
            let ends = [("one", "1"), ("sub/other", "2")];
            let is_expected = kept
                .iter()
                .zip(ends)
                .all(|((path, text), (name, written))| path.ends_with(name) && text == written);
            assert!(kept.len() == 2 && is_expected, "{kept:?}");
        },
    });
}

#[test]
fn a_killed_deferred_expansion_can_be_repeated() {
    kill_at_each_step(&CrashCase {
        // An xfs, because an ext4 only grows with CAP_SYS_RESOURCE.
        capability: || filesystem("xfs"),
        before: |scene, volume, target| {
            stage_and_defer(scene, volume, target);
            scene.call_ok(volume.grow(volume.capacity * 2));
        },
        call: |client, volume_under_test| {
            let expand = NodeExpandVolumeRequest {
                defer_fs_ops: true,
                ..volume_under_test.volume.expand(
                    &volume_under_test.target,
                    volume_under_test.volume.capacity * 2,
                )
            };
            call(client, expand)
        },
        has_data: true,
        after: |scene, volume_under_test| {
            assert_deferred(scene, volume_under_test);
            unpublish(scene, volume_under_test);
        },
    });
}

/// Returns a `NodePublishVolume` request of KEP-2857's earlier draft, in which kubelet passes the mount to the runtime.
fn draft_publish(volume: &CsiVolume, target: &Path) -> NodePublishVolumeRequest {
    NodePublishVolumeRequest {
        runtime_supported_filesystems: vec!["ext4".to_owned()],
        ..volume.publish(target)
    }
}

#[test]
fn a_killed_draft_publish_can_be_repeated() {
    kill_at_each_step(&CrashCase {
        capability: ext4,
        before: stage,
        call: |client, volume_under_test| {
            call(
                client,
                draft_publish(&volume_under_test.volume, &volume_under_test.target),
            )
        },
        has_data: true,
        after: |scene, volume_under_test| {
            let repeated = scene.call(draft_publish(
                &volume_under_test.volume,
                &volume_under_test.target,
            ));
            let info = repeated.expect("the repeated call").runtime_mount_info;
            let device = scene.device(&volume_under_test.volume.id);
            assert_eq!(info.expect("runtime_mount_info").source, utf8(&device));
            assert_eq!(mounts_of_device(&device), Vec::<String>::new());
            scene
                .call(volume_under_test.volume.unstage())
                .expect_err("the volume is still published");
            unpublish(scene, volume_under_test);
        },
    });
}

#[test]
fn a_killed_draft_unpublish_can_be_repeated() {
    kill_at_each_step(&CrashCase {
        capability: ext4,
        before: |scene, volume, target| {
            stage(scene, volume, target);
            scene.call_ok(draft_publish(volume, target));
        },
        call: |client, volume_under_test| {
            call(
                client,
                volume_under_test
                    .volume
                    .unpublish(&volume_under_test.target),
            )
        },
        has_data: true,
        after: |scene, volume_under_test| {
            assert_unpublished(scene, volume_under_test);
            scene
                .call(volume_under_test.volume.unstage())
                .expect("no user is left");
        },
    });
}
