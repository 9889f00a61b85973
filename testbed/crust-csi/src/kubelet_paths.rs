//! The forms of the paths in kubelet's directory that kubelet gives to a driver.
//!
//! Anything at such a path belongs to the volume, and may be removed or moved away.

use std::path::{Path, PathBuf};

use crust_state::TargetPath;

/// The directory for the volumes of CSI drivers, in kubelet's directory.
const PLUGIN: &str = "plugins/kubernetes.io/csi";

/// Returns whether a path is exactly the target path of a CSI volume in a pod's directory.
pub(crate) fn is_target(path: &TargetPath) -> bool {
    let volume = path.csi_volume();
    volume.is_some_and(|volume| volume.directory() == path.as_path())
}

/// Returns kubelet's directory if the path has one of the forms that kubelet gives to this driver.
pub(crate) fn directory<'p>(path: &'p TargetPath, driver: &str) -> Option<&'p Path> {
    if is_target(path) {
        // <kubelet>/pods/<uid>/volumes/kubernetes.io~csi/<pv>/mount
        return path.as_path().ancestors().nth(6);
    }
    directory_of_block_target(path).or_else(|| directory_of_staging_path(path, driver))
}

/// Matches `<kubelet>/plugins/kubernetes.io/csi/volumeDevices/publish/<pv>/<pod's uid>`.
fn directory_of_block_target(path: &TargetPath) -> Option<&Path> {
    let publish = path.as_path().ancestors().nth(2)?;
    above(publish, &format!("{PLUGIN}/volumeDevices/publish"))
}

/// Matches `<kubelet>/plugins/kubernetes.io/csi/<driver>/<digest>/globalmount`, which was `…/pv/<pv>/globalmount`
/// before Kubernetes 1.24. For a block volume, matches `…/volumeDevices/staging/<pv>`.
fn directory_of_staging_path<'p>(path: &'p TargetPath, driver: &str) -> Option<&'p Path> {
    let path = path.as_path();
    if path.file_name().is_some_and(|name| name == "globalmount") {
        let volumes = path.ancestors().nth(2)?;
        return [driver, "pv"]
            .iter()
            .find_map(|name| above(volumes, &format!("{PLUGIN}/{name}")));
    }
    above(path.parent()?, &format!("{PLUGIN}/volumeDevices/staging"))
}

/// Returns the part of the path before `below` if the path ends with `below`.
fn above<'p>(path: &'p Path, below: &str) -> Option<&'p Path> {
    let below = Path::new(below);
    let above = path.ancestors().nth(below.components().count())?;
    path.ends_with(below).then_some(above)
}

/// Returns the default quarantine directory for files at a path: `plugins/<driver>/quarantine` in kubelet's directory,
/// which is on the same mount as the pods' directories. `None` if kubelet doesn't use paths of this form.
pub(crate) fn default_quarantine(path: &TargetPath, driver: &str) -> Option<PathBuf> {
    let plugins = directory(path, driver)?.join("plugins").join(driver);
    Some(plugins.join("quarantine"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_kubelets_paths_are_recognized() {
        let cases = [
            ("/k/pods/u/volumes/kubernetes.io~csi/pv/mount", true),
            (
                "/k/plugins/kubernetes.io/csi/volumeDevices/publish/pv/u",
                true,
            ),
            ("/k/plugins/kubernetes.io/csi/ours/0123/globalmount", true),
            ("/k/plugins/kubernetes.io/csi/pv/pv-1/globalmount", true),
            (
                "/k/plugins/kubernetes.io/csi/volumeDevices/staging/pv",
                true,
            ),
            ("/k/pods/u/volumes/kubernetes.io~csi/pv/mount/sub", false),
            ("/k/pods/u/volumes/kubernetes.io~csi/pv", false),
            (
                "/k/plugins/kubernetes.io/csi/theirs/0123/globalmount",
                false,
            ),
            ("/k/plugins/kubernetes.io/csi/ours/0123", false),
            (
                "/k/plugins/kubernetes.io/csi/volumeDevices/publish/pv",
                false,
            ),
            ("/globalmount", false),
            ("/k", false),
        ];
        for (path, is_known) in cases {
            let target = TargetPath::new(path).unwrap();
            let expected = is_known.then_some(Path::new("/k"));
            assert_eq!(directory(&target, "ours"), expected, "{path}");
        }
    }
}
