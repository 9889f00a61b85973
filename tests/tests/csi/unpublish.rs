//! `NodeUnpublishVolume`: nothing is left at the target path, and nothing is lost.

use std::fs;
use std::path::{Path, PathBuf};

use crust_proto::csi::v1::NodeUnpublishVolumeRequest;
use runcrust_tests::Delegate;
use runcrust_tests::csi::{DRIVER, block, filesystem};
use runcrust_tests::host::mounts_below;
use tonic::Code;

use crate::scene::{Scene, deferral, found, read, write};
use crate::{deferring, refused};

#[test]
fn the_target_path_goes_and_the_call_can_be_repeated() {
    for capability in [filesystem("ext4"), block()] {
        let (scene, volume) = Scene::with_staged(capability);
        let target = scene.publish(&volume, "pod");
        scene.call_ok(volume.unpublish(&target));
        assert!(!target.exists() && target.parent().expect("it has one").is_dir());
        scene.call(volume.unpublish(&target)).expect("again");
        scene.restart(&[]);
        scene
            .call(volume.unpublish(&target))
            .expect("after a restart");
        let never = scene.target("another", "pv");
        scene
            .call(volume.unpublish(&never))
            .expect("it never was there");
        let nowhere = scene.node.dir().join("no/such/directory");
        scene
            .call(volume.unpublish(&nowhere))
            .expect("its parent isn't, either");
        scene.put_away(&volume, &[&target]);
    }
}

#[test]
fn what_is_written_is_there_when_it_is_published_again() {
    let (scene, volume) = Scene::with_staged(filesystem("ext4"));
    let mut target = scene.publish(&volume, "pod-a");
    for pod in ["pod-b", "pod-c"] {
        write(&target, "file", pod);
        scene.call_ok(volume.unpublish(&target));
        target = scene.publish(&volume, pod);
        assert_eq!(read(&target, "file"), pod);
    }
    scene.put_away(&volume, &[&target]);
}

#[test]
fn one_pods_end_is_not_the_others() {
    let (scene, volume) = Scene::with_staged(filesystem("ext4"));
    let (first, second) = (
        scene.publish(&volume, "pod-a"),
        scene.publish(&volume, "pod-b"),
    );
    scene.call_ok(volume.unpublish(&first));
    write(&second, "file", "data");
    refused(scene.call(volume.unstage()), Code::FailedPrecondition);
    assert_eq!(read(&second, "file"), "data");
    scene.put_away(&volume, &[&second]);
}

#[test]
fn a_volume_that_a_pod_still_uses_stays_whole() {
    let (scene, volume) = Scene::with_staged(filesystem("ext4"));
    let target = scene.publish(&volume, "pod");
    write(&target, "file", "data");
    let open = fs::File::open(target.join("file")).expect("the file");
    let message = refused(
        scene.call(volume.unpublish(&target)),
        Code::FailedPrecondition,
    );
    assert!(message.contains(&volume.id), "{message}");
    assert_eq!(read(&target, "file"), "data");
    drop(open);
    scene.put_away(&volume, &[&target]);
}

#[test]
fn mounts_over_one_another_all_go() {
    let (scene, volume) = Scene::with_staged(filesystem("ext4"));
    let target = scene.publish(&volume, "pod");
    // As when two mounters that both have found nothing have mounted.
    runcrust_tests::mounts::bind(&target, &target);
    assert_eq!(mounts_below(&target).len(), 2);
    scene.call_ok(volume.unpublish(&target));
    assert_eq!(mounts_below(&target), Vec::<PathBuf>::new());
    scene.put_away(&volume, &[&target]);
}

#[test]
fn what_others_have_mounted_stays() {
    let (scene, volume) = Scene::with_staged(filesystem("ext4"));
    let target = scene.target("pod", "pv");
    fs::create_dir(&target).expect("mkdir");
    runcrust_tests::mounts::tmpfs(&target);
    write(&target, "theirs", "data");
    refused(
        scene.call(volume.unpublish(&target)),
        Code::FailedPrecondition,
    );
    assert_eq!(read(&target, "theirs"), "data");
    nix::mount::umount(&target).expect("umount");
    scene.put_away(&volume, &[&target]);
}

/// A pod under a handler without runcrust has written to the host's disk.
#[test]
fn files_in_the_directory_are_kept_and_told() {
    let scene = Scene::new();
    let quarantine = scene
        .node
        .handler()
        .kubelet_dir()
        .join("plugins")
        .join(DRIVER);
    for (round, arguments) in [&[][..], &["--quarantine-dir"]].iter().enumerate() {
        let place = match arguments {
            [] => quarantine.clone(),
            _ => scene.node.dir().join("quarantine"),
        };
        let mut arguments = arguments.to_vec();
        if !arguments.is_empty() {
            arguments.push(place.to_str().expect("UTF-8"));
        }
        scene.restart(&arguments);
        let volume = scene.staged("pv", filesystem("ext4"));
        let target = scene.target("pod", "pv");
        fs::create_dir_all(target.join("sub")).expect("mkdir");
        write(&target, "sub/stray", "data");
        scene
            .call(volume.unpublish(&target))
            .expect("the pod never sticks");
        assert!(!target.exists());
        let kept = found(&place, "stray");
        assert_eq!(
            kept.len(),
            1,
            "round {round}: {kept:?} in {}",
            place.display()
        );
        assert_eq!(fs::read_to_string(&kept[0]).expect("it"), "data");
        let told = kept[0]
            .parent()
            .and_then(Path::parent)
            .expect("where it was moved to");
        assert!(
            scene.log().contains(told.to_str().expect("UTF-8")),
            "{}",
            scene.log()
        );
        scene.put_away(&volume, &[]);
    }
}

/// A boot has taken what was staged, and mounts: there is nobody to ask.
#[test]
fn where_nothing_is_staged_nobody_has_to_answer() {
    let (node, ops, csi) = deferral(Delegate::Runc, &[]);
    let deferred = csi.volume("pv-1", filesystem("ext4"));
    csi.call(deferred.stage()).unwrap();
    let target = csi.target("pod", "pv-1");
    csi.call(deferring(&deferred, &target)).unwrap();
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
