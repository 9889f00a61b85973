//! `DeleteVolume`: only of what nobody has.

use std::path::PathBuf;

use runcrust_tests::csi::{block, filesystem};
use tonic::Code;

use crate::refused;
use crate::scene::{Scene, read, write};

#[test]
fn a_volume_goes_whole_and_once() {
    let scene = Scene::new();
    let volume = scene.volume("pv", filesystem("ext4"));
    scene.call(volume.delete()).expect("DeleteVolume");
    assert_eq!(scene.left(), Vec::<PathBuf>::new());
    scene.call(volume.delete()).expect("again");
    let again = scene.volume("pv", filesystem("ext4"));
    scene
        .call(again.stage())
        .expect("the name can be made again");
    scene.put_away(&again, &[]);
}

#[test]
fn a_name_that_is_made_again_has_none_of_the_data() {
    let scene = Scene::new();
    let volume = scene.staged("pv", filesystem("ext4"));
    let target = scene.publish(&volume, "pod");
    write(&target, "file", "secret");
    scene.put_away(&volume, &[&target]);
    let volume = scene.staged("pv", filesystem("ext4"));
    let target = scene.publish(&volume, "pod");
    assert!(!target.join("file").exists());
    scene.put_away(&volume, &[&target]);
}

#[test]
fn what_is_staged_or_published_stays() {
    for capability in [filesystem("ext4"), block()] {
        let scene = Scene::new();
        let volume = scene.staged("pv", capability);
        let message = refused(scene.call(volume.delete()), Code::FailedPrecondition);
        assert!(
            message.contains(&volume.id) && message.contains("NodeUnstageVolume"),
            "{message}"
        );
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
    let scene = Scene::new();
    let volume = scene.staged("pv", filesystem("ext4"));
    let target = scene.publish(&volume, "pod");
    write(&target, "file", "data");
    refused(scene.call(volume.delete()), Code::FailedPrecondition);
    assert_eq!(read(&target, "file"), "data");
    scene.put_away(&volume, &[&target]);
}
