//! `NodeGetVolumeStats`: what statvfs(2) says, where the volume is, and nowhere else.

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

use crate::scene::{Scene, deferral, write};
use crate::{deferring, refused};

fn usage(stats: &NodeGetVolumeStatsResponse, unit: Unit) -> VolumeUsage {
    let of_it: Vec<_> = stats
        .usage
        .iter()
        .filter(|usage| usage.unit() == unit)
        .collect();
    assert_eq!(of_it.len(), 1, "{unit:?}: {stats:?}");
    let usage = *of_it[0];
    assert!(
        usage.total > 0 && usage.used >= 0 && usage.available >= 0,
        "{usage:?}"
    );
    usage
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).expect("it is small")
}

#[test]
fn numbers_are_the_file_systems() {
    for fstype in ["ext4", "xfs"] {
        let (scene, volume) = Scene::with_staged(filesystem(fstype));
        let target = scene.publish(&volume, "pod");
        write(&target, "file", &"x".repeat(3 << 20));
        nix::unistd::syncfs(std::fs::File::open(&target).expect("its root")).expect("syncfs");
        let stats = scene.call_ok(volume.stats(&target));
        let real = statvfs(&target).expect("statvfs");
        let bytes = usage(&stats, Unit::Bytes);
        let block = real.fragment_size();
        assert_eq!(bytes.total, signed(real.blocks() * block), "{fstype}");
        // What others than root can use.
        assert_eq!(
            bytes.available,
            signed(real.blocks_available() * block),
            "{fstype}"
        );
        assert_eq!(
            bytes.used,
            signed((real.blocks() - real.blocks_free()) * block),
            "{fstype}"
        );
        let inodes = usage(&stats, Unit::Inodes);
        assert_eq!(inodes.total, signed(real.files()), "{fstype}");
        assert_eq!(
            inodes.used,
            signed(real.files() - real.files_free()),
            "{fstype}"
        );
        let condition = stats
            .volume_condition
            .expect("VOLUME_CONDITION: it MUST be there");
        assert!(
            !condition.abnormal && !condition.message.is_empty(),
            "{condition:?}"
        );
        scene.put_away(&volume, &[&target]);
    }
}

#[test]
fn the_condition_is_told_where_the_capability_is() {
    let scene = Scene::with(&["--without", "VOLUME_CONDITION"]);
    let volume = scene.staged("pv", filesystem("ext4"));
    let target = scene.publish(&volume, "pod");
    let stats = scene.call_ok(volume.stats(&target));
    assert_eq!(stats.volume_condition, None);
    scene.put_away(&volume, &[&target]);
}

#[test]
fn a_block_volume_has_a_size() {
    let (scene, volume) = Scene::with_staged(block());
    let target = scene.publish(&volume, "pod");
    let stats = scene.call_ok(volume.stats(&target));
    assert_eq!(usage(&stats, Unit::Bytes).total, volume.capacity);
    scene.put_away(&volume, &[&target]);
}

#[test]
fn the_staging_path_is_one_too() {
    let (scene, volume) = Scene::with_staged(filesystem("ext4"));
    let stats = scene.call_ok(volume.stats(&volume.staging));
    assert_eq!(usage(&stats, Unit::Bytes).total, volume.capacity);
    scene.put_away(&volume, &[]);
}

#[test]
fn where_it_is_not_it_is_not_found() {
    let (scene, volume) = Scene::with_staged(filesystem("ext4"));
    let target = scene.publish(&volume, "pod");
    let elsewhere = scene.target("another", "pv");
    for path in [
        &elsewhere,
        Path::new("/some/random/path"),
        Path::new("/proc"),
    ] {
        let message = refused(scene.call(volume.stats(path)), Code::NotFound);
        assert!(message.contains(&volume.id), "{message}");
    }
    scene.call_ok(volume.unpublish(&target));
    refused(scene.call(volume.stats(&target)), Code::NotFound);
    scene.call_ok(volume.unstage());
    refused(scene.call(volume.stats(&volume.staging)), Code::NotFound);
    scene.put_away(&volume, &[]);
}

#[test]
fn another_volumes_path_is_not_its_own() {
    let scene = Scene::new();
    let volume = scene.staged("pv-a", filesystem("ext4"));
    let other = scene.staged("pv-b", filesystem("ext4"));
    let (target, others) = (scene.target("pod", "pv-a"), scene.target("pod", "pv-b"));
    scene.call_ok(volume.publish(&target));
    scene.call_ok(other.publish(&others));
    refused(scene.call(volume.stats(&others)), Code::NotFound);
    scene.take_back(&volume, &[&target]);
    scene.take_back(&other, &[&others]);
}

