//! `ConfigMap` volumes as kubelet creates them.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

/// The directory with the current content. In kubelet each update creates another one.
const PRESENT: &str = "..2026_11_26_19_02_33.1234567890";

/// Creates the directory of a `ConfigMap` volume, with mode 0777 and a link for each key into the directory with the
/// current content (kubelet's `pkg/volume/util/atomic_writer.go`, in a volume like an `emptyDir`). An existing one is
/// not changed.
pub fn write_config_map(volume: &Path, files: &BTreeMap<String, String>) {
    let present = volume.join(PRESENT);
    if present.exists() {
        return;
    }
    fs::create_dir_all(&present).expect("a config map's directory");
    chmod(&present, 0o755);
    for (name, text) in files {
        let file = present.join(name);
        fs::write(&file, text).expect("a config map's file");
        chmod(&file, 0o644);
        symlink(Path::new("..data").join(name), volume.join(name)).expect("a config map's link");
    }
    symlink(PRESENT, volume.join("..data")).expect("a config map's link");
    chmod(volume, 0o777);
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("chmod");
}
