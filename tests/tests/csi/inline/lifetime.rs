//! An inline volume exists from its publish to its unpublish, also if the driver or the node is restarted in between.

use std::path::{Path, PathBuf};

use crust_proto::csi::v1::{GetCapacityRequest, ListVolumesRequest, NodePublishVolumeRequest};
use runcrust_tests::POD;
use runcrust_tests::csi::{CsiVolume, create_request, filesystem, mount_of};
use runcrust_tests::host::mounts_below;
use tonic::Code;

use super::{DEFER, inline_volume};
use crate::expect_error;
use crate::scene::{Scene, read, write};

const MIB: i64 = 1 << 20;

#[track_caller]
fn assert_mounted_once(target: &Path) {
    assert_eq!(mounts_below(target), [target]);
}

#[track_caller]
fn assert_nothing_left(scene: &Scene) {
    assert_eq!(scene.leftovers(), Vec::<PathBuf>::new());
}

#[test]
fn a_volume_has_the_requested_file_system_and_size() {
    let scene = Scene::new();
    for (fstype, size, expected) in [
        ("", "64Mi", 64 * MIB),
        ("ext4", "5000k", 5 * MIB),
        ("ext3", "1", 2 * MIB),
        ("xfs", "1Mi", 300 * MIB),
        ("btrfs", "200Mi", 200 * MIB),
        ("ext4", "", 1024 * MIB),
    ] {
        let attributes = [("crust.dev/size", size)];
        let attributes = if size.is_empty() {
            &[][..]
        } else {
            &attributes
        };
        let volume = CsiVolume::inline(POD, "scratch", filesystem(fstype), attributes);
        let target = scene.target(POD, "scratch");
        scene.call_ok(volume.publish(&target));
        assert_mounted_once(&target);
        let image = scene.image(&volume.id).metadata().expect("an image");
        assert_eq!(i64::try_from(image.len()), Ok(expected), "{fstype} {size}");
        let mounts = std::fs::read_to_string("/proc/self/mounts").expect("a mount table");
        let path = target.to_str().expect("UTF-8");
        let mount = mounts.lines().find(|line| line.contains(path));
        let fstype = if fstype.is_empty() { "ext4" } else { fstype };
        let mount = mount.unwrap_or_else(|| panic!("{path}: {mounts}"));
        assert!(mount.contains(&format!(" {fstype} ")), "{mount}");
        scene.call_ok(volume.unpublish(&target));
        assert_nothing_left(&scene);
    }
}

#[test]
fn a_repeated_publish_changes_nothing() {
    let scene = Scene::new();
    let volume = inline_volume("scratch");
    let target = scene.target(POD, "scratch");
    scene.call_ok(volume.publish(&target));
    write(&target, "file", "data");
    let device = scene.device(&volume.id);
    for restart in [false, true, true] {
        if restart {
            scene.restart(&[]);
        }
        scene.call_ok(volume.publish(&target));
        assert_mounted_once(&target);
        assert_eq!(read(&target, "file"), "data");
        assert_eq!(scene.device(&volume.id), device);
        assert!(!scene.call_ok(volume.stats(&target)).usage.is_empty());
        let health = scene.call_ok(volume.health(&target)).volume_health;
        assert_eq!(health.expect("the health").health_statuses, []);
    }
    scene.call_ok(volume.unpublish(&target));
    scene.call_ok(volume.unpublish(&target));
    assert!(!target.exists());
    assert_nothing_left(&scene);
}

#[test]
fn a_volume_keeps_its_data_until_its_pod_ends() {
    let scene = Scene::new();
    let volume = inline_volume("scratch");
    let target = scene.target(POD, "scratch");
    scene.call_ok(volume.publish(&target));
    write(&target, "file", "data");
    scene.simulate_reboot();
    scene.spawn(scene.command(&[]));
    // Something in the way of the mount is a certain failure. A used volume is kept nevertheless.
    let other = scene.staged("pv", filesystem("ext4"));
    scene.call_ok(other.publish(&target));
    expect_error(
        scene.call(volume.publish(&target)),
        Code::FailedPrecondition,
    );
    scene.unpublish_and_unstage(&other, &[&target]);
    scene.call_ok(other.delete());
    scene.call_ok(volume.publish(&target));
    assert_eq!(read(&target, "file"), "data");
    scene.simulate_reboot();
    scene.spawn(scene.command(&[]));
    scene.call_ok(volume.unpublish(&target));
    assert_nothing_left(&scene);
    scene.call_ok(volume.publish(&target));
    assert!(!target.join("file").exists(), "a new volume");
    scene.call_ok(volume.unpublish(&target));
    assert_nothing_left(&scene);
}

