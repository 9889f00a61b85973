//! Each call, and what comes before it.

mod deferred;

use std::path::PathBuf;

use crust_proto::csi::v1::VolumeCapability;
use runcrust_tests::csi::{Call, CsiClient, CsiVolume, block, create_request, filesystem};
use tonic::Status;

use super::{Row, at_each_moment, nothing};
use crate::scene::Scene;

pub(super) fn ext4() -> VolumeCapability {
    filesystem("ext4")
}

pub(super) fn called<C: Call>(client: &CsiClient, call: C) -> Result<(), Status> {
    client.call(call).map(drop)
}

fn delete(scene: &Scene, volume: &CsiVolume, _: &PathBuf) {
    scene.call(volume.delete()).expect("DeleteVolume");
}

#[test]
fn creating() {
    at_each_moment(&Row {
        capability: ext4,
        before: delete,
        call: |client, _| called(client, create_request("pv", ext4())),
        has_data: false,
        after: nothing,
    });
}

#[test]
fn deleting() {
    at_each_moment(&Row {
        capability: ext4,
        before: |_, _, _| {},
        call: |client, life| called(client, life.volume.delete()),
        has_data: true,
        after: nothing,
    });
}

/// A staging that nothing uses goes with it.
#[test]
fn deleting_what_is_staged() {
    at_each_moment(&Row {
        capability: ext4,
        before: stage,
        call: |client, life| called(client, life.volume.delete()),
        has_data: true,
        after: nothing,
    });
}

fn staging_for_the_first_time(capability: fn() -> VolumeCapability) {
    at_each_moment(&Row {
        capability,
        before: |_, _, _| {},
        call: |client, life| called(client, life.volume.stage()),
        has_data: false,
        after: nothing,
    });
}

#[test]
fn staging_an_ext4_for_the_first_time() {
    staging_for_the_first_time(ext4);
}

#[test]
fn staging_an_xfs_for_the_first_time() {
    staging_for_the_first_time(|| filesystem("xfs"));
}

#[test]
fn staging_a_btrfs_for_the_first_time() {
    staging_for_the_first_time(|| filesystem("btrfs"));
}

#[test]
fn staging_a_block_volume() {
    staging_for_the_first_time(block);
}

#[test]
fn staging_what_holds_data() {
    at_each_moment(&Row {
        capability: ext4,
        before: |_, _, _| {},
        call: |client, life| called(client, life.volume.stage()),
        has_data: true,
        after: nothing,
    });
}

pub(super) fn stage(scene: &Scene, volume: &CsiVolume, _: &PathBuf) {
    scene.call(volume.stage()).expect("NodeStageVolume");
}

pub(super) fn publish(scene: &Scene, volume: &CsiVolume, target: &PathBuf) {
    stage(scene, volume, target);
    scene
        .call(volume.publish(target))
        .expect("NodePublishVolume");
}

#[test]
fn publishing() {
    at_each_moment(&Row {
        capability: ext4,
        before: stage,
        call: |client, life| called(client, life.volume.publish(&life.target)),
        has_data: true,
        after: nothing,
    });
}

#[test]
fn publishing_a_block_volume() {
    at_each_moment(&Row {
        capability: block,
        before: stage,
        call: |client, life| called(client, life.volume.publish(&life.target)),
        has_data: false,
        after: nothing,
    });
}

#[test]
fn unpublishing() {
    at_each_moment(&Row {
        capability: ext4,
        before: publish,
        call: |client, life| called(client, life.volume.unpublish(&life.target)),
        has_data: true,
        after: nothing,
    });
}

#[test]
fn unpublishing_a_block_volume() {
    at_each_moment(&Row {
        capability: block,
        before: publish,
        call: |client, life| called(client, life.volume.unpublish(&life.target)),
        has_data: false,
        after: |_, life| assert!(!life.target.exists()),
    });
}

#[test]
fn unstaging() {
    at_each_moment(&Row {
        capability: ext4,
        before: stage,
        call: |client, life| called(client, life.volume.unstage()),
        has_data: true,
        after: nothing,
    });
}

#[test]
fn growing() {
    at_each_moment(&Row {
        capability: ext4,
        before: publish,
        call: |client, life| called(client, life.volume.grow(life.volume.capacity * 2)),
        has_data: true,
        after: nothing,
    });
}

#[test]
fn growing_on_the_node() {
    at_each_moment(&Row {
        // Which grows everywhere.
        capability: || filesystem("xfs"),
        before: |scene, volume, target| {
            publish(scene, volume, target);
            scene
                .call(volume.grow(volume.capacity * 2))
                .expect("ControllerExpandVolume");
        },
        call: |client, life| {
            let expand = life.volume.expand(&life.target, life.volume.capacity * 2);
            called(client, expand)
        },
        has_data: true,
        after: nothing,
    });
}
