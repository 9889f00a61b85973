//! `DeleteVolume`: only volumes that are not in use are deleted.

use std::fs;
use std::path::PathBuf;

use runcrust_tests::csi::{block, filesystem};
use runcrust_tests::node::utf8;
use runcrust_tests::volume::with_mounted;
use tonic::Code;

use crate::expect_error;
use crate::scene::{Scene, read, write};

#[test]
fn a_volume_is_removed_completely() {
    let (scene, volume) = Scene::with_volume(filesystem("ext4"));
    scene.call_ok(volume.delete());
    assert_eq!(scene.leftovers(), Vec::<PathBuf>::new());
    scene.call(volume.delete()).expect("the repeated call");
    let second = scene.volume("pv", filesystem("ext4"));
    scene
        .call(second.stage())
        .expect("a new volume with the same name");
    scene.remove_volume(&second, &[]);
}

#[test]
fn a_recreated_volume_is_empty() {
    let (scene, volume) = Scene::with_staged(filesystem("ext4"));
    let target = scene.publish(&volume, "pod");
    write(&target, "file", "secret");
    scene.remove_volume(&volume, &[&target]);
    let volume = scene.staged("pv", filesystem("ext4"));
    let target = scene.publish(&volume, "pod");
    assert!(!target.join("file").exists());
    scene.remove_volume(&volume, &[&target]);
}

/// A kubelet that was killed between `NodeUnpublishVolume` and `NodeUnstageVolume` may never call the latter.
#[test]
fn an_unused_staging_is_removed_with_its_volume() {
    for (capability, is_published) in [
        (filesystem("ext4"), false),
        (filesystem("ext4"), true),
        (block(), true),
    ] {
        let (scene, volume) = Scene::with_staged(capability);
        if is_published {
            let target = scene.publish(&volume, "pod");
            scene.call_ok(volume.unpublish(&target));
        }
        scene.restart(&[]);
        assert_eq!(scene.devices(&volume.id).len(), 1, "still staged");
        scene.call_ok(volume.delete());
        assert_eq!(scene.leftovers(), Vec::<PathBuf>::new());
        scene
            .call(volume.unstage())
            .expect("a late NodeUnstageVolume");
        scene.call(volume.delete()).expect("the repeated call");
    }
}

#[test]
fn a_staged_volume_with_a_device_in_use_is_kept() {
    let (scene, volume) = Scene::with_staged(filesystem("ext4"));
    let device = scene.device(&volume.id);
    let assert_in_use = || {
        let message = expect_error(scene.call(volume.delete()), Code::FailedPrecondition);
        assert!(
            message.contains(&volume.id) && message.contains(utf8(&device)),
            "{message}"
        );
        assert!(scene.image(&volume.id).exists() && scene.device(&volume.id) == device);
    };
    with_mounted(&device, |root| {
        let open = fs::write(root.join("file"), "data");
        open.expect("a file");
        assert_in_use();
    });
    let open = fs::File::open(&device).expect("the device");
    assert_in_use();
    drop(open);
    let target = scene.publish(&volume, "pod");
    assert_eq!(read(&target, "file"), "data", "the data are kept");
    scene.call_ok(volume.unpublish(&target));
    scene.call(volume.delete()).expect("the volume is unused");
    assert_eq!(scene.leftovers(), Vec::<PathBuf>::new());
}

#[test]
fn a_published_volume_is_not_deleted() {
    for capability in [filesystem("ext4"), block()] {
        let (scene, volume) = Scene::with_staged(capability);
        let target = scene.publish(&volume, "pod");
        let message = expect_error(scene.call(volume.delete()), Code::FailedPrecondition);
        assert!(message.contains("NodeUnpublishVolume"), "{message}");
        scene.restart(&[]);
        expect_error(scene.call(volume.delete()), Code::FailedPrecondition);
        assert!(scene.image(&volume.id).exists() && scene.ids() == [volume.id.as_str()]);
        scene.remove_volume(&volume, &[&target]);
    }
}

#[test]
fn a_refused_delete_keeps_the_data() {
    let (scene, volume) = Scene::with_staged(filesystem("ext4"));
    let target = scene.publish(&volume, "pod");
    write(&target, "file", "data");
    expect_error(scene.call(volume.delete()), Code::FailedPrecondition);
    assert_eq!(read(&target, "file"), "data");
    scene.remove_volume(&volume, &[&target]);
}
