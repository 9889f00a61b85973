//! `NodePublishVolume`: the specification's table of repeated calls, and the access that a pod gets.

use std::fs;
use std::path::{Path, PathBuf};

use crust_proto::csi::v1::NodePublishVolumeRequest;
use crust_proto::csi::v1::volume_capability::access_mode::Mode;
use nix::errno::Errno;
use runcrust_tests::csi::{CsiVolume, filesystem, mount_of};
use runcrust_tests::host::mounts_below;
use tonic::Code;

use crate::scene::{Scene, read, write};
use crate::{expect_error, expect_error_in};

fn staged_with_mode(scene: &Scene, mode: Mode) -> CsiVolume {
    let mut capability = filesystem("ext4");
    capability
        .access_mode
        .as_mut()
        .expect("a mode")
        .set_mode(mode);
    scene.staged("pv", capability)
}

fn is_read_only(path: &Path) -> bool {
    match fs::write(path, "data") {
        Ok(()) => false,
        Err(error) => {
            assert_eq!(error.raw_os_error(), Some(Errno::EROFS as i32), "{error}");
            true
        }
    }
}

type Change = fn(&mut NodePublishVolumeRequest);

const OTHERS: [(&str, Change); 3] = [
    ("readonly", |it| it.readonly = true),
    ("another type", |it| {
        let capability = it.volume_capability.as_mut().expect("a capability");
        "xfs".clone_into(&mut mount_of(capability).fs_type);
    }),
    ("an option", |it| {
        let capability = it.volume_capability.as_mut().expect("a capability");
        mount_of(capability).mount_flags = vec!["noexec".to_owned()];
    }),
];

#[test]
fn a_volume_has_to_be_staged_first() {
    let (scene, volume) = Scene::with_volume(filesystem("ext4"));
    let target = scene.target("pod", "pv");
    let message = expect_error(
        scene.call(volume.publish(&target)),
        Code::FailedPrecondition,
    );
    assert!(message.contains("NodeStageVolume"), "{message}");
    scene.call_ok(volume.stage());
    let mut elsewhere = volume.publish(&target);
    elsewhere.staging_target_path.push_str("-of-another");
    expect_error(scene.call(elsewhere), Code::FailedPrecondition);
    assert!(!target.exists());
    scene.unpublish_and_unstage(&volume, &[]);
    expect_error(
        scene.call(volume.publish(&target)),
        Code::FailedPrecondition,
    );
    scene.remove_volume(&volume, &[]);
}

#[test]
fn a_repeated_publish_changes_nothing() {
    let scene = Scene::new();
    for readonly in [false, true] {
        let volume = scene.staged("pv", filesystem("ext4"));
        let target = scene.target("pod", "pv");
        let mut request = volume.publish(&target);
        request.readonly = readonly;
        scene.call_ok(request.clone());
        let mounts = mounts_below(&target);
        assert_eq!(mounts, [target.as_path()]);
        scene.call(request.clone()).expect("the repeated call");
        scene.restart(&[]);
        scene.call(request).expect("after a restart");
        assert_eq!(mounts_below(&target), mounts, "still one mount");
        scene.remove_volume(&volume, &[&target]);
    }
}

#[test]
fn other_arguments_for_the_same_target_are_refused() {
    let scene = Scene::new();
    for mode in [
        Mode::SingleNodeWriter,
        Mode::SingleNodeMultiWriter,
        Mode::SingleNodeSingleWriter,
    ] {
        let volume = staged_with_mode(&scene, mode);
        let target = scene.publish(&volume, "pod");
        for (what, change) in OTHERS {
            let mut request = volume.publish(&target);
            change(&mut request);
            expect_error_in(scene.call(request), Code::AlreadyExists, what);
        }
        assert!(!is_read_only(&target.join("file")));
        scene.remove_volume(&volume, &[&target]);
    }
}

/// Orchestrators without the newer modes send `SINGLE_NODE_WRITER` for a volume that several pods of a node may use
/// (KEP-2485).
#[test]
fn the_access_mode_decides_about_a_second_target() {
    let scene = Scene::new();
    let cases = [
        (Mode::SingleNodeMultiWriter, true),
        (Mode::SingleNodeWriter, true),
        (Mode::SingleNodeSingleWriter, false),
    ];
    for (mode, is_allowed) in cases {
        let volume = staged_with_mode(&scene, mode);
        let first = scene.publish(&volume, "pod-a");
        let second = scene.target("pod-b", "pv");
        let request = volume.publish(&second);
        if is_allowed {
            scene
                .call(request)
                .unwrap_or_else(|status| panic!("{mode:?}: {status}"));
            write(&first, "file", "data");
            assert_eq!(read(&second, "file"), "data", "{mode:?}");
            scene.remove_volume(&volume, &[&first, &second]);
        } else {
            let message = expect_error(scene.call(request.clone()), Code::FailedPrecondition);
            assert!(
                message.contains(first.to_str().expect("UTF-8")),
                "{message}"
            );
            scene.restart(&[]);
            expect_error(scene.call(request), Code::FailedPrecondition);
            scene.call_ok(volume.unpublish(&first));
            scene
                .call(volume.publish(&second))
                .expect("the first target is unpublished");
            scene.remove_volume(&volume, &[&second]);
        }
    }
}

