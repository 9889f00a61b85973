//! The status of claims and volumes, in Kubernetes' form.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Records;
use super::reclaim::is_released;
use crate::objects::quantity::{Bytes, bytes};
use crate::objects::{Kind, Name, Objects};
use crate::volumes::claim_ref::{claim_of, is_bound, volume_of, was_bound};

const STORAGE: &str = "storage";

/// KEP-2857, "Enhancements to Kubelet".
const NODE_EXPANSION_FAILED: &str = "PersistentVolumeClaimNodeExpansionFailed";

/// `status` of a claim, but for its phase: that follows from the others. Kubernetes' fields, and KEP-2857's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ClaimStatus {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    access_modes: Vec<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    capacity: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    conditions: Vec<Condition>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    allocated_resources: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    allocated_resource_statuses: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resize_status: Option<String>,
}

/// A condition of a claim's. Those that aren't true aren't there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    status: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    message: String,
}

impl Condition {
    fn new(kind: &str, message: &str) -> Self {
        Self {
            kind: kind.to_owned(),
            status: "True".to_owned(),
            message: message.to_owned(),
        }
    }
}

/// The progress of a claim's growth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress<'p> {
    /// The driver's controller is asked for this size in bytes.
    Controller(i64),
    /// It refuses; whether for good, until something else is asked for.
    ControllerFailed(bool, &'p str),
    /// The file system is to grow as well.
    NodePending,
    /// The driver is asked on the node.
    Node,
    /// It refuses; whether for good.
    NodeFailed(bool, &'p str),
    /// It can't be asked: the volume is deferred, and the driver can't defer (any more).
    NodeCannotDefer(&'p str),
    /// All is so large.
    Done(i64),
}

impl ClaimStatus {
    /// Returns the status of a claim that has just got a volume.
    pub(super) fn bound(capacity: Option<i64>, access_modes: Vec<String>) -> Self {
        Self {
            access_modes,
            capacity: capacity.map(amount).unwrap_or_default(),
            ..Self::default()
        }
    }

    /// Reads the status of a claim's document. Fields that can't be read are left out.
    pub(super) fn of(document: &Value) -> Self {
        let status = document.get("status");
        status
            .and_then(|it| Self::deserialize(it).ok())
            .unwrap_or_default()
    }

    /// Whether whoever has it mounted won't grow it.
    pub(super) fn cannot_defer(&self) -> bool {
        self.resize_status.as_deref() == Some(NODE_EXPANSION_FAILED)
    }

    /// How large its file system is.
    pub(super) fn capacity(&self) -> Option<i64> {
        bytes(self.capacity.get(STORAGE)?).ok()
    }

    /// The same, without what tells of a growth that isn't wanted any more.
    pub(super) fn settled(&self) -> Self {
        Self::bound(self.capacity(), self.access_modes.clone())
    }

    /// How it is then.
    pub(super) fn after(&self, progress: Progress<'_>) -> Self {
        let mut next = Self {
            conditions: Vec::new(),
            resize_status: None,
            ..self.clone()
        };
        let state = |next: &mut Self, state: &str| {
            next.allocated_resource_statuses = [(STORAGE.to_owned(), state.to_owned())].into();
        };
        let resizing = || Condition::new("Resizing", "");
        let pending = || {
            let message = "Waiting for user to (re-)start a pod to finish file system resize of volume on node.";
            Condition::new("FileSystemResizePending", message)
        };
        let failed = |is_final| if is_final { "Infeasible" } else { "InProgress" };
        match progress {
            Progress::Controller(size) => {
                next.conditions = vec![resizing()];
                next.allocated_resources = amount(size);
                state(&mut next, "ControllerResizeInProgress");
            }
            Progress::ControllerFailed(is_final, why) => {
                next.conditions = vec![resizing(), Condition::new("ControllerResizeError", why)];
                state(&mut next, &format!("ControllerResize{}", failed(is_final)));
            }
            Progress::NodePending => {
                next.conditions = vec![pending()];
                state(&mut next, "NodeResizePending");
            }
            Progress::Node => {
                next.conditions = vec![pending()];
                state(&mut next, "NodeResizeInProgress");
            }
            Progress::NodeFailed(is_final, why) => {
                next.conditions = vec![pending(), Condition::new("NodeResizeError", why)];
                state(&mut next, &format!("NodeResize{}", failed(is_final)));
            }
            Progress::NodeCannotDefer(why) => {
                next.conditions = vec![pending(), Condition::new("NodeResizeError", why)];
                state(&mut next, "NodeResizePending");
                next.resize_status = Some(NODE_EXPANSION_FAILED.to_owned());
            }
            Progress::Done(size) => {
                next.capacity = amount(size);
                next = next.settled();
            }
        }
        next
    }
}

fn amount(size: i64) -> BTreeMap<String, String> {
    [(STORAGE.to_owned(), Bytes(size).to_string())].into()
}

/// An object's document with its phase, where it has one.
pub(crate) fn document(
    objects: &Objects,
    records: &Records,
    kind: Kind,
    name: &Name,
) -> Option<Value> {
    let mut document = Value::clone(objects.documents.get(&(kind, name.clone()))?);
    if let Some(phase) = phase(objects, records, kind, name) {
        if !document.get("status").is_some_and(Value::is_object) {
            document["status"] = json!({});
        }
        document["status"]["phase"] = json!(phase);
    }
    Some(document)
}

/// `status.phase` of claims and volumes.
pub(crate) fn phase(
    objects: &Objects,
    records: &Records,
    kind: Kind,
    name: &Name,
) -> Option<&'static str> {
    match kind {
        Kind::PersistentVolumeClaim => {
            let claim = objects.claims.get(name)?;
            let volume = volume_of(claim);
            let volume = volume.and_then(|it| Some((it, objects.volumes.get(it)?)));
            Some(match volume {
                Some((volume_name, volume)) if is_bound(name, claim, volume_name, volume) => {
                    "Bound"
                }
                _ if was_bound(claim) => "Lost",
                _ => "Pending",
            })
        }
        Kind::PersistentVolume => {
            let volume = objects.volumes.get(&name.name)?;
            let has_uid = claim_of(volume).is_some_and(|(_, uid)| uid.is_some());
            Some(if !has_uid {
                "Available"
            } else if is_released(records, volume) {
                "Released"
            } else {
                "Bound"
            })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GI: i64 = 1 << 30;

    /// `allocatedResourceStatuses`, the conditions, `resizeStatus` and the capacity.
    fn told(status: &ClaimStatus) -> (String, String, Option<&str>, Option<i64>) {
        let state = status.allocated_resource_statuses.get(STORAGE).cloned();
        let conditions: Vec<&str> = status
            .conditions
            .iter()
            .map(|it| it.kind.as_str())
            .collect();
        (
            state.unwrap_or_default(),
            conditions.join(" "),
            status.resize_status.as_deref(),
            status.capacity(),
        )
    }

    #[test]
    fn a_growth_is_told_as_kubernetes_does() {
        let bound = ClaimStatus::bound(Some(GI), vec!["ReadWriteOnce".to_owned()]);
        let cases = [
            (
                Progress::Controller(2 * GI),
                "ControllerResizeInProgress",
                "Resizing",
                None,
            ),
            (
                Progress::ControllerFailed(false, "no"),
                "ControllerResizeInProgress",
                "Resizing ControllerResizeError",
                None,
            ),
            (
                Progress::ControllerFailed(true, "no"),
                "ControllerResizeInfeasible",
                "Resizing ControllerResizeError",
                None,
            ),
            (
                Progress::NodePending,
                "NodeResizePending",
                "FileSystemResizePending",
                None,
            ),
            (
                Progress::Node,
                "NodeResizeInProgress",
                "FileSystemResizePending",
                None,
            ),
            (
                Progress::NodeFailed(true, "no"),
                "NodeResizeInfeasible",
                "FileSystemResizePending NodeResizeError",
                None,
            ),
            // KEP-2857, story 5.
            (
                Progress::NodeCannotDefer("no"),
                "NodeResizePending",
                "FileSystemResizePending NodeResizeError",
                Some("PersistentVolumeClaimNodeExpansionFailed"),
            ),
        ];
        let mut status = bound.clone();
        for (progress, state, conditions, resize) in cases {
            status = status.after(progress);
            let expected = (state.to_owned(), conditions.to_owned(), resize, Some(GI));
            assert_eq!(told(&status), expected, "{progress:?}");
            assert_eq!(status.allocated_resources, amount(2 * GI), "{progress:?}");
            let again: Value = serde_json::to_value(&status).unwrap();
            assert_eq!(ClaimStatus::of(&json!({ "status": again })), status);
        }
        assert_eq!(
            status.settled(),
            bound,
            "the author has thought better of it"
        );
        let modes = bound.access_modes.clone();
        let grown = ClaimStatus::bound(Some(2 * GI), modes);
        assert_eq!(status.after(Progress::Done(2 * GI)), grown);
    }
}
