//! kubelet's fsGroup, as straightforward as it is there: the measure for the product's walk,
//! with which it shares nothing.

use std::fs::{self, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::Path;

/// `fsGroupChangePolicy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// Every entry, always.
    Always,
    /// Every entry, unless the root is right already.
    OnRootMismatch,
}

/// kubelet's `rwMask`.
const READ_WRITE: u32 = 0o660;
/// kubelet's `execMask`.
const EXECUTE: u32 = 0o110;
const SETGID: u32 = 0o2000;

/// kubelet's `SetVolumeOwnership` (`pkg/volume/volume_linux.go`) of a volume that is writable. By
/// paths: nobody else may have the tree meanwhile.
pub fn set_volume_ownership(root: &Path, group: u32, policy: Policy) {
    let skip = policy == Policy::OnRootMismatch && !requires_change(root, group);
    if !skip {
        walk_deep(root, &mut |path, info| change(path, info, group));
    }
}

/// `requiresPermissionChange`
fn requires_change(root: &Path, group: u32) -> bool {
    let info = lstat(root);
    let unix = READ_WRITE | EXECUTE;
    !info.is_dir() || info.gid() != group || info.mode() & unix != unix || info.mode() & SETGID == 0
}

/// `walkDeep`: what is in a directory, and then the directory as it was before.
fn walk_deep(path: &Path, walk: &mut impl FnMut(&Path, &Metadata)) {
    let info = lstat(path);
    if info.is_dir() {
        let entries = fs::read_dir(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        for name in names {
            walk_deep(&path.join(name), walk);
        }
    }
    walk(path, &info);
}

/// `changeFilePermission`
fn change(path: &Path, info: &Metadata, group: u32) {
    log_and_go_on(path, lchown(path, None, Some(group)));
    if info.is_symlink() {
        return;
    }
    let mut mask = READ_WRITE;
    if info.is_dir() {
        mask |= SETGID | EXECUTE;
    }
    let mode = info.mode() & 0o7777 | mask;
    log_and_go_on(
        path,
        fs::set_permissions(path, Permissions::from_mode(mode)),
    );
}

/// What kubelet does with any error. Here only an immutable entry and a read-only snapshot of a
/// btrfs may give one.
fn log_and_go_on(path: &Path, result: io::Result<()>) {
    use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    match result {
        Err(error) if !matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem) => {
            panic!("{path:?}: {error}")
        }
        _ => {}
    }
}

fn lstat(path: &Path) -> Metadata {
    fs::symlink_metadata(path).unwrap_or_else(|error| panic!("lstat {path:?}: {error}"))
}
