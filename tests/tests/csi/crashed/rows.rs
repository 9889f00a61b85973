//! Each call, and what comes before it.

mod deferred;

use std::path::PathBuf;

use crust_proto::csi::v1::VolumeCapability;
use runcrust_tests::csi::{Call, CsiClient, CsiVolume, block, create_request, filesystem};
use tonic::Status;

use super::{Row, at_each_moment};
use crate::scene::Scene;

pub(super) fn ext4() -> VolumeCapability {
    filesystem("ext4")
}

pub(super) fn called<C: Call>(client: &CsiClient, call: C) -> Result<(), Status> {
    client.call(call).map(drop)
}

fn delete(scene: &Scene, volume: &CsiVolume, _: &PathBuf) {
    scene.call_ok(volume.delete());
}

#[test]
fn creating() {
    at_each_moment(&Row {
        has_data: false,
        ..Row::of(delete, |client, _| {
            called(client, create_request("pv", ext4()))
        })
    });
}

#[test]
fn deleting() {
    at_each_moment(&Row::of(
        |_, _, _| {},
        |client, life| called(client, life.volume.delete()),
    ));
}

/// A staging that nothing uses goes with it.
#[test]
fn deleting_what_is_staged() {
    at_each_moment(&Row::of(stage, |client, life| {
        called(client, life.volume.delete())
    }));
}

fn staging_for_the_first_time(capability: fn() -> VolumeCapability) {
    at_each_moment(&Row {
        capability,
        has_data: false,
        ..Row::of(
            |_, _, _| {},
            |client, life| called(client, life.volume.stage()),
        )
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
    at_each_moment(&Row::of(
        |_, _, _| {},
        |client, life| called(client, life.volume.stage()),
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
fn publishing() {
    at_each_moment(&Row::of(stage, |client, life| {
        called(client, life.volume.publish(&life.target))
    }));
}

#[test]
fn publishing_a_block_volume() {
    at_each_moment(&Row {
        capability: block,
        has_data: false,
        ..Row::of(stage, |client, life| {
            called(client, life.volume.publish(&life.target))
        })
    });
}

#[test]
fn unpublishing() {
    at_each_moment(&Row::of(publish, |client, life| {
        called(client, life.volume.unpublish(&life.target))
    }));
}

#[test]
fn unpublishing_a_block_volume() {
    at_each_moment(&Row {
        capability: block,
        has_data: false,
        after: |_, life| assert!(!life.target.exists()),
        ..Row::of(publish, |client, life| {
            called(client, life.volume.unpublish(&life.target))
        })
    });
}

#[test]
fn unstaging() {
    at_each_moment(&Row::of(stage, |client, life| {
        called(client, life.volume.unstage())
    }));
}

#[test]
fn growing() {
    at_each_moment(&Row::of(publish, |client, life| {
        called(client, life.volume.grow(life.volume.capacity * 2))
    }));
}

#[test]
fn growing_on_the_node() {
    at_each_moment(&Row {
        // Which grows everywhere.
        capability: || filesystem("xfs"),
        before: |scene, volume, target| {
            publish(scene, volume, target);
            scene.call_ok(volume.grow(volume.capacity * 2));
        },
        call: |client, life| {
            let expand = life.volume.expand(&life.target, life.volume.capacity * 2);
            called(client, expand)
        },
        has_data: true,
        after: |_, _| {},
    });
}
