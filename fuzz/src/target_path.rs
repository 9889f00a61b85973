//! Target paths: writer and reader of the crust directory come to one name for one path.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use crust_state::{Digest, TargetPath};

/// A path, as a CSI driver or an OCI config has it.
pub fn target_path(bytes: &[u8]) {
    let given = Path::new(OsStr::from_bytes(bytes));
    let Ok(target) = TargetPath::new(given) else {
        let plain = |part| matches!(part, Component::Normal(_) | Component::RootDir);
        let could_be = given.is_absolute()
            && given.file_name().is_some()
            && given.components().all(plain)
            && !bytes.contains(&0);
        assert!(!could_be, "{}", given.display());
        return;
    };
    // std's notion of the same path: repeated slashes, dots and a slash at the end don't count.
    assert!(given.components().eq(target.as_path().components()));
    let own = target.as_path().as_os_str();
    assert_eq!(TargetPath::new(own).as_ref(), Ok(&target), "normal already");
    let digest = target.digest();
    assert_eq!(digest, Digest::of(own.as_bytes()));
    let name = digest.to_string();
    assert_eq!(name.parse::<Digest>().expect("its own name"), digest);
    assert!(name.starts_with(&digest.short()));
    ancestors(&target);
    names(&target);
}

fn ancestors(target: &TargetPath) {
    let mut all = target.ancestors().peekable();
    assert_eq!(all.peek().map(|(first, _)| first), Some(target));
    for (ancestor, rest) in all {
        let whole = ancestor.as_path().join(rest);
        assert!(whole.components().eq(target.as_path().components()));
    }
}

/// What kubelet's names in it say.
fn names(target: &TargetPath) {
    if let Some(volume) = target.csi_volume() {
        let directory = volume.directory();
        assert!(target.as_path().starts_with(directory));
        let own = TargetPath::new(directory).expect("a part of it");
        let again = own.csi_volume().expect("what it was found by");
        assert_eq!((again.name, again.directory()), (volume.name, directory));
        assert_eq!(own.volume_name(), target.volume_name());
    }
    if let Some(uid) = target.pod_uid() {
        assert!(!uid.is_empty() && !uid.as_bytes().contains(&b'/'));
    }
    if let Some(bind) = target.subpath_bind() {
        let named = bind.target();
        assert_eq!(TargetPath::new(named.as_path()).as_ref(), Ok(&named));
        let volume = named.csi_volume().expect("a CSI volume's");
        assert!(named.as_path().starts_with(bind.csi_directory()));
        assert_eq!(
            named.as_path().parent().and_then(Path::file_name),
            Some(bind.volume())
        );
        assert!(!volume.name.is_empty());
    }
}
