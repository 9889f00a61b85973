//! The actual state of volumes, as far as it is known (KEP-3756, "Introduction": `ActualStateOfWorld`).

use std::collections::BTreeMap;

use crust_proto::csi::v1::FileSystemMountInfo;
use serde::{Deserialize, Serialize};

use super::desired::VolumeHolders;
use super::spec::{Lifecycle, VolumeId};

/// The certainty of a state. It is uncertain after a call that ended without a result, and after a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Certainty {
    Uncertain,
    Certain,
}

/// The program that mounts the file system of a published volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mounter {
    /// The CSI driver, on the host.
    Driver,
    /// The container runtime, which gets the volume from the driver (`defer_fs_ops`).
    Deferred,
    /// The container runtime, at crustlet's request (KEP-2857's earlier draft).
    Runtime,
}

/// A volume at a pod's target path.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ActualMount {
    /// Whether the volume is published for certain, or only may be.
    pub(crate) certainty: Certainty,
    /// The name of the volume's directory in the pod's directory.
    pub(crate) directory: String,
    pub(crate) mounter: Mounter,
    /// The volume that the runtime is to mount. Set for [`Mounter::Runtime`].
    pub(crate) runtime_mount: Option<FileSystemMountInfo>,
}

/// A volume that is, or may be, staged or published.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ActualVolume {
    pub(crate) lifecycle: Lifecycle,
    /// `None` if the volume isn't staged, or its driver doesn't stage volumes.
    pub(crate) staged: Option<Certainty>,
    /// The mounts, by the pods' UIDs.
    pub(crate) mounts: BTreeMap<String, ActualMount>,
}

/// The actual state of all volumes.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ActualState {
    pub(crate) volumes: BTreeMap<VolumeId, ActualVolume>,
}

impl ActualState {
    /// Returns a volume's entry, which is added if it doesn't exist.
    pub(crate) fn entry(&mut self, id: &VolumeId, lifecycle: Lifecycle) -> &mut ActualVolume {
        self.volumes
            .entry(id.clone())
            .or_insert_with(|| ActualVolume {
                lifecycle,
                staged: None,
                mounts: BTreeMap::new(),
            })
    }

    /// Removes volumes that are neither staged nor published.
    pub(crate) fn remove_unused(&mut self) {
        self.volumes
            .retain(|_, volume| volume.staged.is_some() || !volume.mounts.is_empty());
    }

    pub(crate) fn mount(&self, id: &VolumeId, pod: &str) -> Option<&ActualMount> {
        self.volumes.get(id)?.mounts.get(pod)
    }

    /// Returns the pods that each volume is, or may be, published for.
    pub(crate) fn holders(&self) -> VolumeHolders {
        let volumes = self.volumes.iter();
        volumes
            .map(|(id, volume)| (id.clone(), volume.mounts.keys().cloned().collect()))
            .collect()
    }

    /// Returns whether a volume is, or may be, published for a pod.
    pub(crate) fn has_mounts_of(&self, pod: &str) -> bool {
        self.volumes
            .values()
            .any(|volume| volume.mounts.contains_key(pod))
    }
}
