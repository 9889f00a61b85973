//! Where things are below the root directory: where kubelet has them, to the byte.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::spec::VolumeId;

/// In a volume's directory, beside what is mounted.
pub const DATA: &str = "vol_data.json";

/// The plugin's directory in a pod's `volumes`.
pub const CSI: &str = "kubernetes.io~csi";

/// A root directory, `/var/lib/kubelet` of kubelet's.
#[derive(Debug, Clone)]
pub struct Layout(PathBuf);

impl Layout {
    /// Of a root directory.
    #[must_use]
    pub fn new(root: &Path) -> Self {
        Self(root.to_owned())
    }

    /// It.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.0
    }

    /// A directory for each pod.
    #[must_use]
    pub fn pods(&self) -> PathBuf {
        self.0.join("pods")
    }

    /// A pod's own, by its uid.
    #[must_use]
    pub fn pod(&self, uid: &str) -> PathBuf {
        self.pods().join(uid)
    }

    /// A directory for each CSI volume of a pod.
    #[must_use]
    pub fn csi_volumes(&self, uid: &str) -> PathBuf {
        self.pod(uid).join("volumes").join(CSI)
    }

    /// A CSI volume's own in a pod.
    #[must_use]
    pub fn volume(&self, uid: &str, directory: &str) -> PathBuf {
        self.csi_volumes(uid).join(directory)
    }

    /// `target_path`
    #[must_use]
    pub fn target(&self, uid: &str, directory: &str) -> PathBuf {
        self.volume(uid, directory).join("mount")
    }

    /// An `emptyDir`'s.
    #[must_use]
    pub fn empty_dir(&self, uid: &str, volume: &str) -> PathBuf {
        self.pod(uid)
            .join("volumes/kubernetes.io~empty-dir")
            .join(volume)
    }

    /// Where subPaths of volumes that aren't deferred are bound.
    #[must_use]
    pub fn subpaths(&self, uid: &str) -> PathBuf {
        self.pod(uid).join("volume-subpaths")
    }

    /// A directory for each driver with staged volumes.
    #[must_use]
    pub fn drivers(&self) -> PathBuf {
        self.0.join("plugins/kubernetes.io/csi")
    }

    /// A staged volume's own directory, by kubelet's rule since 1.24.
    #[must_use]
    pub fn staged(&self, volume: &VolumeId) -> PathBuf {
        let digest = hex::encode(Sha256::digest(&volume.handle));
        self.drivers().join(&volume.driver).join(digest)
    }

    /// `staging_target_path`
    #[must_use]
    pub fn staging(&self, volume: &VolumeId) -> PathBuf {
        self.staged(volume).join("globalmount")
    }

    /// Where drivers say that they are there.
    #[must_use]
    pub fn registry(&self) -> PathBuf {
        self.0.join("plugins_registry")
    }
}
