//! `NodeUnpublishVolume` and `NodeUnstageVolume` of a volume that was deleted first: kubelet would ask for ever, and
//! the pod's directory stay.

use std::fs;
use std::path::{Path, PathBuf};

use runcrust_tests::csi::{CsiVolume, DRIVER, block, filesystem};
use runcrust_tests::host::mounts_below;
use runcrust_tests::mounts::{tmpfs, unmount};
use runcrust_tests::node::utf8;
use runcrust_tests::{LoopDevice, POD, loopdev};
use tonic::Code;

use crate::scene::{Scene, found, read, write};
use crate::{deferring, refused};

impl Scene {
    /// Somebody has removed a volume behind the driver's back.
    fn lose(&self, volume: &CsiVolume) {
        for file in [self.record(&volume.id), self.image(&volume.id)] {
            fs::remove_file(&file).expect("a file of the volume's");
        }
    }

    /// Files of a name that were moved away from kubelet's directories.
    fn quarantined(&self, name: &str) -> Vec<PathBuf> {
        let plugins = self.node.handler().kubelet_dir().join("plugins");
        found(&plugins.join(DRIVER).join("quarantine"), name)
    }
}

/// The node is down while its pod is removed by force: the mounts and what was staged in /run go with it, the
/// volume is deleted, and the kubelet that is started then has the pod's directory.
#[test]
fn a_deferred_volume_that_was_deleted_while_the_node_was_down() {
    for (what, files) in [
        ("empty subPath directories", &[][..]),
        ("files", &["sub/stray"]),
    ] {
        let scene = Scene::deferring();
        let volume = scene.staged("pv", filesystem("ext4"));
        let target = scene.target(POD, "pv");
        scene.call_ok(deferring(&volume, &target));
        fs::create_dir_all(target.join("sub/deeper")).expect("as containerd makes them");
        for file in files {
            write(&target, file, "data");
        }
        scene.simulate_reboot();
        fs::remove_dir_all(scene.node.entry(&target)).expect("what was staged");
        scene.spawn(scene.command(&[]));
        scene.call_ok(volume.delete());

        for round in ["first", "again"] {
            scene
                .call(volume.unpublish(&target))
                .unwrap_or_else(|status| panic!("{what}, {round}: {status}"));
            assert!(!target.exists(), "{what}");
            scene
                .call(volume.unstage())
                .unwrap_or_else(|status| panic!("{what}, {round}: {status}"));
        }
        let kept = scene.quarantined("stray");
        assert_eq!(kept.len(), files.len(), "{what}: {kept:?}");
        assert!(
            kept.iter().all(|file| file.ends_with("sub/stray")),
            "{what}: {kept:?}"
        );
    }
}

/// What a runtime would find goes, too.
#[test]
fn what_is_staged_for_a_runtime_is_unstaged() {
    let scene = Scene::deferring();
    let volume = scene.staged("pv", filesystem("ext4"));
    let target = scene.target(POD, "pv");
    scene.call_ok(deferring(&volume, &target));
    let device = scene.device(&volume.id);
    scene.lose(&volume);
    scene.call_ok(volume.unpublish(&target));
    assert!(!target.exists() && !scene.node.entry(&target).exists());
    scene.call_ok(volume.unstage());
    loopdev::detach(&device);
}

/// Provably its own: the device shows its image, which was unlinked. With its record or without.
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
            fs::remove_file(scene.image(&volume.id)).expect("its image");
        } else {
            scene.lose(&volume);
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

/// It stays, and whoever reads the pod's events learns what is mounted where.
#[test]
fn what_others_have_there_stays() {
    let scene = Scene::deferring();
    let volume = scene.volume("pv", filesystem("ext4"));
    scene.call_ok(volume.delete());
    let target = scene.target(POD, "pv");
    let refuses = |what: &str, place: &Path| {
        let called = if place == volume.staging {
            scene.call(volume.unstage()).map(drop)
        } else {
            scene.call(volume.unpublish(&target)).map(drop)
        };
        let message = refused(called, Code::FailedPrecondition);
        assert!(
            message.contains(&volume.id) && message.contains(utf8(place)),
            "{what}: {message}"
        );
    };
    let below = target.join("sub");
    for (what, place) in [
        ("a mount", &target),
        ("a mount below", &below),
        ("a mount at the staging path", &volume.staging),
    ] {
        fs::create_dir_all(place).expect("mkdir");
        tmpfs(place);
        write(place, "theirs", "data");
        refuses(what, place);
        assert_eq!(read(place, "theirs"), "data", "{what}");
        unmount(place);
    }

    // A device that isn't the driver's.
    let device = LoopDevice::ext4(scene.node.dir(), 16);
    let staged = ["--device", utf8(device.path()), "--fstype", "ext4"];
    let stage = [&["stage", utf8(&target)][..], &staged].concat();
    let _ = scene.node.handler().crust(&stage).success();
    refuses("another driver's", &target);
    assert!(scene.node.entry(&target).exists());
    let _ = scene
        .node
        .handler()
        .crust(&["unstage", utf8(&target)])
        .success();

    // Another volume of the driver's.
    let other = scene.staged("other", filesystem("ext4"));
    scene.call_ok(other.publish(&target));
    write(&target, "file", "data");
    refuses("another volume", &target);
    assert_eq!(read(&target, "file"), "data");
    let theirs = CsiVolume {
        staging: other.staging.clone(),
        ..volume.clone()
    };
    let message = refused(scene.call(theirs.unstage()), Code::FailedPrecondition);
    assert!(message.contains(&other.id), "{message}");
    assert!(other.staging.exists());
    scene.put_away(&other, &[&target]);
}

/// Only what stands at one of kubelet's own places is known to be the volume's.
#[test]
fn files_are_moved_away_from_kubelets_places_alone() {
    let (scene, volume) = Scene::with_volume(filesystem("ext4"));
    scene.call_ok(volume.delete());
    write(&volume.staging, "stray", "data");
    scene.call_ok(volume.unstage());
    let kept = scene.quarantined("stray");
    assert!(kept.len() == 1 && kept[0].ends_with("stray"), "{kept:?}");

    let elsewhere = scene.node.dir().subdir("elsewhere");
    write(&elsewhere, "theirs", "data");
    let nowhere = scene.node.dir().join("no/such/directory");
    for place in [&elsewhere, &nowhere] {
        scene.call_ok(volume.unpublish(place));
        let unstage = CsiVolume {
            staging: place.clone(),
            ..volume.clone()
        };
        scene.call_ok(unstage.unstage());
    }
    assert_eq!(read(&elsewhere, "theirs"), "data");
}
