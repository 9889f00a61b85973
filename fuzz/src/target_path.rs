//! The target for target paths: whoever writes and whoever reads the crust directory derives the same entry name from a
//! path.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use crust_state::{Digest, TargetPath};

/// Parses a path from a CSI driver or an OCI config.
pub fn target_path(bytes: &[u8]) {
    let given = Path::new(OsStr::from_bytes(bytes));
    let Ok(target) = TargetPath::new(given) else {
        let is_plain = |part| matches!(part, Component::Normal(_) | Component::RootDir);
        let is_valid = given.is_absolute()
            && given.file_name().is_some()
            && given.components().all(is_plain)
            && !bytes.contains(&0);
        assert!(!is_valid, "{}", given.display());
        return;
    };
    // std compares paths without repeated slashes, `.` components and a trailing slash.
    assert!(given.components().eq(target.as_path().components()));
    let normalized = target.as_path().as_os_str();
    assert_eq!(TargetPath::new(normalized).as_ref(), Ok(&target));
    let digest = target.digest();
    assert_eq!(digest, Digest::compute(normalized.as_bytes()));
    let name = digest.to_string();
    assert_eq!(name.parse::<Digest>().expect("a digest"), digest);
    assert!(name.starts_with(&digest.short()));
    check_ancestors(&target);
    check_kubelet_names(&target);
}

fn check_ancestors(target: &TargetPath) {
    let mut all = target.ancestors().peekable();
    assert_eq!(all.peek().map(|(first, _)| first), Some(target));
    for (ancestor, rest) in all {
        let whole = ancestor.as_path().join(rest);
        assert!(whole.components().eq(target.as_path().components()));
    }
}

/// Checks the names that kubelet's layout gives to the path: volume, pod and subPath bind.
fn check_kubelet_names(target: &TargetPath) {
    if let Some(volume) = target.csi_volume() {
        let directory = volume.directory();
        assert!(target.as_path().starts_with(directory));
        let directory_target = TargetPath::new(directory).expect("a prefix of a target path");
        let same_volume = directory_target.csi_volume().expect("the same volume");
        assert_eq!(
            (same_volume.name, same_volume.directory()),
            (volume.name, directory)
        );
        assert_eq!(directory_target.volume_name(), target.volume_name());
    }
    if let Some(uid) = target.pod_uid() {
        assert!(!uid.is_empty() && !uid.as_bytes().contains(&b'/'));
    }
    if let Some(bind) = target.subpath_bind() {
        let volume_target = bind.target();
        assert_eq!(
            TargetPath::new(volume_target.as_path()).as_ref(),
            Ok(&volume_target)
        );
        let volume = volume_target.csi_volume().expect("a CSI volume");
        assert!(volume_target.as_path().starts_with(bind.csi_directory()));
        assert_eq!(
            volume_target.as_path().parent().and_then(Path::file_name),
            Some(bind.volume())
        );
        assert!(!volume.name.is_empty());
    }
}
