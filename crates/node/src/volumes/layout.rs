//! Where things are below the root directory: where kubelet has them, to the byte.

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
    /// Of a root directory.
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

    /// An `emptyDir`'s.
    pub(crate) fn empty_dir(&self, uid: &str, volume: &str) -> PathBuf {
        self.pod(uid)
            .join("volumes/kubernetes.io~empty-dir")
            .join(volume)
    }

    /// Where subPaths of volumes that aren't deferred are bound.
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

    /// Where drivers say that they are there.
    pub(crate) fn registry(&self) -> PathBuf {
        self.0.join("plugins_registry")
    }
}
