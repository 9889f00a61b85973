//! `NodeGetVolumeStats`: the numbers of statvfs(2), for paths of the volume only.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use crust_proto::csi::v1::volume_usage::Unit;
use crust_proto::csi::v1::{NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, VolumeUsage};
use nix::sys::signal::Signal;
use nix::sys::statvfs::statvfs;
use runcrust_tests::csi::{CsiClient, block, filesystem};
use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::{Delegate, Run, fail_ext4};
use tonic::Code;

use crate::scene::{Scene, deferring_driver, write};
use crate::{deferred_publish_request, expect_error};

fn usage(stats: &NodeGetVolumeStatsResponse, unit: Unit) -> VolumeUsage {
    let matching: Vec<_> = stats
        .usage
        .iter()
        .filter(|usage| usage.unit() == unit)
        .collect();
    assert_eq!(matching.len(), 1, "{unit:?}: {stats:?}");
    let usage = *matching[0];
    assert!(
        usage.total > 0 && usage.used >= 0 && usage.available >= 0,
        "{usage:?}"
    );
    usage
}

fn to_i64(number: u64) -> i64 {
    i64::try_from(number).expect("a small number")
}

#[test]
fn the_numbers_are_those_of_the_file_system() {
    for fstype in ["ext4", "xfs"] {
        let (scene, volume) = Scene::with_staged(filesystem(fstype));
        let target = scene.publish(&volume, "pod");
        write(&target, "file", &"x".repeat(3 << 20));
        nix::unistd::syncfs(std::fs::File::open(&target).expect("the root directory"))
            .expect("syncfs");
        let stats = scene.call_ok(volume.stats(&target));
        let real = statvfs(&target).expect("statvfs");
        let bytes = usage(&stats, Unit::Bytes);
        let block = real.fragment_size();
        assert_eq!(bytes.total, to_i64(real.blocks() * block), "{fstype}");
        // The blocks that users other than root can use.
        assert_eq!(
            bytes.available,
            to_i64(real.blocks_available() * block),
            "{fstype}"
        );
        assert_eq!(
            bytes.used,
            to_i64((real.blocks() - real.blocks_free()) * block),
            "{fstype}"
        );
        let inodes = usage(&stats, Unit::Inodes);
        assert_eq!(inodes.total, to_i64(real.files()), "{fstype}");
        assert_eq!(
            inodes.used,
            to_i64(real.files() - real.files_free()),
            "{fstype}"
        );
        let condition = stats
            .volume_condition
            .expect("VOLUME_CONDITION requires volume_condition");
        assert!(
            !condition.abnormal && !condition.message.is_empty(),
            "{condition:?}"
        );
        scene.remove_volume(&volume, &[&target]);
    }
}

#[test]
fn without_the_capability_no_condition_is_reported() {
    let scene = Scene::with(&["--without", "VOLUME_CONDITION"]);
    let volume = scene.staged("pv", filesystem("ext4"));
    let target = scene.publish(&volume, "pod");
    let stats = scene.call_ok(volume.stats(&target));
    assert_eq!(stats.volume_condition, None);
    scene.remove_volume(&volume, &[&target]);
}

#[test]
fn a_block_volume_has_a_size() {
    let (scene, volume) = Scene::with_staged(block());
    let target = scene.publish(&volume, "pod");
    let stats = scene.call_ok(volume.stats(&target));
    assert_eq!(usage(&stats, Unit::Bytes).total, volume.capacity);
    scene.remove_volume(&volume, &[&target]);
}

#[test]
fn the_staging_path_has_statistics() {
    let (scene, volume) = Scene::with_staged(filesystem("ext4"));
    let stats = scene.call_ok(volume.stats(&volume.staging));
    assert_eq!(usage(&stats, Unit::Bytes).total, volume.capacity);
    scene.remove_volume(&volume, &[]);
}

#[test]
fn another_path_is_not_found() {
    let (scene, volume) = Scene::with_staged(filesystem("ext4"));
    let target = scene.publish(&volume, "pod");
    let elsewhere = scene.target("another", "pv");
    for path in [
        &elsewhere,
        Path::new("/some/random/path"),
        Path::new("/proc"),
    ] {
        let message = expect_error(scene.call(volume.stats(path)), Code::NotFound);
        assert!(message.contains(&volume.id), "{message}");
    }
    scene.call_ok(volume.unpublish(&target));
    expect_error(scene.call(volume.stats(&target)), Code::NotFound);
    scene.call_ok(volume.unstage());
    expect_error(scene.call(volume.stats(&volume.staging)), Code::NotFound);
    scene.remove_volume(&volume, &[]);
}

#[test]
fn the_path_of_another_volume_is_not_found() {
    let scene = Scene::new();
    let volume = scene.staged("pv-a", filesystem("ext4"));
    let other = scene.staged("pv-b", filesystem("ext4"));
    let (target, others) = (scene.target("pod", "pv-a"), scene.target("pod", "pv-b"));
    scene.call_ok(volume.publish(&target));
    scene.call_ok(other.publish(&others));
    expect_error(scene.call(volume.stats(&others)), Code::NotFound);
    scene.unpublish_and_unstage(&volume, &[&target]);
    scene.unpublish_and_unstage(&other, &[&others]);
}