/// By KEP-2857's earlier draft, the runtime mounts what the driver names. Only the record shows the publication.
#[test]
fn a_volume_can_be_left_to_kubelets_runtime() {
    let scene = Scene::new();
    let volume = inline_volume("scratch");
    let target = scene.target(POD, "scratch");
    let request = NodePublishVolumeRequest {
        runtime_supported_filesystems: vec!["ext4".to_owned()],
        ..volume.publish(&target)
    };
    for _ in 0..2 {
        let info = scene.call_ok(request.clone()).runtime_mount_info;
        let source = info.expect("runtime_mount_info").source;
        assert_eq!(Path::new(&source), scene.device(&volume.id));
        assert_eq!(mounts_below(&target), Vec::<PathBuf>::new());
        scene.restart(&[]);
    }
    scene.call_ok(volume.unpublish(&target));
    assert_nothing_left(&scene);
}

/// kubelet doesn't unpublish a volume whose publish has failed for certain.
#[test]
fn a_failed_publish_leaves_no_volume() {
    let scene = Scene::with_crust_ops();
    let other = scene.staged("pv", filesystem("ext4"));
    let target = scene.publish(&other, POD);
    let before = scene.leftovers();
    for attributes in [&[][..], &[DEFER]] {
        let volume = CsiVolume::inline(POD, "scratch", filesystem("ext4"), attributes);
        let error = expect_error(
            scene.call(volume.publish(&target)),
            Code::FailedPrecondition,
        );
        assert!(
            error.contains(&volume.id) && error.contains(&other.id),
            "{error}"
        );
        assert_eq!(scene.leftovers(), before);
    }
    scene.remove_volume(&other, &[&target]);
    // The kernel refuses the mount after the publication was recorded.
    let mut volume = inline_volume("scratch");
    mount_of(&mut volume.capability).mount_flags = vec!["no_such_option".to_owned()];
    let error = expect_error(
        scene.call(volume.publish(&target)),
        Code::FailedPrecondition,
    );
    assert!(error.contains("no_such_option"), "{error}");
    assert_nothing_left(&scene);
    assert!(!target.exists());
}

/// After an uncertain failure kubelet repeats the call, or unpublishes the volume.
#[test]
fn a_publish_with_an_uncertain_result_is_unpublished() {
    let scene = Scene::new();
    let volume = CsiVolume::inline(POD, "scratch", filesystem("ext4"), &[DEFER]);
    let target = scene.target(POD, "scratch");
    for _ in 0..2 {
        // No crust_ops is running.
        expect_error(scene.call(volume.publish(&target)), Code::Unavailable);
        assert_eq!(scene.devices(&volume.id).len(), 1);
    }
    scene.restart(&[]);
    assert!(scene.record(&volume.id).exists());
    scene.call_ok(volume.unpublish(&target));
    assert!(!target.exists());
    assert_nothing_left(&scene);
}

#[test]
fn inline_volumes_take_and_free_capacity() {
    let scene = Scene::with(&["--capacity", "104857600", "--inline-capacity", "67108864"]);
    let available = |scene: &Scene| {
        scene
            .call_ok(GetCapacityRequest::default())
            .available_capacity
    };
    let sized = |name: &str, size: &str| {
        CsiVolume::inline(POD, name, filesystem("ext4"), &[("crust.dev/size", size)])
    };
    let [first, second] = ["a", "b"].map(|name| scene.target(POD, name));
    let volume = sized("a", "40Mi");
    scene.call_ok(volume.publish(&first));
    assert_eq!(available(&scene), 60 * MIB);
    for (size, flag) in [
        ("25Mi", "--inline-capacity"),
        ("61Mi", "--capacity"),
        ("7Ei", "--capacity"),
    ] {
        let refused = scene.call(sized("b", size).publish(&second));
        let error = expect_error(refused, Code::ResourceExhausted);
        assert!(
            error.contains(&format!("or raise {flag}")),
            "{size}: {error}"
        );
    }
    let mut persistent = create_request("pv", filesystem("ext4"));
    let range = persistent.capacity_range.as_mut().expect("a range");
    range.required_bytes = 61 * MIB;
    expect_error(scene.call(persistent), Code::ResourceExhausted);
    let other = sized("b", "24Mi");
    scene.call_ok(other.publish(&second));
    scene.restart(&["--capacity", "104857600", "--inline-capacity", "67108864"]);
    assert_eq!(available(&scene), 36 * MIB);
    assert_eq!(scene.call_ok(ListVolumesRequest::default()).entries, []);
    scene.call_ok(volume.unpublish(&first));
    assert_eq!(available(&scene), 76 * MIB);
    scene.call_ok(other.unpublish(&second));
    assert_nothing_left(&scene);
}
