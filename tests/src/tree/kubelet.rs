//! A direct port of kubelet's fsGroup, with which the product's walk is compared. It shares no code with the product.

use std::fs::{self, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::Path;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// Change every entry.
    Always,
    /// Change every entry, unless the root is already right.
    OnRootMismatch,
}

/// `rwMask` in kubelet.
const READ_WRITE: u32 = 0o660;
/// `execMask` in kubelet.
const EXECUTE: u32 = 0o110;
const SETGID: u32 = 0o2000;

/// Does what kubelet's `SetVolumeOwnership` (`pkg/volume/volume_linux.go`) does for a writable volume. It works by
/// path, so nothing else may change the tree.
pub fn set_volume_ownership(root: &Path, group: u32, policy: Policy) {
    let skip = policy == Policy::OnRootMismatch && !requires_change(root, group);
    if !skip {
        walk_deep(root, &mut |path, info| change(path, info, group));
    }
}

/// `requiresPermissionChange` in kubelet.
fn requires_change(root: &Path, group: u32) -> bool {
    let info = lstat(root);
    let unix = READ_WRITE | EXECUTE;
    !info.is_dir() || info.gid() != group || info.mode() & unix != unix || info.mode() & SETGID == 0
}

/// `walkDeep` in kubelet: visits the contents of a directory, and then the directory with its earlier metadata.
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

/// `changeFilePermission` in kubelet.
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

/// Ignores an error as kubelet does. Here only an immutable entry and a read-only btrfs snapshot may cause one.
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
