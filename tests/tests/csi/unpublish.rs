//! `NodeUnpublishVolume`: nothing is left at the target path, and no data are lost.

use std::fs;
use std::path::{Path, PathBuf};

use crust_proto::csi::v1::NodeUnpublishVolumeRequest;
use runcrust_tests::Delegate;
use runcrust_tests::csi::{DRIVER, block, filesystem};
use runcrust_tests::host::mounts_below;
use tonic::Code;

use crate::scene::{Scene, deferring_driver, find_files, read, write};
use crate::{deferred_publish_request, expect_error};

#[test]
fn an_unpublish_removes_the_target_and_can_be_repeated() {
    for capability in [filesystem("ext4"), block()] {
        let (scene, volume) = Scene::with_staged(capability);
        let target = scene.publish(&volume, "pod");
        scene.call_ok(volume.unpublish(&target));
        assert!(!target.exists() && target.parent().expect("a parent").is_dir());
        scene
            .call(volume.unpublish(&target))
            .expect("the repeated call");
        scene.restart(&[]);
        scene
            .call(volume.unpublish(&target))
            .expect("after a restart");
        let never = scene.target("another", "pv");
        scene
            .call(volume.unpublish(&never))
            .expect("never published");
        let nowhere = scene.node.dir().join("no/such/directory");
        scene.call(volume.unpublish(&nowhere)).expect("no parent");
        scene.remove_volume(&volume, &[&target]);
    }
}

#[test]
fn data_are_there_when_a_volume_is_published_again() {
    let (scene, volume) = Scene::with_staged(filesystem("ext4"));
    let mut target = scene.publish(&volume, "pod-a");
    for pod in ["pod-b", "pod-c"] {
        write(&target, "file", pod);
        scene.call_ok(volume.unpublish(&target));
        target = scene.publish(&volume, pod);
        assert_eq!(read(&target, "file"), pod);
    }
    scene.remove_volume(&volume, &[&target]);
}

#[test]
fn the_end_of_one_pod_does_not_affect_another() {
    let (scene, volume) = Scene::with_staged(filesystem("ext4"));
    let (first, second) = (
        scene.publish(&volume, "pod-a"),
        scene.publish(&volume, "pod-b"),
    );
    scene.call_ok(volume.unpublish(&first));
    write(&second, "file", "data");
    expect_error(scene.call(volume.unstage()), Code::FailedPrecondition);
    assert_eq!(read(&second, "file"), "data");
    scene.remove_volume(&volume, &[&second]);
}

#[test]
fn a_volume_in_use_is_not_unmounted() {
    let (scene, volume) = Scene::with_staged(filesystem("ext4"));
    let target = scene.publish(&volume, "pod");
    write(&target, "file", "data");
    let open = fs::File::open(target.join("file")).expect("the file");
    let message = expect_error(
        scene.call(volume.unpublish(&target)),
        Code::FailedPrecondition,
    );
    assert!(message.contains(&volume.id), "{message}");
    assert_eq!(read(&target, "file"), "data");
    drop(open);
    scene.remove_volume(&volume, &[&target]);
}

#[test]
fn stacked_mounts_are_all_removed() {
    let (scene, volume) = Scene::with_staged(filesystem("ext4"));
    let target = scene.publish(&volume, "pod");
    // Two mounters that both found nothing mounted leave two mounts.
    runcrust_tests::mounts::bind(&target, &target);
    assert_eq!(mounts_below(&target).len(), 2);
    scene.call_ok(volume.unpublish(&target));
    assert_eq!(mounts_below(&target), Vec::<PathBuf>::new());
    scene.remove_volume(&volume, &[&target]);
}

#[test]
fn a_mount_of_another_program_stays() {
    let (scene, volume) = Scene::with_staged(filesystem("ext4"));
    let target = scene.target("pod", "pv");
    fs::create_dir(&target).expect("mkdir");
    runcrust_tests::mounts::tmpfs(&target);
    write(&target, "theirs", "data");
    expect_error(
        scene.call(volume.unpublish(&target)),
        Code::FailedPrecondition,
    );
    assert_eq!(read(&target, "theirs"), "data");
    nix::mount::umount(&target).expect("umount");
    scene.remove_volume(&volume, &[&target]);
}

/// A pod with a handler without runcrust has written to the host's disk.
#[test]
fn stray_files_are_kept_and_logged() {
    let scene = Scene::new();
    let quarantine = scene
        .node
        .handler()
        .kubelet_dir()
        .join("plugins")
        .join(DRIVER);
    for (round, arguments) in [&[][..], &["--quarantine-dir"]].iter().enumerate() {
        let expected_dir = match arguments {
            [] => quarantine.clone(),
            _ => scene.node.dir().join("quarantine"),
        };
        let mut arguments = arguments.to_vec();
        if !arguments.is_empty() {
            arguments.push(expected_dir.to_str().expect("UTF-8"));
        }
        scene.restart(&arguments);
        let volume = scene.staged("pv", filesystem("ext4"));
        let target = scene.target("pod", "pv");
        fs::create_dir_all(target.join("sub")).expect("mkdir");
        write(&target, "sub/stray", "data");
        scene
            .call(volume.unpublish(&target))
            .expect("the pod can end");
        assert!(!target.exists());
        let kept = find_files(&expected_dir, "stray");
        assert_eq!(
            kept.len(),
            1,
            "round {round}: {kept:?} in {}",
            expected_dir.display()
        );
        assert_eq!(fs::read_to_string(&kept[0]).expect("a file"), "data");
        let moved_to = kept[0]
            .parent()
            .and_then(Path::parent)
            .expect("the directory in the quarantine");
        assert!(
            scene.log().contains(moved_to.to_str().expect("UTF-8")),
            "{}",
            scene.log()
        );
        scene.remove_volume(&volume, &[]);
    }
}

/// A boot has removed the entry and the mounts, so the driver needs no `crust_ops`.
#[test]
fn without_an_entry_crust_ops_is_not_needed() {
    let (node, ops, csi) = deferring_driver(Delegate::Runc, &[]);
    let deferred = csi.volume("pv-1", filesystem("ext4"));
    csi.call(deferred.stage()).unwrap();
    let target = csi.target("pod", "pv-1");
    csi.call(deferred_publish_request(&deferred, &target))
        .unwrap();
    ops.kill();
    csi.simulate_reboot();
    fs::remove_dir_all(node.entry(&target)).unwrap();
    csi.spawn(csi.command(&[]));
    csi.call(deferred.unpublish(&target)).unwrap();
    assert!(!target.exists());

    let plain = csi.volume("pv-2", filesystem("ext4"));
    csi.call(plain.stage()).unwrap();
    let target = csi.target("pod", "pv-2");
    csi.call(plain.publish(&target)).unwrap();
    let unpublish = NodeUnpublishVolumeRequest {
        defer_fs_ops: true,
        ..plain.unpublish(&target)
    };
    csi.call(unpublish).unwrap();
    csi.call(plain.unstage()).unwrap();
    csi.call(deferred.unstage()).unwrap();
}