#[test]
fn the_deferred_path_of_another_volume_is_not_found() {
    let (_node, _ops, csi) = deferring_driver(Delegate::Runc, &[]);
    let [one, other] = ["pv-1", "pv-2"].map(|name| csi.volume(name, filesystem("ext4")));
    let target = csi.target("pod", "pv-1");
    for volume in [&one, &other] {
        csi.call(volume.stage()).unwrap();
    }
    csi.call(deferred_publish_request(&one, &target)).unwrap();
    for defer_fs_ops in [false, true] {
        let stats = NodeGetVolumeStatsRequest {
            defer_fs_ops,
            ..other.stats(&target)
        };
        let error = expect_error(csi.call(stats), Code::NotFound);
        assert!(error.contains(&other.id), "{error}");
    }
}

#[test]
fn a_damaged_file_system_is_abnormal() {
    let (scene, volume) = Scene::with_staged(filesystem("ext4"));
    let target = scene.publish(&volume, "pod");
    fail_ext4(&scene.device(&volume.id));
    let stats = scene.call_ok(volume.stats(&target));
    let condition = stats
        .volume_condition
        .expect("VOLUME_CONDITION requires volume_condition");
    assert!(
        condition.abnormal && !condition.message.is_empty(),
        "{condition:?}"
    );
    scene.remove_volume(&volume, &[&target]);
}

/// All calls for an xfs that was shut down fail, even those that would show that it is mounted.
#[test]
fn a_shut_down_file_system_is_abnormal_and_can_be_unpublished() {
    for fstype in ["ext4", "xfs"] {
        let (scene, volume) = Scene::with_staged(filesystem(fstype));
        let target = scene.publish(&volume, "pod");
        let mut xfs_io = Command::new("xfs_io");
        let _ = Run::capture(xfs_io.args(["-x", "-c", "shutdown"]).arg(&target)).success();
        let stats = scene.call_ok(volume.stats(&target));
        let condition = stats
            .volume_condition
            .expect("VOLUME_CONDITION requires volume_condition");
        assert!(condition.abnormal, "{fstype}: {condition:?}");
        scene
            .call(volume.publish(&target))
            .expect("a repeated NodePublishVolume");
        expect_error(scene.call(volume.unstage()), Code::FailedPrecondition);
        scene.remove_volume(&volume, &[&target]);
    }
}

#[test]
fn a_truncated_image_is_abnormal() {
    let (scene, volume) = Scene::with_staged(filesystem("ext4"));
    let target = scene.publish(&volume, "pod");
    let image = File::options().write(true).open(scene.image(&volume.id));
    image.unwrap().set_len(4 << 20).unwrap();
    let stats = scene.call_ok(volume.stats(&target));
    let condition = stats
        .volume_condition
        .expect("VOLUME_CONDITION requires volume_condition");
    assert!(condition.abnormal, "{condition:?}");
    assert!(
        condition.message.contains("it was truncated"),
        "{condition:?}"
    );
    scene.unpublish_and_unstage(&volume, &[&target]);
}

/// kubelet calls for statistics every minute, also while a pod ends.
#[test]
fn statistics_do_not_delay_an_unpublish() {
    let (scene, volume) = Scene::with_staged(filesystem("ext4"));
    let target = scene.target("pod", "pv");
    for _ in 0..100 {
        scene.call(volume.publish(&target)).unwrap();
        let (_, unpublished) = scene.call_both(volume.stats(&target), volume.unpublish(&target));
        unpublished.expect("NodeUnpublishVolume");
    }
    scene.remove_volume(&volume, &[&target]);
}

/// csi-sanity sends relative paths.
#[test]
fn a_relative_path_is_not_found() {
    let (scene, volume) = Scene::with_staged(filesystem("ext4"));
    for id in [volume.id.clone(), "some-volume".to_owned()] {
        let mut stats = volume.stats(Path::new("some/path"));
        stats.volume_id.clone_from(&id);
        expect_error(scene.call(stats), Code::NotFound);
        let mut expand = volume.expand(Path::new("some/path"), 0);
        expand.volume_id = id;
        expect_error(scene.call(expand), Code::NotFound);
    }
}

/// At most one thread waits for an unresponsive `crust_ops`.
#[test]
fn a_hung_crust_ops_delays_one_volume_only() {
    let (_node, ops, csi) = deferring_driver(Delegate::Runc, &["--max-calls", "4"]);
    let [hung, other] = ["pv-1", "pv-2"].map(|name| csi.volume(name, filesystem("ext4")));
    let target = csi.target("pod", "pv-1");
    csi.call(hung.stage()).unwrap();
    csi.call(deferred_publish_request(&hung, &target)).unwrap();
    ops.suspend();
    let waited = std::thread::scope(|threads| {
        let (sender, receiver) = std::sync::mpsc::channel();
        // The first of the two calls waits.
        for _ in 0..2 {
            let sender = sender.clone();
            let (socket, stats) = (csi.socket(), hung.stats(&target));
            threads.spawn(move || sender.send(CsiClient::new(socket).call(stats)));
        }
        let second = receiver
            .recv_timeout(WAIT_TIMEOUT)
            .expect("the answer to the second call");
        expect_error(second, Code::Aborted);
        for _ in 0..8 {
            expect_error(csi.call(hung.stats(&target)), Code::Aborted);
        }
        csi.call(other.stage()).expect("a call for another volume");
        ops.signal(Signal::SIGCONT);
        receiver
            .recv_timeout(WAIT_TIMEOUT)
            .expect("the answer to the first call")
    });
    expect_error(waited, Code::FailedPrecondition);
}