#[test]
fn another_volumes_deferred_path_is_not_its_own() {
    let (_node, _ops, csi) = deferral(Delegate::Runc, &[]);
    let [one, other] = ["pv-1", "pv-2"].map(|name| csi.volume(name, filesystem("ext4")));
    let target = csi.target("pod", "pv-1");
    for volume in [&one, &other] {
        csi.call(volume.stage()).unwrap();
    }
    csi.call(deferring(&one, &target)).unwrap();
    for defer_fs_ops in [false, true] {
        let stats = NodeGetVolumeStatsRequest {
            defer_fs_ops,
            ..other.stats(&target)
        };
        let error = refused(csi.call(stats), Code::NotFound);
        assert!(error.contains(&other.id), "{error}");
    }
}

#[test]
fn a_file_system_that_is_broken_is_abnormal() {
    let (scene, volume) = Scene::with_staged(filesystem("ext4"));
    let target = scene.publish(&volume, "pod");
    fail_ext4(&scene.device(&volume.id));
    let stats = scene.call_ok(volume.stats(&target));
    let condition = stats
        .volume_condition
        .expect("VOLUME_CONDITION: it MUST be there");
    assert!(
        condition.abnormal && !condition.message.is_empty(),
        "{condition:?}"
    );
    scene.put_away(&volume, &[&target]);
}

/// An xfs that was shut down says nothing of itself, not even that it is mounted.
#[test]
fn a_shut_down_file_system_is_abnormal_and_can_be_unpublished() {
    for fstype in ["ext4", "xfs"] {
        let (scene, volume) = Scene::with_staged(filesystem(fstype));
        let target = scene.publish(&volume, "pod");
        let mut xfs_io = Command::new("xfs_io");
        let _ = Run::of(xfs_io.args(["-x", "-c", "shutdown"]).arg(&target)).success();
        let stats = scene.call_ok(volume.stats(&target));
        let condition = stats.volume_condition.expect("it MUST be there");
        assert!(condition.abnormal, "{fstype}: {condition:?}");
        scene
            .call(volume.publish(&target))
            .expect("NodePublishVolume, again");
        refused(scene.call(volume.unstage()), Code::FailedPrecondition);
        scene.put_away(&volume, &[&target]);
    }
}

#[test]
fn an_image_that_was_cut_is_abnormal() {
    let (scene, volume) = Scene::with_staged(filesystem("ext4"));
    let target = scene.publish(&volume, "pod");
    let image = File::options().write(true).open(scene.image(&volume.id));
    image.unwrap().set_len(4 << 20).unwrap();
    let stats = scene.call_ok(volume.stats(&target));
    let condition = stats.volume_condition.expect("it MUST be there");
    assert!(condition.abnormal, "{condition:?}");
    assert!(condition.message.contains("it was cut"), "{condition:?}");
    scene.take_back(&volume, &[&target]);
}

/// kubelet asks every minute, whatever else it does.
#[test]
fn who_asks_holds_up_no_pods_end() {
    let (scene, volume) = Scene::with_staged(filesystem("ext4"));
    let target = scene.target("pod", "pv");
    for _ in 0..100 {
        scene.call(volume.publish(&target)).unwrap();
        let (_, unpublished) = scene.call_both(volume.stats(&target), volume.unpublish(&target));
        unpublished.expect("NodeUnpublishVolume");
    }
    scene.put_away(&volume, &[&target]);
}

/// As csi-sanity asks.
#[test]
fn a_path_that_can_be_none_is_not_found() {
    let (scene, volume) = Scene::with_staged(filesystem("ext4"));
    for id in [volume.id.clone(), "some-volume".to_owned()] {
        let mut stats = volume.stats(Path::new("some/path"));
        stats.volume_id.clone_from(&id);
        refused(scene.call(stats), Code::NotFound);
        let mut expand = volume.expand(Path::new("some/path"), 0);
        expand.volume_id = id;
        refused(scene.call(expand), Code::NotFound);
    }
}

/// One thread waits for it, however often it is asked.
#[test]
fn whoever_does_not_answer_holds_up_one_volumes_stats() {
    let (_node, ops, csi) = deferral(Delegate::Runc, &["--max-calls", "4"]);
    let [hung, other] = ["pv-1", "pv-2"].map(|name| csi.volume(name, filesystem("ext4")));
    let target = csi.target("pod", "pv-1");
    csi.call(hung.stage()).unwrap();
    csi.call(deferring(&hung, &target)).unwrap();
    ops.signal(Signal::SIGSTOP);
    let waited = std::thread::scope(|threads| {
        let (tell, told) = std::sync::mpsc::channel();
        // Whichever of the two is first waits.
        for _ in 0..2 {
            let tell = tell.clone();
            let (socket, stats) = (csi.socket(), hung.stats(&target));
            threads.spawn(move || tell.send(CsiClient::of(socket).call(stats)));
        }
        let second = told
            .recv_timeout(WAIT_TIMEOUT)
            .expect("the second one's answer");
        refused(second, Code::Aborted);
        for _ in 0..8 {
            refused(csi.call(hung.stats(&target)), Code::Aborted);
        }
        csi.call(other.stage()).expect("another volume's call");
        ops.signal(Signal::SIGCONT);
        told.recv_timeout(WAIT_TIMEOUT)
            .expect("the first one's answer")
    });
    refused(waited, Code::FailedPrecondition);
}
