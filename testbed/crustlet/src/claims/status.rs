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

/// The `resizeStatus` of a claim whose deferred volume can't be expanded on the node (KEP-2857, "Enhancements to
/// Kubelet").
const NODE_EXPANSION_FAILED: &str = "PersistentVolumeClaimNodeExpansionFailed";

/// A claim's `status` without the phase, which is computed. It has Kubernetes' fields and those of KEP-2857.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ClaimStatus {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    access_modes: Vec<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    capacity: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    conditions: Vec<ClaimCondition>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    allocated_resources: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    allocated_resource_statuses: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resize_status: Option<String>,
}

/// A condition of a claim. Conditions that aren't true are left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct ClaimCondition {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    status: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    message: String,
}

impl ClaimCondition {
    fn new(kind: &str, message: &str) -> Self {
        Self {
            kind: kind.to_owned(),
            status: "True".to_owned(),
            message: message.to_owned(),
        }
    }
}

/// The progress of a volume's expansion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExpansionProgress<'p> {
    /// The controller is expanding the volume to this size in bytes.
    ControllerExpanding(i64),
    /// The controller failed, for this reason. The flag is set if a retry would fail too.
    ControllerFailed(bool, &'p str),
    /// The file system has to be expanded on the node.
    NodePending,
    /// The node is expanding the file system.
    NodeExpanding,
    /// The node failed, for this reason. The flag is set if a retry would fail too.
    NodeFailed(bool, &'p str),
    /// The node can't expand the file system of the deferred volume, because its driver or its runtime doesn't support
    /// that.
    NodeCannotDefer(&'p str),
    /// The volume and the file system have this size in bytes.
    Done(i64),
}

impl ClaimStatus {
    /// Returns the status of a claim that was just bound.
    pub(super) fn bound(capacity: Option<i64>, access_modes: Vec<String>) -> Self {
        Self {
            access_modes,
            capacity: capacity.map(amount).unwrap_or_default(),
            ..Self::default()
        }
    }

    /// Reads the status of a claim's document. A status that can't be parsed counts as empty.
    pub(super) fn from_document(document: &Value) -> Self {
        let status = document.get("status");
        status
            .and_then(|status| Self::deserialize(status).ok())
            .unwrap_or_default()
    }

    /// Returns whether the driver or the runtime was found unable to expand the deferred volume on the node.
    pub(super) fn cannot_defer(&self) -> bool {
        self.resize_status.as_deref() == Some(NODE_EXPANSION_FAILED)
    }

    /// Returns the size of the claim's file system in bytes.
    pub(super) fn capacity(&self) -> Option<i64> {
        bytes(self.capacity.get(STORAGE)?).ok()
    }

    pub(super) fn without_expansion(&self) -> Self {
        Self::bound(self.capacity(), self.access_modes.clone())
    }

    /// Returns the status after a step of an expansion.
    pub(super) fn with_progress(&self, progress: ExpansionProgress<'_>) -> Self {
        let mut next = Self {
            conditions: Vec::new(),
            resize_status: None,
            ..self.clone()
        };
        let set_state = |next: &mut Self, state: &str| {
            next.allocated_resource_statuses = [(STORAGE.to_owned(), state.to_owned())].into();
        };
        let resizing = || ClaimCondition::new("Resizing", "");
        let pending = || {
            let message = "Waiting for user to (re-)start a pod to finish file system resize of volume on node.";
            ClaimCondition::new("FileSystemResizePending", message)
        };
        let failed_state = |is_final| if is_final { "Infeasible" } else { "InProgress" };
        match progress {
            ExpansionProgress::ControllerExpanding(size) => {
                next.conditions = vec![resizing()];
                next.allocated_resources = amount(size);
                set_state(&mut next, "ControllerResizeInProgress");
            }
            ExpansionProgress::ControllerFailed(is_final, reason) => {
                next.conditions = vec![
                    resizing(),
                    ClaimCondition::new("ControllerResizeError", reason),
                ];
                set_state(
                    &mut next,
                    &format!("ControllerResize{}", failed_state(is_final)),
                );
            }
            ExpansionProgress::NodePending => {
                next.conditions = vec![pending()];
                set_state(&mut next, "NodeResizePending");
            }
            ExpansionProgress::NodeExpanding => {
                next.conditions = vec![pending()];
                set_state(&mut next, "NodeResizeInProgress");
            }
            ExpansionProgress::NodeFailed(is_final, reason) => {
                next.conditions = vec![pending(), ClaimCondition::new("NodeResizeError", reason)];
                set_state(&mut next, &format!("NodeResize{}", failed_state(is_final)));
            }
            ExpansionProgress::NodeCannotDefer(reason) => {
                next.conditions = vec![pending(), ClaimCondition::new("NodeResizeError", reason)];
                set_state(&mut next, "NodeResizePending");
                next.resize_status = Some(NODE_EXPANSION_FAILED.to_owned());
            }
            ExpansionProgress::Done(size) => {
                next.capacity = amount(size);
                next = next.without_expansion();
            }
        }
        next
    }
}

fn amount(size: i64) -> BTreeMap<String, String> {
    [(STORAGE.to_owned(), Bytes(size).to_string())].into()
}

/// Returns an object's document, with the phase if the object's kind has one.
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

/// Returns the `status.phase` of a claim or a volume.
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
            let volume = volume.and_then(|name| Some((name, objects.volumes.get(name)?)));
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

    /// Returns `allocatedResourceStatuses`, the conditions, `resizeStatus` and the capacity.
    fn summary(status: &ClaimStatus) -> (String, String, Option<&str>, Option<i64>) {
        let state = status.allocated_resource_statuses.get(STORAGE).cloned();
        let conditions: Vec<&str> = status
            .conditions
            .iter()
            .map(|condition| condition.kind.as_str())
            .collect();
        (
            state.unwrap_or_default(),
            conditions.join(" "),
            status.resize_status.as_deref(),
            status.capacity(),
        )
    }

    #[test]
    fn the_status_of_an_expansion_is_that_of_kubernetes() {
        let bound = ClaimStatus::bound(Some(GI), vec!["ReadWriteOnce".to_owned()]);
        let cases = [
            (
                ExpansionProgress::ControllerExpanding(2 * GI),
                "ControllerResizeInProgress",
                "Resizing",
                None,
            ),
            (
                ExpansionProgress::ControllerFailed(false, "no"),
                "ControllerResizeInProgress",
                "Resizing ControllerResizeError",
                None,
            ),
            (
                ExpansionProgress::ControllerFailed(true, "no"),
                "ControllerResizeInfeasible",
                "Resizing ControllerResizeError",
                None,
            ),
            (
                ExpansionProgress::NodePending,
                "NodeResizePending",
                "FileSystemResizePending",
                None,
            ),
            (
                ExpansionProgress::NodeExpanding,
                "NodeResizeInProgress",
                "FileSystemResizePending",
                None,
            ),
            (
                ExpansionProgress::NodeFailed(true, "no"),
                "NodeResizeInfeasible",
                "FileSystemResizePending NodeResizeError",
                None,
            ),
            // KEP-2857, story 5.
            (
                ExpansionProgress::NodeCannotDefer("no"),
                "NodeResizePending",
                "FileSystemResizePending NodeResizeError",
                Some("PersistentVolumeClaimNodeExpansionFailed"),
            ),
        ];
        let mut status = bound.clone();
        for (progress, state, conditions, resize) in cases {
            status = status.with_progress(progress);
            let expected = (state.to_owned(), conditions.to_owned(), resize, Some(GI));
            assert_eq!(summary(&status), expected, "{progress:?}");
            assert_eq!(status.allocated_resources, amount(2 * GI), "{progress:?}");
            let serialized: Value = serde_json::to_value(&status).unwrap();
            assert_eq!(
                ClaimStatus::from_document(&json!({ "status": serialized })),
                status
            );
        }
        assert_eq!(
            status.without_expansion(),
            bound,
            "the request was withdrawn"
        );
        let modes = bound.access_modes.clone();
        let expanded = ClaimStatus::bound(Some(2 * GI), modes);
        assert_eq!(
            status.with_progress(ExpansionProgress::Done(2 * GI)),
            expanded
        );
    }
}
