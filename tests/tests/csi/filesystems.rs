//! Each file system, from its making to its end.

use std::fs;

use runcrust_tests::csi::filesystem;
use runcrust_tests::host;
use runcrust_tests::volume::{fsck, mkfs};

use crate::scene::{Scene, read, write};

fn lives(fstype: &str) {
    let (scene, volume) = Scene::with_staged(filesystem(fstype));
    let mut target = scene.publish(&volume, "pod-a");
    let mounts = host::mounts();
    let mount = mounts
        .iter()
        .find(|mount| mount.point == target)
        .expect("its mount");
    assert_eq!(mount.fstype, fstype);
    for pod in ["pod-b", "pod-c"] {
        write(&target, "file", pod);
        scene.take_back(&volume, &[&target]);
        scene.restart(&[]);
        scene.call_ok(volume.stage());
        target = scene.publish(&volume, pod);
        assert_eq!(read(&target, "file"), pod);
    }
    scene.call_ok(volume.unpublish(&target));
    fsck(fstype, &scene.device(&volume.id));
    scene.put_away(&volume, &[]);
}

#[test]
fn ext4_lives() {
    lives("ext4");
}

#[test]
fn xfs_lives() {
    lives("xfs");
}

#[test]
fn btrfs_lives() {
    lives("btrfs");
}

/// As a boot leaves it: nothing mounted, nothing attached, and records that say so.
#[test]
fn after_a_boot_it_is_staged_and_published_anew() {
    for fstype in ["ext4", "xfs", "btrfs"] {
        let (scene, volume) = Scene::with_staged(filesystem(fstype));
        let target = scene.publish(&volume, "pod");
        write(&target, "file", "data");
        scene.simulate_reboot();
        scene.spawn(scene.command(&[]));
        scene.call_ok(volume.stage());
        scene.call_ok(volume.publish(&target));
        assert_eq!(read(&target, "file"), "data");
        scene.put_away(&volume, &[&target]);
    }
}

/// kubelet may find a pod's volume unmounted, and publish without staging.
#[test]
fn after_a_boot_publishing_works_or_names_what_is_missing() {
    let (scene, volume) = Scene::with_staged(filesystem("ext4"));
    let target = scene.publish(&volume, "pod");
    write(&target, "file", "data");
    scene.simulate_reboot();
    scene.spawn(scene.command(&[]));
    scene.call_ok(volume.publish(&target));
    assert_eq!(read(&target, "file"), "data");
    scene.put_away(&volume, &[&target]);
}

/// A file system that somebody else has made is as good as ours.
#[test]
fn one_that_is_there_already_is_used() {
    let (scene, volume) = Scene::with_volume(filesystem("ext4"));
    mkfs("ext4", &scene.image(&volume.id), &["-L", "by-hand"]);
    scene.call_ok(volume.stage());
    let image = fs::read(scene.image(&volume.id)).expect("its image");
    let label = image[1024 + 120..].starts_with(b"by-hand");
    assert!(label, "it was made anew");
    scene.put_away(&volume, &[]);
}
