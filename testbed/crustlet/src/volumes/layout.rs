//! The paths below the root directory, which are kubelet's.

use std::path::{Path, PathBuf};

use crust_state::target::pod_csi_directory;
use sha2::{Digest, Sha256};

use super::spec::VolumeId;

/// In a volume's directory, beside what is mounted.
pub(crate) const DATA: &str = "vol_data.json";

/// A root directory, `/var/lib/kubelet` of kubelet's.
#[derive(Debug, Clone)]
pub(crate) struct Layout(PathBuf);

impl Layout {
    /// Returns the layout below a root directory.
    pub(crate) fn new(root: &Path) -> Self {
        Self(root.to_owned())
    }

    /// It.
    pub(crate) fn root(&self) -> &Path {
        &self.0
    }

    /// A directory for each pod.
    pub(crate) fn pods(&self) -> PathBuf {
        self.0.join("pods")
    }

    /// A pod's own, by its uid.
    pub(crate) fn pod(&self, uid: &str) -> PathBuf {
        self.pods().join(uid)
    }

    /// A directory for each CSI volume of a pod.
    pub(crate) fn csi_volumes(&self, uid: &str) -> PathBuf {
        pod_csi_directory(&self.0, uid)
    }

    /// A CSI volume's own in a pod.
    pub(crate) fn volume(&self, uid: &str, directory: &str) -> PathBuf {
        self.csi_volumes(uid).join(directory)
    }

    /// `target_path`
    pub(crate) fn target(&self, uid: &str, directory: &str) -> PathBuf {
        self.volume(uid, directory).join("mount")
    }

    /// A directory for each kind of volume of a pod.
    pub(crate) fn volumes(&self, uid: &str) -> PathBuf {
        self.pod(uid).join("volumes")
    }

    /// A directory for each `emptyDir` of a pod.
    pub(crate) fn empty_dirs(&self, uid: &str) -> PathBuf {
        self.volumes(uid).join("kubernetes.io~empty-dir")
    }

    /// Returns the directory in which subPaths are bound of volumes that aren't deferred.
    pub(crate) fn subpaths(&self, uid: &str) -> PathBuf {
        self.pod(uid).join("volume-subpaths")
    }

    /// A directory for each driver with staged volumes.
    pub(crate) fn drivers(&self) -> PathBuf {
        self.0.join("plugins/kubernetes.io/csi")
    }

    /// A staged volume's own directory, by kubelet's rule since 1.24.
    pub(crate) fn staged(&self, volume: &VolumeId) -> PathBuf {
        let digest = hex::encode(Sha256::digest(&volume.handle));
        self.drivers().join(&volume.driver).join(digest)
    }

    /// `staging_target_path`
    pub(crate) fn staging(&self, volume: &VolumeId) -> PathBuf {
        self.staged(volume).join("globalmount")
    }

    /// Returns the directory in which drivers register.
    pub(crate) fn registry(&self) -> PathBuf {
        self.0.join("plugins_registry")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Those of a kubelet 1.33; a pod that it left can be read on.
    #[test]
    fn paths_are_kubelets_to_the_byte() {
        let layout = Layout::new(Path::new("/var/lib/kubelet"));
        let volume = VolumeId {
            driver: "csi.example".to_owned(),
            handle: "handle-1".to_owned(),
        };
        let paths = [
            layout.target("uid", "pv-1"),
            layout.empty_dirs("uid").join("scratch"),
            layout.subpaths("uid").join("pv-1/app/0"),
            layout.staging(&volume),
            layout.registry(),
        ];
        let expected = [
            "/var/lib/kubelet/pods/uid/volumes/kubernetes.io~csi/pv-1/mount",
            "/var/lib/kubelet/pods/uid/volumes/kubernetes.io~empty-dir/scratch",
            "/var/lib/kubelet/pods/uid/volume-subpaths/pv-1/app/0",
            "/var/lib/kubelet/plugins/kubernetes.io/csi/csi.example/DIGEST/globalmount",
            "/var/lib/kubelet/plugins_registry",
        ];
        // sha256sum(1) of the handle.
        let digest = "4219dcd75aa1fff692ddc5cf84c1b34bf799aaad291afdf03dde2213f2f3b397";
        for (path, expected) in paths.iter().zip(expected) {
            assert_eq!(*path, Path::new(&expected.replace("DIGEST", digest)));
        }
    }
}
