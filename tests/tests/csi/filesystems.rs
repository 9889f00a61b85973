//! Each file system, from its creation to its removal.

use std::fs;

use runcrust_tests::csi::filesystem;
use runcrust_tests::host;
use runcrust_tests::volume::{fsck, mkfs};

use crate::scene::{Scene, read, write};

fn assert_used_by_three_pods(fstype: &str) {
    let (scene, volume) = Scene::with_staged(filesystem(fstype));
    let mut target = scene.publish(&volume, "pod-a");
    let mounts = host::mounts();
    let mount = mounts
        .iter()
        .find(|mount| mount.point == target)
        .expect("the mount");
    assert_eq!(mount.fstype, fstype);
    for pod in ["pod-b", "pod-c"] {
        write(&target, "file", pod);
        scene.unpublish_and_unstage(&volume, &[&target]);
        scene.restart(&[]);
        scene.call_ok(volume.stage());
        target = scene.publish(&volume, pod);
        assert_eq!(read(&target, "file"), pod);
    }
    scene.call_ok(volume.unpublish(&target));
    fsck(fstype, &scene.device(&volume.id));
    scene.remove_volume(&volume, &[]);
}

#[test]
fn pods_use_an_ext4_one_after_the_other() {
    assert_used_by_three_pods("ext4");
}

#[test]
fn pods_use_an_xfs_one_after_the_other() {
    assert_used_by_three_pods("xfs");
}

#[test]
fn pods_use_a_btrfs_one_after_the_other() {
    assert_used_by_three_pods("btrfs");
}

/// A boot removes mounts and loop devices, and leaves the records.
#[test]
fn after_a_boot_a_volume_is_staged_and_published_anew() {
    for fstype in ["ext4", "xfs", "btrfs"] {
        let (scene, volume) = Scene::with_staged(filesystem(fstype));
        let target = scene.publish(&volume, "pod");
        write(&target, "file", "data");
        scene.simulate_reboot();
        scene.spawn(scene.command(&[]));
        scene.call_ok(volume.stage());
        scene.call_ok(volume.publish(&target));
        assert_eq!(read(&target, "file"), "data");
        scene.remove_volume(&volume, &[&target]);
    }
}

/// kubelet may find a pod's volume unmounted, and publish without staging.
#[test]
fn after_a_boot_publishing_works_without_staging() {
    let (scene, volume) = Scene::with_staged(filesystem("ext4"));
    let target = scene.publish(&volume, "pod");
    write(&target, "file", "data");
    scene.simulate_reboot();
    scene.spawn(scene.command(&[]));
    scene.call_ok(volume.publish(&target));
    assert_eq!(read(&target, "file"), "data");
    scene.remove_volume(&volume, &[&target]);
}

/// A file system that was not created by the driver is used as well.
#[test]
fn an_existing_file_system_is_used() {
    let (scene, volume) = Scene::with_volume(filesystem("ext4"));
    mkfs("ext4", &scene.image(&volume.id), &["-L", "by-hand"]);
    scene.call_ok(volume.stage());
    let image = fs::read(scene.image(&volume.id)).expect("the image");
    let label = image[1024 + 120..].starts_with(b"by-hand");
    assert!(label, "the file system is kept");
    scene.remove_volume(&volume, &[]);
}
