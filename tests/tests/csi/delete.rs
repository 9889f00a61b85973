//! `DeleteVolume`: only of what nobody has.

use std::fs;
use std::path::PathBuf;

use runcrust_tests::csi::{block, filesystem};
use runcrust_tests::node::utf8;
use runcrust_tests::volume::with_mounted;
use tonic::Code;

use crate::refused;
use crate::scene::{Scene, read, write};

#[test]
fn a_volume_goes_whole_and_once() {
    let (scene, volume) = Scene::with_volume(filesystem("ext4"));
    scene.call_ok(volume.delete());
    assert_eq!(scene.leftovers(), Vec::<PathBuf>::new());
    scene.call(volume.delete()).expect("again");
    let again = scene.volume("pv", filesystem("ext4"));
    scene
        .call(again.stage())
        .expect("the name can be made again");
    scene.put_away(&again, &[]);
}

#[test]
fn a_name_that_is_made_again_has_none_of_the_data() {
    let (scene, volume) = Scene::with_staged(filesystem("ext4"));
    let target = scene.publish(&volume, "pod");
    write(&target, "file", "secret");
    scene.put_away(&volume, &[&target]);
    let volume = scene.staged("pv", filesystem("ext4"));
    let target = scene.publish(&volume, "pod");
    assert!(!target.join("file").exists());
    scene.put_away(&volume, &[&target]);
}

/// As after a kubelet that was killed between `NodeUnpublishVolume` and `NodeUnstageVolume`, and forgot the latter.
#[test]
fn a_staging_that_nothing_uses_goes_with_the_volume() {
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
        assert_eq!(scene.devices(&volume.id).len(), 1, "it is staged still");
        scene.call_ok(volume.delete());
        assert_eq!(scene.leftovers(), Vec::<PathBuf>::new());
        scene
            .call(volume.unstage())
            .expect("kubelet remembers after all");
        scene.call(volume.delete()).expect("again");
    }
}

#[test]
fn a_staged_volume_whose_device_is_in_use_stays() {
    let (scene, volume) = Scene::with_staged(filesystem("ext4"));
    let device = scene.device(&volume.id);
    let says_so = || {
        let message = refused(scene.call(volume.delete()), Code::FailedPrecondition);
        assert!(
            message.contains(&volume.id) && message.contains(utf8(&device)),
            "{message}"
        );
        assert!(scene.image(&volume.id).exists() && scene.device(&volume.id) == device);
    };
    with_mounted(&device, |root| {
        let open = fs::write(root.join("file"), "data");
        open.expect("a file");
        says_so();
    });
    let open = fs::File::open(&device).expect("the device");
    says_so();
    drop(open);
    let target = scene.publish(&volume, "pod");
    assert_eq!(read(&target, "file"), "data", "nothing was lost");
    scene.call_ok(volume.unpublish(&target));
    scene.call(volume.delete()).expect("nobody uses it");
    assert_eq!(scene.leftovers(), Vec::<PathBuf>::new());
}

#[test]
fn what_is_published_stays() {
    for capability in [filesystem("ext4"), block()] {
        let (scene, volume) = Scene::with_staged(capability);
        let target = scene.publish(&volume, "pod");
        let message = refused(scene.call(volume.delete()), Code::FailedPrecondition);
        assert!(message.contains("NodeUnpublishVolume"), "{message}");
        scene.restart(&[]);
        refused(scene.call(volume.delete()), Code::FailedPrecondition);
        assert!(scene.image(&volume.id).exists() && scene.ids() == [volume.id.as_str()]);
        scene.put_away(&volume, &[&target]);
    }
}

#[test]
fn a_volume_that_is_refused_to_go_has_its_data() {
    let (scene, volume) = Scene::with_staged(filesystem("ext4"));
    let target = scene.publish(&volume, "pod");
    write(&target, "file", "data");
    refused(scene.call(volume.delete()), Code::FailedPrecondition);
    assert_eq!(read(&target, "file"), "data");
    scene.put_away(&volume, &[&target]);
}
