//! The paths in the root directory. They are the same as kubelet's.

use std::path::{Path, PathBuf};

use crust_state::target::pod_csi_directory;
use sha2::{Digest, Sha256};

use super::spec::VolumeId;

/// The file name of a volume's record, which is in the volume's directory, next to the mount point.
pub(crate) const DATA: &str = "vol_data.json";

/// The layout of a root directory. kubelet's is `/var/lib/kubelet`.
#[derive(Debug, Clone)]
pub(crate) struct RootDirLayout(PathBuf);

impl RootDirLayout {
    pub(crate) fn new(root: &Path) -> Self {
        Self(root.to_owned())
    }

    pub(crate) fn root(&self) -> &Path {
        &self.0
    }

    /// Returns the directory that contains a directory for each pod.
    pub(crate) fn pods(&self) -> PathBuf {
        self.0.join("pods")
    }

    /// Returns the directory of a pod.
    pub(crate) fn pod(&self, uid: &str) -> PathBuf {
        self.pods().join(uid)
    }

    /// Returns the directory that contains a directory for each CSI volume of a pod.
    pub(crate) fn csi_volumes(&self, uid: &str) -> PathBuf {
        pod_csi_directory(&self.0, uid)
    }

    /// Returns the directory of a pod's CSI volume.
    pub(crate) fn volume(&self, uid: &str, directory: &str) -> PathBuf {
        self.csi_volumes(uid).join(directory)
    }

    /// Returns the `target_path` of a pod's CSI volume.
    pub(crate) fn target(&self, uid: &str, directory: &str) -> PathBuf {
        self.volume(uid, directory).join("mount")
    }

    /// Returns the directory that contains a directory for each kind of volume of a pod.
    pub(crate) fn volumes(&self, uid: &str) -> PathBuf {
        self.pod(uid).join("volumes")
    }

    /// Returns the directory that contains a pod's `emptyDir`s.
    pub(crate) fn empty_dirs(&self, uid: &str) -> PathBuf {
        self.volumes(uid).join("kubernetes.io~empty-dir")
    }

    /// Returns the directory below which a pod's subPaths are bind-mounted. The subPaths of deferred volumes aren't.
    pub(crate) fn subpaths(&self, uid: &str) -> PathBuf {
        self.pod(uid).join("volume-subpaths")
    }

    /// Returns the directory that contains a directory for each driver with staged volumes.
    pub(crate) fn drivers(&self) -> PathBuf {
        self.0.join("plugins/kubernetes.io/csi")
    }

    /// Returns the directory of a staged volume. It is named after the digest of the handle, as in kubelet since 1.24.
    pub(crate) fn staged(&self, volume: &VolumeId) -> PathBuf {
        let digest = hex::encode(Sha256::digest(&volume.handle));
        self.drivers().join(&volume.driver).join(digest)
    }

    /// Returns the `staging_target_path` of a volume.
    pub(crate) fn staging(&self, volume: &VolumeId) -> PathBuf {
        self.staged(volume).join("globalmount")
    }

    /// Returns the directory in which drivers register with a socket.
    pub(crate) fn registry(&self) -> PathBuf {
        self.0.join("plugins_registry")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The paths of kubelet 1.33.
    #[test]
    fn paths_are_the_same_as_kubelets() {
        let layout = RootDirLayout::new(Path::new("/var/lib/kubelet"));
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