#[test]
fn several_pods_may_read_what_one_writes() {
    let scene = Scene::new();
    let volume = staged_with_mode(&scene, Mode::SingleNodeMultiWriter);
    let writer = scene.publish(&volume, "writer");
    let reader = scene.target("reader", "pv");
    let mut request = volume.publish(&reader);
    request.readonly = true;
    scene.call(request).expect("P1 and P2 may differ");
    write(&writer, "file", "data");
    assert_eq!(read(&reader, "file"), "data");
    assert!(is_read_only(&reader.join("file")) && !is_read_only(&writer.join("file")));
    scene.call_ok(volume.unpublish(&writer));
    assert!(
        is_read_only(&reader.join("file")),
        "also without the writer"
    );
    scene.remove_volume(&volume, &[&reader]);
}

#[test]
fn either_way_to_ask_for_read_only_prevents_writes() {
    let scene = Scene::new();
    let volume = staged_with_mode(&scene, Mode::SingleNodeWriter);
    let target = scene.publish(&volume, "pod");
    write(&target, "file", "data");
    scene.unpublish_and_unstage(&volume, &[&target]);
    for mode in [Mode::SingleNodeReaderOnly, Mode::SingleNodeWriter] {
        let mut volume = volume.clone();
        volume
            .capability
            .access_mode
            .as_mut()
            .expect("a mode")
            .set_mode(mode);
        scene.call_ok(volume.stage());
        let mut request = volume.publish(&target);
        request.readonly = mode == Mode::SingleNodeWriter;
        scene
            .call(request)
            .unwrap_or_else(|status| panic!("{mode:?}: {status}"));
        assert_eq!(read(&target, "file"), "data");
        assert!(is_read_only(&target.join("new")), "{mode:?}");
        scene.unpublish_and_unstage(&volume, &[&target]);
    }
    scene.remove_volume(&volume, &[]);
}

#[test]
fn options_apply_to_the_mount() {
    let scene = Scene::new();
    let mut capability = filesystem("ext4");
    let flags = ["noexec", "nodev", "_netdev", "commit=30"];
    mount_of(&mut capability).mount_flags = flags.map(str::to_owned).to_vec();
    let volume = scene.staged("pv", capability);
    let target = scene.publish(&volume, "pod");
    let mounts = runcrust_tests::host::mounts();
    let mount = mounts
        .iter()
        .find(|mount| mount.point == target)
        .expect("the mount");
    for option in ["noexec", "nodev", "commit=30"] {
        assert!(mount.line.contains(option), "{option}: {}", mount.line);
    }
    scene.remove_volume(&volume, &[&target]);
}

#[test]
fn an_option_that_the_file_system_refuses_leaves_no_mount() {
    let scene = Scene::new();
    let mut capability = filesystem("ext4");
    mount_of(&mut capability).mount_flags = vec!["no-such-option".to_owned()];
    let volume = scene.volume("pv", capability);
    let target = scene.target("pod", "pv");
    let published = scene
        .call(volume.stage())
        .and_then(|_| scene.call(volume.publish(&target)));
    let status = published.expect_err("no file system has that option");
    assert!(status.message().contains(&volume.id), "{status}");
    assert_eq!(mounts_below(&target), Vec::<PathBuf>::new());
    scene.remove_volume(&volume, &[&target]);
}

#[test]
fn the_group_owns_the_volume_before_it_is_visible() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let scene = Scene::new();
    let mut capability = filesystem("ext4");
    mount_of(&mut capability).volume_mount_group = "4321".to_owned();
    let volume = scene.staged("pv", capability);
    let target = scene.publish(&volume, "pod");
    let root = fs::metadata(&target).expect("the root directory");
    assert_eq!(
        (root.gid(), root.permissions().mode() & 0o2070),
        (4321, 0o2070)
    );
    scene.remove_volume(&volume, &[&target]);
}

#[test]
fn a_foreign_mount_at_the_target_is_kept() {
    let (scene, volume) = Scene::with_staged(filesystem("ext4"));
    let target = scene.target("pod", "pv");
    fs::create_dir(&target).expect("mkdir");
    runcrust_tests::mounts::tmpfs(&target);
    write(&target, "theirs", "data");
    expect_error(
        scene.call(volume.publish(&target)),
        Code::FailedPrecondition,
    );
    assert_eq!(read(&target, "theirs"), "data");
    nix::mount::umount(&target).expect("umount");
    scene.call_ok(volume.publish(&target));
    scene.remove_volume(&volume, &[&target]);
}
