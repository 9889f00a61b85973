//! Tests of `crust_ops` through its sockets, with a generated client.

mod admission;
mod budgets;
mod check;
mod cli;
mod conflicts;
mod connections;
mod container;
mod crash;
mod daemon;
mod expand;
mod index;
mod invalid;
mod life;
mod limits;
mod listen;
mod log;
mod metrics;
mod race;
mod reconcile;
mod reflection;
mod storage;
mod traces;
mod units;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use runcrust_tests::Node;
use serde_json::Value;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

/// Asserts that a call failed with `code`, and returns its message.
#[track_caller]
fn expect_error<T: std::fmt::Debug>(call: Result<T, Status>, code: Code) -> String {
    let status = call.expect_err("the call fails");
    assert_eq!(status.code(), code, "{status}");
    status.message().to_owned()
}

/// Returns the reason in the `google.rpc.ErrorInfo` of a failed call.
#[track_caller]
fn reason<T: std::fmt::Debug>(call: &Result<T, Status>) -> String {
    let status = call.as_ref().expect_err("the call fails");
    let info = status.get_details_error_info().expect("an ErrorInfo");
    assert_eq!(info.domain, "crust.dev", "{status}");
    info.reason
}

/// Returns the `mountInfo.json` that is staged for a target path.
fn mount_info(node: &Node, target: &Path) -> Option<Value> {
    let bytes = fs::read(node.entry(target).join("mountInfo.json")).ok()?;
    Some(serde_json::from_slice(&bytes).expect("JSON"))
}

/// Returns the path, the inode and the change time of each file of an entry.
fn file_identities(entry: &Path) -> Vec<(PathBuf, u64, i64, i64)> {
    let files = fs::read_dir(entry).expect("an entry");
    let mut paths: Vec<PathBuf> = files.map(|file| file.expect("a file").path()).collect();
    paths.push(entry.to_owned());
    paths.sort();
    let identity = |path: PathBuf| {
        let stat = fs::symlink_metadata(&path).expect("stat");
        (path, stat.ino(), stat.ctime(), stat.ctime_nsec())
    };
    paths.into_iter().map(identity).collect()
}
