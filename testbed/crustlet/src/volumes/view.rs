//! A volume of this node as a document. The agent writes it, and `crustlet get volumes` reads it.

use serde::{Deserialize, Serialize};

use super::actual::{Certainty, Mounter};
use super::spec::Lifecycle;

/// The `apiVersion` of the documents. It is specific to crustlet.
pub(crate) const API_VERSION: &str = "crustlet.crust.dev/v1alpha1";

/// The `kind` of the documents.
pub(crate) const KIND: &str = "Volume";

/// A volume that pods need, or that is, or may be, staged or published.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct VolumeView {
    api_version: String,
    kind: String,
    pub(crate) metadata: Metadata,
    pub(crate) spec: Spec,
    pub(crate) status: Status,
}

/// The name of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Metadata {
    /// The name of the `PersistentVolume`, or that of the inline volume in the pod. Several pods may have inline
    /// volumes with the same name.
    pub(crate) name: String,
}

/// The identity of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Spec {
    pub(crate) driver: String,
    /// `volume_id` of CSI's calls.
    pub(crate) volume_handle: String,
    pub(crate) lifecycle: Lifecycle,
}

/// The state of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Status {
    pub(crate) staged: StagedState,
    /// The mounts, one for each pod.
    #[serde(default)]
    pub(crate) mounts: Vec<MountView>,
    /// The CSI call in progress, such as `NodeStageVolume`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) operation: Option<String>,
    /// The last failure. `None` after a success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum StagedState {
    True,
    /// The volume isn't staged, or its driver doesn't stage volumes.
    False,
    /// The volume may be staged.
    Uncertain,
}

impl From<Option<Certainty>> for StagedState {
    fn from(staged: Option<Certainty>) -> Self {
        match staged {
            None => Self::False,
            Some(Certainty::Uncertain) => Self::Uncertain,
            Some(Certainty::Certain) => Self::True,
        }
    }
}

/// A volume at a pod's target path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MountView {
    /// The pod's name, such as `default/web`. `None` for a pod that is only known by its directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pod: Option<String>,
    #[serde(rename = "podUID")]
    pub(crate) pod_uid: String,
    /// `target_path` of CSI's calls.
    pub(crate) target_path: String,
    /// The program that has mounted the volume. `None` if that isn't decided yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mounter: Option<Mounter>,
    pub(crate) state: MountState,
    /// The last failure. `None` after a success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum MountState {
    Mounted,
    /// The volume may be mounted.
    Uncertain,
    /// The volume is not mounted yet.
    Pending,
}

impl From<Certainty> for MountState {
    fn from(certainty: Certainty) -> Self {
        match certainty {
            Certainty::Uncertain => Self::Uncertain,
            Certainty::Certain => Self::Mounted,
        }
    }
}

impl VolumeView {
    pub(crate) fn new(name: &str, spec: Spec, status: Status) -> Self {
        Self {
            api_version: API_VERSION.to_owned(),
            kind: KIND.to_owned(),
            metadata: Metadata {
                name: name.to_owned(),
            },
            spec,
            status,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_has_the_structure_of_an_api_object() {
        let spec = Spec {
            driver: "csi.example".to_owned(),
            volume_handle: "handle-1".to_owned(),
            lifecycle: Lifecycle::Persistent,
        };
        let mount = MountView {
            pod: Some("default/web".to_owned()),
            pod_uid: "uid-1".to_owned(),
            target_path: "/r/pods/uid-1/volumes/kubernetes.io~csi/pv-1/mount".to_owned(),
            mounter: Some(Mounter::Deferred),
            state: Certainty::Certain.into(),
            message: None,
        };
        let status = Status {
            staged: Some(Certainty::Uncertain).into(),
            mounts: vec![mount],
            operation: Some("NodePublishVolume".to_owned()),
            message: None,
        };
        let volume = VolumeView::new("pv-1", spec, status);
        let value = serde_json::to_value(&volume).unwrap();
        let expected = serde_json::json!({
            "apiVersion": "crustlet.crust.dev/v1alpha1",
            "kind": "Volume",
            "metadata": {"name": "pv-1"},
            "spec": {"driver": "csi.example", "volumeHandle": "handle-1", "lifecycle": "Persistent"},
            "status": {
                "staged": "Uncertain",
                "mounts": [{
                    "pod": "default/web",
                    "podUID": "uid-1",
                    "targetPath": "/r/pods/uid-1/volumes/kubernetes.io~csi/pv-1/mount",
                    "mounter": "deferred",
                    "state": "Mounted",
                }],
                "operation": "NodePublishVolume",
            },
        });
        assert_eq!(value, expected);
        assert_eq!(serde_json::from_value::<VolumeView>(value).unwrap(), volume);
    }
}
