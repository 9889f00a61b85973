//! `crust-csi`, by its socket: what the Container Storage Interface demands of a plugin, what pods have of
//! its volumes, and what becomes of them when it is killed.

mod again;
mod block;
mod capacity;
mod concurrent;
mod crashed;
mod create;
mod damaged;
mod data;
mod deferred;
mod delete;
mod draft;
mod errors;
mod expand;
mod filesystems;
mod given_back;
mod groups;
mod health;
mod identity;
mod list;
mod modes;
mod older;
mod places;
mod process;
mod publish;
mod readers;
mod required;
mod scene;
mod secrets;
mod stage;
mod stats;
mod stock;
mod strange;
mod unknown;
mod unpublish;
mod validate;

use std::fmt::Debug;
use std::path::Path;

use crust_proto::csi::v1::NodePublishVolumeRequest;
use runcrust_tests::Node;
use runcrust_tests::csi::CsiVolume;
use tonic::{Code, Status};

/// Of a call that has to fail: what it says.
#[track_caller]
fn refused<T: Debug>(call: Result<T, Status>, code: Code) -> String {
    let status = call.expect_err("it should have failed");
    assert_eq!(status.code(), code, "{status}");
    status.message().to_owned()
}

/// The same, where what is asked for is told.
#[track_caller]
fn refused_as<T: Debug>(call: Result<T, Status>, code: Code, what: &str) {
    let status = call.expect_err(what);
    assert_eq!(status.code(), code, "{what}: {status}");
    assert!(!status.message().is_empty(), "{what}: it says nothing");
}

/// Nothing of a volume is left: containers' bundles are forgotten by `gc`.
#[track_caller]
fn assert_nothing_left(node: &Node) {
    let _ = node.handler().crust(&["gc"]).success();
    node.assert_nothing_left();
}

/// `NodePublishVolume` with `defer_fs_ops`.
fn deferring(volume: &CsiVolume, target: &Path) -> NodePublishVolumeRequest {
    NodePublishVolumeRequest {
        defer_fs_ops: true,
        ..volume.publish(target)
    }
}

/// `NodePublishVolume`, with `defer_fs_ops` or without.
fn publishing(volume: &CsiVolume, target: &Path, is_deferred: bool) -> NodePublishVolumeRequest {
    if is_deferred {
        deferring(volume, target)
    } else {
        volume.publish(target)
    }
}
