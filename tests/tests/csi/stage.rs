//! `NodeStageVolume` and `NodeUnstageVolume`: one device with a file system, which is not mounted.

use std::fs;
use std::path::PathBuf;

use crust_proto::csi::v1::volume_capability::access_mode::Mode;
use crust_proto::csi::v1::{NodeStageVolumeRequest, VolumeCapability};
use runcrust_tests::csi::{CsiVolume, block, filesystem, mount_of};
use runcrust_tests::host::{mounts_below, mounts_of_device};
use runcrust_tests::volume::{fsck, type_on};
use tonic::Code;

use crate::scene::{Scene, read, write};
use crate::{expect_error, expect_error_in};

fn with(volume: &CsiVolume, change: impl FnOnce(&mut VolumeCapability)) -> NodeStageVolumeRequest {
    let mut request = volume.stage();
    change(request.volume_capability.as_mut().expect("a capability"));
    request
}

#[test]
fn a_stage_creates_a_file_system_and_mounts_nothing() {
    for (fstype, made) in [
        ("ext4", "ext4"),
        ("xfs", "xfs"),
        ("btrfs", "btrfs"),
        ("", "ext4"),
    ] {
        let (scene, volume) = Scene::with_staged(filesystem(fstype));
        let device = scene.device(&volume.id);
        assert_eq!(type_on(&device), Some(made));
        assert_eq!(mounts_of_device(&device), Vec::<String>::new());
        assert_eq!(mounts_below(&volume.staging), Vec::<PathBuf>::new());
        let mut inside = fs::read_dir(&volume.staging).expect("the staging directory");
        assert!(inside.next().is_none(), "the staging directory stays empty");
        fsck(made, &device);
        scene.call_ok(volume.unstage());
        assert!(
            volume.staging.is_dir(),
            "the directory belongs to the orchestrator"
        );
        scene.remove_volume(&volume, &[]);
    }
}

#[test]
fn a_repeated_stage_uses_the_same_device() {
    for capability in [filesystem("ext4"), block()] {
        let (scene, volume) = Scene::with_staged(capability);
        let device = scene.device(&volume.id);
        let made = fs::read(scene.image(&volume.id)).expect("the image");
        scene.call(volume.stage()).expect("the repeated call");
        assert_eq!(scene.device(&volume.id), device);
        scene.restart(&[]);
        scene.call(volume.stage()).expect("after a restart");
        assert_eq!(scene.device(&volume.id), device);
        let is_same = fs::read(scene.image(&volume.id)).expect("the image") == made;
        assert!(
            is_same || volume.capability != block(),
            "nothing is written to a block volume"
        );
        scene.remove_volume(&volume, &[]);
    }
}

#[test]
fn a_stage_can_be_repeated_while_a_pod_runs() {
    let (scene, volume) = Scene::with_staged(filesystem("ext4"));
    let target = scene.publish(&volume, "pod");
    write(&target, "file", "data");
    scene.call_ok(volume.stage());
    assert_eq!(read(&target, "file"), "data");
    scene.remove_volume(&volume, &[&target]);
}

#[test]
fn another_capability_for_the_same_path_is_refused() {
    let (scene, volume) = Scene::with_staged(filesystem("ext4"));
    let others = [
        (
            "another type",
            with(&volume, |it| mount_of(it).fs_type = "xfs".to_owned()),
        ),
        (
            "an option",
            with(&volume, |it| {
                mount_of(it).mount_flags = vec!["noatime".to_owned()];
            }),
        ),
        ("a block device", with(&volume, |it| *it = block())),
        (
            "a reader",
            with(&volume, |it| {
                it.access_mode
                    .as_mut()
                    .expect("a mode")
                    .set_mode(Mode::SingleNodeReaderOnly);
            }),
        ),
    ];
    for (what, request) in others {
        expect_error_in(scene.call(request), Code::AlreadyExists, what);
    }
    scene.remove_volume(&volume, &[]);
}

#[test]
fn an_existing_file_system_is_not_replaced() {
    let scene = Scene::new();
    let mut volume = scene.staged("pv", filesystem("ext4"));
    let target = scene.publish(&volume, "pod");
    write(&target, "file", "data");
    scene.unpublish_and_unstage(&volume, &[&target]);
    let before = fs::read(scene.image(&volume.id)).expect("the image");
    for other in ["xfs", "btrfs"] {
        let request = with(&volume, |it| other.clone_into(&mut mount_of(it).fs_type));
        let message = expect_error(scene.call(request), Code::FailedPrecondition);
        assert!(
            message.contains("ext4") && message.contains(&volume.id),
            "{message}"
        );
    }
    assert!(
        fs::read(scene.image(&volume.id)).expect("the image") == before,
        "the image is unchanged"
    );
    volume.capability = filesystem("ext4");
    scene.call_ok(volume.stage());
    scene.call_ok(volume.publish(&target));
    assert_eq!(read(&target, "file"), "data");
    scene.remove_volume(&volume, &[&target]);
}

#[test]
fn unsupported_capabilities_are_refused() {
    let (scene, volume) = Scene::with_volume(filesystem("ext4"));
    let mode = |mode: Mode| {
        with(&volume, |it| {
            it.access_mode.as_mut().expect("a mode").set_mode(mode);
        })
    };
    let mut context = volume.stage();
    context
        .volume_context
        .insert("crust.dev/defer".to_owned(), "maybe".to_owned());
    let cases = [
        ("a mode of several nodes", mode(Mode::MultiNodeMultiWriter)),
        ("no mode", mode(Mode::Unknown)),
        (
            "another type",
            with(&volume, |it| mount_of(it).fs_type = "ntfs".to_owned()),
        ),
        (
            "a bind",
            with(&volume, |it| {
                mount_of(it).mount_flags = vec!["bind".to_owned()];
            }),
        ),
        (
            "no gid",
            with(&volume, |it| {
                mount_of(it).volume_mount_group = "users".to_owned();
            }),
        ),
        ("a context", context),
    ];
    for (what, request) in cases {
        expect_error_in(scene.call(request), Code::InvalidArgument, what);
    }
    assert_eq!(scene.devices(&volume.id), Vec::<PathBuf>::new());
    scene.remove_volume(&volume, &[]);
}

#[test]
fn an_unstage_comes_after_the_unpublish() {
    let (scene, volume) = Scene::with_volume(filesystem("ext4"));
    scene
        .call(volume.unstage())
        .expect("the volume is not staged");
    scene.call_ok(volume.stage());
    let target = scene.publish(&volume, "pod");
    write(&target, "file", "data");
    let message = expect_error(scene.call(volume.unstage()), Code::FailedPrecondition);
    assert!(message.contains("NodeUnpublishVolume"), "{message}");
    scene.restart(&[]);
    expect_error(scene.call(volume.unstage()), Code::FailedPrecondition);
    assert_eq!(read(&target, "file"), "data");
    scene.unpublish_and_unstage(&volume, &[&target]);
    scene.remove_volume(&volume, &[]);
}

/// CSI: "If the volume corresponding to the `volume_id` is not staged to the `staging_target_path`, the
/// Plugin MUST reply `0 OK`."
#[test]
fn an_unstage_of_another_path_removes_nothing() {
    let (scene, volume) = Scene::with_staged(filesystem("ext4"));
    let device = scene.device(&volume.id);
    let mut other = volume.clone();
    other.staging = scene.node.dir().join("another");
    scene
        .call(other.unstage())
        .expect("the volume is not staged there");
    assert_eq!(scene.device(&volume.id), device);
    scene.publish(&volume, "pod");
    scene.remove_volume(&volume, &[&scene.target("pod", "pv")]);
}
