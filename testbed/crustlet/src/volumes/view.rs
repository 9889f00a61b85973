//! A volume of this node as a document of `crustlet get volumes`, which the agent writes and the command reads.

use serde::{Deserialize, Serialize};

use super::actual::{Certainty, Mounter};
use super::spec::Lifecycle;

/// `apiVersion` of the documents, which no API server has.
pub(crate) const API_VERSION: &str = "crustlet.crust.dev/v1alpha1";

/// `kind`
pub(crate) const KIND: &str = "Volume";

/// A volume that pods want, or that something was done to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct VolumeView {
    api_version: String,
    kind: String,
    /// The name.
    pub(crate) metadata: Metadata,
    /// The driver and the handle.
    pub(crate) spec: Spec,
    /// The state.
    pub(crate) status: Status,
}

/// The name of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Metadata {
    /// The `PersistentVolume`'s, or that in the pod: several pods may have volumes of that name.
    pub(crate) name: String,
}

/// The identity of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Spec {
    /// Its driver's name.
    pub(crate) driver: String,
    /// `volume_id` of CSI's calls.
    pub(crate) volume_handle: String,
    /// Whether there is a volume without a pod.
    pub(crate) lifecycle: Lifecycle,
}

/// The state of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Status {
    /// Whether it is staged.
    pub(crate) staged: Staged,
    /// A pod's each.
    #[serde(default)]
    pub(crate) mounts: Vec<MountView>,
    /// CSI's call that is under way: `NodeStageVolume`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) operation: Option<String>,
    /// The last failure, until there is a success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<String>,
}

/// Whether a volume is staged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Staged {
    /// It is.
    True,
    /// It isn't, or its driver stages none.
    False,
    /// It may be.
    Uncertain,
}

impl From<Option<Certainty>> for Staged {
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
    /// `default/web`; `None` of a pod that is only known by its directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pod: Option<String>,
    /// The pod's.
    #[serde(rename = "podUID")]
    pub(crate) pod_uid: String,
    /// `target_path` of CSI's calls.
    pub(crate) target_path: String,
    /// The program that has it mounted. `None` if that isn't decided yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mounter: Option<Mounter>,
    /// How far it is.
    pub(crate) state: State,
    /// The last failure, until there is a success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<String>,
}

/// How far a mount is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum State {
    /// It is there.
    Mounted,
    /// Something may be there.
    Uncertain,
    /// It is wanted.
    Pending,
}

impl From<Certainty> for State {
    fn from(certainty: Certainty) -> Self {
        match certainty {
            Certainty::Uncertain => Self::Uncertain,
            Certainty::Certain => Self::Mounted,
        }
    }
}

impl VolumeView {
    /// A volume by its name.
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
    fn a_volume_is_an_object_like_others() {
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
