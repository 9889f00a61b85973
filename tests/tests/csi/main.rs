//! Tests of `crust-csi` through its socket: the requirements of the Container Storage Interface, pods that use its
//! volumes, and crashes.

mod block;
mod capacity;
mod concurrent;
mod crashed;
mod create;
mod damaged;
mod data;
mod deferred;
mod delete;
mod deleted_first;
mod draft;
mod errors;
mod expand;
mod filesystems;
mod foreign_paths;
mod groups;
mod health;
mod identity;
mod inline;
mod list;
mod modes;
mod nfs;
mod process;
mod publish;
mod readers;
mod repeated;
mod required;
mod scene;
mod secrets;
mod stage;
mod stats;
mod storage_class;
mod target_paths;
mod unknown;
mod unpublish;
mod upgrade;
mod validate;

use std::fmt::Debug;
use std::path::Path;

use crust_proto::csi::v1::NodePublishVolumeRequest;
use runcrust_tests::Node;
use runcrust_tests::csi::CsiVolume;
use tonic::{Code, Status};

/// Asserts that a call failed with `code`, and returns its message.
#[track_caller]
fn expect_error<T: Debug>(call: Result<T, Status>, code: Code) -> String {
    let status = call.expect_err("the call fails");
    assert_eq!(status.code(), code, "{status}");
    status.message().to_owned()
}

/// Like [`expect_error`], for one of several cases: `what` is printed if the assertion fails.
#[track_caller]
fn expect_error_in<T: Debug>(call: Result<T, Status>, code: Code, what: &str) {
    let status = call.expect_err(what);
    assert_eq!(status.code(), code, "{what}: {status}");
    assert!(!status.message().is_empty(), "{what}: the message is empty");
}

/// Asserts that nothing is left of a volume on the node. `gc` removes the records of bundles first.
#[track_caller]
fn assert_nothing_left(node: &Node) {
    let _ = node.handler().crust(&["gc"]).success();
    node.assert_nothing_left();
}

/// `NodePublishVolume` with `defer_fs_ops`.
fn deferred_publish_request(volume: &CsiVolume, target: &Path) -> NodePublishVolumeRequest {
    NodePublishVolumeRequest {
        defer_fs_ops: true,
        ..volume.publish(target)
    }
}

/// `NodePublishVolume`, with `defer_fs_ops` or without.
fn publish_request(
    volume: &CsiVolume,
    target: &Path,
    is_deferred: bool,
) -> NodePublishVolumeRequest {
    if is_deferred {
        deferred_publish_request(volume, target)
    } else {
        volume.publish(target)
    }
}
