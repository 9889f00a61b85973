//! `NodeUnpublishVolume` and `NodeUnstageVolume` of a volume that was deleted first. If they failed, kubelet would
//! repeat them forever, and the pod's directory would stay.

use std::fs;
use std::path::{Path, PathBuf};

use runcrust_tests::csi::{CsiVolume, DRIVER, block, filesystem};
use runcrust_tests::host::mounts_below;
use runcrust_tests::mounts::{tmpfs, unmount};
use runcrust_tests::node::utf8;
use runcrust_tests::{LoopDevice, POD, loopdev};
use tonic::Code;

use crate::scene::{Scene, find_files, read, write};
use crate::{deferred_publish_request, expect_error};

impl Scene {
    /// Removes the files of a volume without the driver.
    fn remove_files(&self, volume: &CsiVolume) {
        for file in [self.record(&volume.id), self.image(&volume.id)] {
            fs::remove_file(&file).expect("a file of the volume");
        }
    }

    /// Returns the files with this name that were moved away from kubelet's directories.
    fn quarantined_files(&self, name: &str) -> Vec<PathBuf> {
        let plugins = self.node.handler().kubelet_dir().join("plugins");
        find_files(&plugins.join(DRIVER).join("quarantine"), name)
    }
}

/// The pod is removed by force while the node is down. The mounts and the entries in /run are lost, the volume is
/// deleted, and the kubelet that starts later finds the pod's directory.
#[test]
fn a_deferred_volume_deleted_in_a_downtime_is_unpublished() {
    for (what, files) in [
        ("empty subPath directories", &[][..]),
        ("files", &["sub/stray"]),
    ] {
        let scene = Scene::with_crust_ops();
        let volume = scene.staged("pv", filesystem("ext4"));
        let target = scene.target(POD, "pv");
        scene.call_ok(deferred_publish_request(&volume, &target));
        fs::create_dir_all(target.join("sub/deeper")).expect("mkdir");
        for file in files {
            write(&target, file, "data");
        }
        scene.simulate_reboot();
        fs::remove_dir_all(scene.node.entry(&target)).expect("the entry");
        scene.spawn(scene.command(&[]));
        scene.call_ok(volume.delete());

        for round in ["first", "second"] {
            scene
                .call(volume.unpublish(&target))
                .unwrap_or_else(|status| panic!("{what}, {round}: {status}"));
            assert!(!target.exists(), "{what}");
            scene
                .call(volume.unstage())
                .unwrap_or_else(|status| panic!("{what}, {round}: {status}"));
        }
        let kept = scene.quarantined_files("stray");
        assert_eq!(kept.len(), files.len(), "{what}: {kept:?}");
        assert!(
            kept.iter().all(|file| file.ends_with("sub/stray")),
            "{what}: {kept:?}"
        );
    }
}

/// The entry that a runtime would find is removed as well.
#[test]
fn the_entry_of_a_deleted_volume_is_unstaged() {
    let scene = Scene::with_crust_ops();
    let volume = scene.staged("pv", filesystem("ext4"));
    let target = scene.target(POD, "pv");
    scene.call_ok(deferred_publish_request(&volume, &target));
    let device = scene.device(&volume.id);
    scene.remove_files(&volume);
    scene.call_ok(volume.unpublish(&target));
    assert!(!target.exists() && !scene.node.entry(&target).exists());
    scene.call_ok(volume.unstage());
    loopdev::detach(&device);
}

/// The mount is known to be the volume's, because its device names the unlinked image. This is tested with and without
/// a record.
#[test]
fn a_mount_of_a_deleted_image_is_unmounted() {
    for (capability, is_known) in [
        (filesystem("ext4"), false),
        (block(), false),
        (filesystem("ext4"), true),
        (block(), true),
    ] {
        let (scene, volume) = Scene::with_staged(capability);
        let target = scene.publish(&volume, POD);
        let device = scene.device(&volume.id);
        if is_known {
            fs::remove_file(scene.image(&volume.id)).expect("the image");
        } else {
            scene.remove_files(&volume);
        }
        scene.call_ok(volume.unpublish(&target));
        assert!(!target.exists());
        assert_eq!(mounts_below(&target), Vec::<PathBuf>::new());
        scene.call_ok(volume.unstage());
        scene.call_ok(volume.delete());
        loopdev::detach(&device);
        assert_eq!(scene.leftovers(), Vec::<PathBuf>::new());
    }
}

/// Mounts of others stay. The error, which becomes an event of the pod, names the mount.
#[test]
fn mounts_of_others_stay() {
    let scene = Scene::with_crust_ops();
    let volume = scene.volume("pv", filesystem("ext4"));
    scene.call_ok(volume.delete());
    let target = scene.target(POD, "pv");
    let assert_refused = |what: &str, path: &Path| {
        let called = if path == volume.staging {
            scene.call(volume.unstage()).map(drop)
        } else {
            scene.call(volume.unpublish(&target)).map(drop)
        };
        let message = expect_error(called, Code::FailedPrecondition);
        assert!(
            message.contains(&volume.id) && message.contains(utf8(path)),
            "{what}: {message}"
        );
    };
    let below = target.join("sub");
    for (what, path) in [
        ("a mount", &target),
        ("a mount below", &below),
        ("a mount at the staging path", &volume.staging),
    ] {
        fs::create_dir_all(path).expect("mkdir");
        tmpfs(path);
        write(path, "theirs", "data");
        assert_refused(what, path);
        assert_eq!(read(path, "theirs"), "data", "{what}");
        unmount(path);
    }

    // A device of another driver.
    let device = LoopDevice::ext4(scene.node.dir(), 16);
    let staged = ["--device", utf8(device.path()), "--fstype", "ext4"];
    let stage = [&["stage", utf8(&target)][..], &staged].concat();
    let _ = scene.node.handler().crust(&stage).success();
    assert_refused("another driver's", &target);
    assert!(scene.node.entry(&target).exists());
    let _ = scene
        .node
        .handler()
        .crust(&["unstage", utf8(&target)])
        .success();

    // Another volume of this driver.
    let other = scene.staged("other", filesystem("ext4"));
    scene.call_ok(other.publish(&target));
    write(&target, "file", "data");
    assert_refused("another volume", &target);
    assert_eq!(read(&target, "file"), "data");
    let with_other_staging = CsiVolume {
        staging: other.staging.clone(),
        ..volume.clone()
    };
    let message = expect_error(
        scene.call(with_other_staging.unstage()),
        Code::FailedPrecondition,
    );
    assert!(message.contains(&other.id), "{message}");
    assert!(other.staging.exists());
    scene.remove_volume(&other, &[&target]);
}

/// Only files at one of kubelet's own paths are known to belong to the volume.
#[test]
fn files_are_moved_away_from_kubelets_paths_only() {
    let (scene, volume) = Scene::with_volume(filesystem("ext4"));
    scene.call_ok(volume.delete());
    write(&volume.staging, "stray", "data");
    scene.call_ok(volume.unstage());
    let kept = scene.quarantined_files("stray");
    assert!(kept.len() == 1 && kept[0].ends_with("stray"), "{kept:?}");

    let elsewhere = scene.node.dir().subdir("elsewhere");
    write(&elsewhere, "theirs", "data");
    let nowhere = scene.node.dir().join("no/such/directory");
    for path in [&elsewhere, &nowhere] {
        scene.call_ok(volume.unpublish(path));
        let unstage = CsiVolume {
            staging: path.clone(),
            ..volume.clone()
        };
        scene.call_ok(unstage.unstage());
    }
    assert_eq!(read(&elsewhere, "theirs"), "data");
}
