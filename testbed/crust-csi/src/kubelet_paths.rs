//! Paths that kubelet gives to a driver, by their form below kubelet's own directory.
//!
//! What stands at one of them is the volume's: it may be removed, or moved away.

use std::path::{Path, PathBuf};

use crust_state::TargetPath;

/// Below kubelet's directory: what a CSI driver's volumes have there.
const PLUGIN: &str = "plugins/kubernetes.io/csi";

/// Returns whether a path is the target path of a CSI volume in a pod's directory, not one below it.
pub(crate) fn is_target(path: &TargetPath) -> bool {
    let volume = path.csi_volume();
    volume.is_some_and(|volume| volume.directory() == path.as_path())
}

/// Returns kubelet's directory, if a path is one that kubelet gives to this driver.
pub(crate) fn directory<'p>(path: &'p TargetPath, driver: &str) -> Option<&'p Path> {
    if is_target(path) {
        // <kubelet>/pods/<uid>/volumes/kubernetes.io~csi/<pv>/mount
        return path.as_path().ancestors().nth(6);
    }
    of_a_block_target(path).or_else(|| of_a_staging_path(path, driver))
}

/// `<kubelet>/plugins/kubernetes.io/csi/volumeDevices/publish/<pv>/<pod's uid>`
fn of_a_block_target(path: &TargetPath) -> Option<&Path> {
    let publish = path.as_path().ancestors().nth(2)?;
    above(publish, &format!("{PLUGIN}/volumeDevices/publish"))
}

/// `<kubelet>/plugins/kubernetes.io/csi/<driver>/<digest>/globalmount`, before Kubernetes 1.24 `…/pv/<pv>/globalmount`;
/// of a block volume `…/volumeDevices/staging/<pv>`.
fn of_a_staging_path<'p>(path: &'p TargetPath, driver: &str) -> Option<&'p Path> {
    let path = path.as_path();
    if path.file_name().is_some_and(|name| name == "globalmount") {
        let volumes = path.ancestors().nth(2)?;
        return [driver, "pv"]
            .iter()
            .find_map(|name| above(volumes, &format!("{PLUGIN}/{name}")));
    }
    above(path.parent()?, &format!("{PLUGIN}/volumeDevices/staging"))
}

/// Returns the part of a path before `below`, if the path ends with that.
fn above<'p>(path: &'p Path, below: &str) -> Option<&'p Path> {
    let below = Path::new(below);
    let above = path.ancestors().nth(below.components().count())?;
    path.ends_with(below).then_some(above)
}

/// Returns the quarantine directory for files that are found at such a path: in kubelet's own directory of the driver,
/// which is on the same mount as its pods' directory.
pub(crate) fn default_quarantine(path: &TargetPath, driver: &str) -> Option<PathBuf> {
    let plugins = directory(path, driver)?.join("plugins").join(driver);
    Some(plugins.join("quarantine"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_kubelets_paths_is_known_and_no_other() {
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
