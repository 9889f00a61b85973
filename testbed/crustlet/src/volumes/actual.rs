//! The actual volumes, as far as they are known (KEP-3756, "Introduction": `ActualStateOfWorld`).

use std::collections::BTreeMap;

use crust_proto::csi::v1::FileSystemMountInfo;
use serde::{Deserialize, Serialize};

use super::desired::Holders;
use super::spec::{Lifecycle, VolumeId};

/// Whether a call has told how it is, or ended without a word; after a restart nothing is certain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Certainty {
    /// Something may be there.
    Uncertain,
    /// It is there.
    Certain,
}

/// The program that has a published volume's file system mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mounter {
    /// The CSI driver, on the host.
    Driver,
    /// The container runtime, which the driver has told (`defer_fs_ops`).
    Deferred,
    /// The container runtime, to be told by us (KEP-2857's earlier draft).
    Runtime,
}

/// A volume at a pod's target path.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Mount {
    /// Whether it is known to be there.
    pub(crate) certainty: Certainty,
    /// The volume's directory in the pod's.
    pub(crate) directory: String,
    /// The program that has it mounted.
    pub(crate) mounter: Mounter,
    /// With [`Mounter::Runtime`], the volume that it is to mount.
    pub(crate) late: Option<FileSystemMountInfo>,
}

/// A volume that something was done to.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ActualVolume {
    /// Whether there is a volume without a pod.
    pub(crate) lifecycle: Lifecycle,
    /// `None` where it isn't staged, or its driver stages none.
    pub(crate) staged: Option<Certainty>,
    /// The mounts by the pods' UIDs.
    pub(crate) mounts: BTreeMap<String, Mount>,
}

/// All of them.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Actual {
    /// Those that something was done to.
    pub(crate) volumes: BTreeMap<VolumeId, ActualVolume>,
}

impl Actual {
    /// Returns a volume's entry, and makes it if there is none.
    pub(crate) fn entry(&mut self, id: &VolumeId, lifecycle: Lifecycle) -> &mut ActualVolume {
        self.volumes
            .entry(id.clone())
            .or_insert_with(|| ActualVolume {
                lifecycle,
                staged: None,
                mounts: BTreeMap::new(),
            })
    }

    /// Forgets volumes that nothing is left of.
    pub(crate) fn tidy(&mut self) {
        self.volumes
            .retain(|_, volume| volume.staged.is_some() || !volume.mounts.is_empty());
    }

    /// A pod's mount of a volume.
    pub(crate) fn mount(&self, id: &VolumeId, pod: &str) -> Option<&Mount> {
        self.volumes.get(id)?.mounts.get(pod)
    }

    /// Returns the pods that have volumes.
    pub(crate) fn holders(&self) -> Holders {
        let volumes = self.volumes.iter();
        volumes
            .map(|(id, volume)| (id.clone(), volume.mounts.keys().cloned().collect()))
            .collect()
    }

    /// Whether anything of a pod's volumes is there.
    pub(crate) fn has_mounts_of(&self, pod: &str) -> bool {
        self.volumes
            .values()
            .any(|volume| volume.mounts.contains_key(pod))
    }
}
