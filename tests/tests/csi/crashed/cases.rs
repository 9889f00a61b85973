//! The calls that the driver is killed in.

mod deferred;
mod inline;

use std::path::PathBuf;

use crust_proto::csi::v1::VolumeCapability;
use runcrust_tests::csi::{CsiClient, CsiRequest, CsiVolume, block, create_request, filesystem};
use tonic::Status;

use super::{CrashCase, kill_at_each_step};
use crate::scene::Scene;

pub(super) fn ext4() -> VolumeCapability {
    filesystem("ext4")
}

pub(super) fn call<C: CsiRequest>(client: &CsiClient, call: C) -> Result<(), Status> {
    client.call(call).map(drop)
}

fn delete(scene: &Scene, volume: &CsiVolume, _: &PathBuf) {
    scene.call_ok(volume.delete());
}

#[test]
fn a_killed_create_can_be_repeated() {
    kill_at_each_step(&CrashCase {
        has_data: false,
        ..CrashCase::new(delete, |client, _| {
            call(client, create_request("pv", ext4()))
        })
    });
}

#[test]
fn a_killed_delete_can_be_repeated() {
    kill_at_each_step(&CrashCase::new(
        |_, _, _| {},
        |client, volume_under_test| call(client, volume_under_test.volume.delete()),
    ));
}

/// Deleting a volume also removes its unused staging.
#[test]
fn a_killed_delete_of_a_staged_volume_can_be_repeated() {
    kill_at_each_step(&CrashCase::new(stage, |client, volume_under_test| {
        call(client, volume_under_test.volume.delete())
    }));
}

fn staging_for_the_first_time(capability: fn() -> VolumeCapability) {
    kill_at_each_step(&CrashCase {
        capability,
        has_data: false,
        ..CrashCase::new(
            |_, _, _| {},
            |client, volume_under_test| call(client, volume_under_test.volume.stage()),
        )
    });
}

#[test]
fn a_killed_first_stage_of_an_ext4_can_be_repeated() {
    staging_for_the_first_time(ext4);
}

#[test]
fn a_killed_first_stage_of_an_xfs_can_be_repeated() {
    staging_for_the_first_time(|| filesystem("xfs"));
}

#[test]
fn a_killed_first_stage_of_a_btrfs_can_be_repeated() {
    staging_for_the_first_time(|| filesystem("btrfs"));
}

#[test]
fn a_killed_stage_of_a_block_volume_can_be_repeated() {
    staging_for_the_first_time(block);
}

#[test]
fn a_killed_stage_of_a_volume_with_data_can_be_repeated() {
    kill_at_each_step(&CrashCase::new(
        |_, _, _| {},
        |client, volume_under_test| call(client, volume_under_test.volume.stage()),
    ));
}

pub(super) fn stage(scene: &Scene, volume: &CsiVolume, _: &PathBuf) {
    scene.call_ok(volume.stage());
}

pub(super) fn publish(scene: &Scene, volume: &CsiVolume, target: &PathBuf) {
    stage(scene, volume, target);
    scene.call_ok(volume.publish(target));
}

#[test]
fn a_killed_publish_can_be_repeated() {
    kill_at_each_step(&CrashCase::new(stage, |client, volume_under_test| {
        call(
            client,
            volume_under_test.volume.publish(&volume_under_test.target),
        )
    }));
}

#[test]
fn a_killed_publish_of_a_block_volume_can_be_repeated() {
    kill_at_each_step(&CrashCase {
        capability: block,
        has_data: false,
        ..CrashCase::new(stage, |client, volume_under_test| {
            call(
                client,
                volume_under_test.volume.publish(&volume_under_test.target),
            )
        })
    });
}

#[test]
fn a_killed_unpublish_can_be_repeated() {
    kill_at_each_step(&CrashCase::new(publish, |client, volume_under_test| {
        call(
            client,
            volume_under_test
                .volume
                .unpublish(&volume_under_test.target),
        )
    }));
}

#[test]
fn a_killed_unpublish_of_a_block_volume_can_be_repeated() {
    kill_at_each_step(&CrashCase {
        capability: block,
        has_data: false,
        after: |_, volume_under_test| assert!(!volume_under_test.target.exists()),
        ..CrashCase::new(publish, |client, volume_under_test| {
            call(
                client,
                volume_under_test
                    .volume
                    .unpublish(&volume_under_test.target),
            )
        })
    });
}

#[test]
fn a_killed_unstage_can_be_repeated() {
    kill_at_each_step(&CrashCase::new(stage, |client, volume_under_test| {
        call(client, volume_under_test.volume.unstage())
    }));
}

#[test]
fn a_killed_controller_expansion_can_be_repeated() {
    kill_at_each_step(&CrashCase::new(publish, |client, volume_under_test| {
        call(
            client,
            volume_under_test
                .volume
                .grow(volume_under_test.volume.capacity * 2),
        )
    }));
}

#[test]
fn a_killed_node_expansion_can_be_repeated() {
    kill_at_each_step(&CrashCase {
        // An xfs, because an ext4 only grows with CAP_SYS_RESOURCE.
        capability: || filesystem("xfs"),
        before: |scene, volume, target| {
            publish(scene, volume, target);
            scene.call_ok(volume.grow(volume.capacity * 2));
        },
        call: |client, volume_under_test| {
            let expand = volume_under_test.volume.expand(
                &volume_under_test.target,
                volume_under_test.volume.capacity * 2,
            );
            call(client, expand)
        },
        has_data: true,
        after: |_, _| {},
    });
}
