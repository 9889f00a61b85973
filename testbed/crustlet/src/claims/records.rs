//! The records of decisions about objects, which are merged into their manifests.
//!
//! A record is a part of an object in the object's own form: a claim's UID, `volumeName` and `status`, or a volume's
//! `claimRef`. The record of a generated object, which has no manifest, is the whole object. If the user nevertheless
//! writes a manifest for a provisioned volume, its mutable fields are copied into the record.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde_json::{Map, Value, json};

use super::provision::PROVISIONED_BY;
use super::{PlanInputs, RecordUpdate};
use crate::objects::manifest;
use crate::objects::{Kind, Name, Objects};
use crate::volumes::claim_ref;

/// The records of all objects.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Records(BTreeMap<(Kind, Name), Value>);

impl Records {
    /// Returns the record of an object.
    pub(crate) fn get(&self, kind: Kind, name: &Name) -> Option<&Value> {
        self.0.get(&(kind, name.clone()))
    }

    /// Returns the UID of a claim. Volumes refer to a claim by its UID.
    pub(super) fn uid(&self, claim: &Name) -> Option<&str> {
        let claim = self.get(Kind::PersistentVolumeClaim, claim)?;
        claim.pointer("/metadata/uid")?.as_str()
    }

    /// Returns whether a volume was provisioned by crustlet.
    pub(crate) fn is_provisioned(&self, volume: &str) -> bool {
        let record = self.get(Kind::PersistentVolume, &Name::new("", volume));
        record.is_some_and(|record| is_generated(Kind::PersistentVolume, record))
    }

    /// Returns the objects of the manifests, with the records merged into them. Generated objects are added; any other
    /// record without a manifest is left out.
    pub(crate) fn apply_to(&self, manifests: &Objects) -> Objects {
        let mut objects = manifests.clone();
        for ((kind, name), record) in &self.0 {
            let document = match manifests.documents.get(&(*kind, name.clone())) {
                // The record belongs to a deleted claim, and the manifest to a new one with the same name.
                Some(base) if record_is_of_deleted_claim(*kind, record, base) => continue,
                // The record has all allowed changes of the manifest ([`Self::manifest_update`]).
                Some(_) if *kind == Kind::PersistentVolume && is_generated(*kind, record) => {
                    record.clone()
                }
                Some(base) => merge(&without_status(base), record),
                None if is_generated(*kind, record) => record.clone(),
                None => continue,
            };
            // A document that is merged from two readable documents is readable, too.
            if let Ok(manifest) = manifest::from_document(document) {
                objects.insert(manifest);
            }
        }
        objects
    }

    /// Returns whether an object was marked as deleted.
    pub(crate) fn is_deleted(&self, kind: Kind, name: &Name) -> bool {
        self.get(kind, name).is_some_and(is_deleted)
    }

    /// Returns the objects whose records can be removed.
    pub(super) fn forgettable<'r>(
        &'r self,
        inputs: &PlanInputs<'r>,
    ) -> impl Iterator<Item = (Kind, Name)> + 'r {
        let inputs = *inputs;
        let records = self.0.iter();
        let forgettable = records.filter(move |((kind, name), record)| match kind {
            Kind::PersistentVolumeClaim if is_generated(*kind, record) => {
                let owners = record.pointer("/metadata/ownerReferences");
                let mut owners = owners.and_then(Value::as_array).into_iter().flatten();
                !owners.any(|owner| inputs.pods.iter().any(|pod| owner["uid"] == pod.uid))
            }
            // The record stays while a pod uses the claim, as with Kubernetes' protection of claims. If the manifest is
            // missing but the claim wasn't deleted, the record stays too: otherwise moving the file would delete the
            // volume.
            Kind::PersistentVolumeClaim => {
                let claim = inputs.objects.claims.get(name);
                is_deleted(record)
                    && claim.map_or_else(
                        || !inputs.is_used(name),
                        |claim| !claim_ref::is_deleted(claim),
                    )
            }
            // The record stays while the claim has a record, because the volume's manifest may come back.
            Kind::PersistentVolume if !is_generated(*kind, record) => {
                !inputs.objects.volumes.contains_key(&name.name) && !self.has_claim(record)
            }
            _ => false,
        });
        forgettable.map(|(key, _)| key.clone())
    }

    /// Returns whether the record belongs to a deleted claim, and `claim` is a new one with the same name.
    pub(super) fn is_for_deleted_claim(&self, name: &Name, claim: &PersistentVolumeClaim) -> bool {
        let record = self.get(Kind::PersistentVolumeClaim, name);
        record.is_some_and(is_deleted) && !claim_ref::is_deleted(claim)
    }

    /// Returns the claims whose manifest is missing but that weren't deleted, each with the volume that is kept for it.
    pub(super) fn claims_without_manifest<'r>(
        &'r self,
        inputs: &PlanInputs<'r>,
    ) -> impl Iterator<Item = (&'r Name, &'r str)> {
        let claims = &inputs.objects.claims;
        self.0.iter().filter_map(|((kind, name), record)| {
            let is_missing = *kind == Kind::PersistentVolumeClaim
                && !is_generated(*kind, record)
                && !is_deleted(record)
                && !claims.contains_key(name);
            let volume = record.pointer("/spec/volumeName")?.as_str()?;
            is_missing.then_some((name, volume))
        })
    }

    /// Returns the update of a provisioned volume's record with the fields of its manifest that may change. They stay
    /// in the record if the manifest is removed. `None` if nothing has changed.
    pub(super) fn manifest_update(
        &self,
        manifests: &Objects,
        volume: &str,
    ) -> Option<RecordUpdate> {
        const MAY_CHANGE: [(&str, &str); 6] = [
            ("metadata", "labels"),
            ("metadata", "annotations"),
            ("spec", "persistentVolumeReclaimPolicy"),
            ("spec", "mountOptions"),
            ("spec", "accessModes"),
            ("spec", "storageClassName"),
        ];
        let (record, manifest) = self.record_and_manifest(manifests, volume)?;
        let mut patch = json!({"metadata": {}, "spec": {}});
        for (part, field) in MAY_CHANGE {
            let value = &manifest[part][field];
            if !value.is_null() {
                patch[part][field] = value.clone();
            }
        }
        // This annotation marks the volume as provisioned, and must not change.
        if let Some(Value::Object(annotations)) = patch.pointer_mut("/metadata/annotations") {
            annotations.remove(PROVISIONED_BY);
        }
        (merge(record, &patch) != *record).then(|| RecordUpdate::volume(volume, patch))
    }

    /// Returns the immutable fields of a provisioned volume that its manifest tries to change.
    pub(super) fn immutable_changes(&self, manifests: &Objects, volume: &str) -> Vec<&'static str> {
        let differs = |field: &&str| {
            let (record, manifest) = self.record_and_manifest(manifests, volume)?;
            let (recorded, value) = (&record["spec"][field], &manifest["spec"][field]);
            Some(!value.is_null() && merge(recorded, &remove_nulls(value)) != *recorded)
        };
        let fields = ["csi", "claimRef", "volumeMode"].into_iter();
        fields
            .filter(|field| differs(field) == Some(true))
            .collect()
    }

    /// Returns the record of a provisioned volume and its manifest, if it has one.
    fn record_and_manifest<'r>(
        &'r self,
        manifests: &'r Objects,
        volume: &str,
    ) -> Option<(&'r Value, &'r Value)> {
        let key = (Kind::PersistentVolume, Name::new("", volume));
        let record = self
            .0
            .get(&key)
            .filter(|record| is_generated(key.0, record))?;
        Some((record, manifests.documents.get(&key)?))
    }

    /// Returns whether the claim that a volume refers to still has a record.
    fn has_claim(&self, volume: &Value) -> bool {
        let text = |pointer| volume.pointer(pointer).and_then(Value::as_str);
        let claim = Name::new(
            text("/spec/claimRef/namespace").unwrap_or_default(),
            text("/spec/claimRef/name").unwrap_or_default(),
        );
        let uid = text("/spec/claimRef/uid");
        uid.is_some() && self.uid(&claim) == uid
    }

    /// Returns an object's record after an update. `None` if the update changes nothing. A new record of a claim or of
    /// a generated object gets a UID, and a generated object gets the creation time `now`.
    pub(super) fn updated(
        &self,
        update: &RecordUpdate,
        uid: impl FnOnce() -> String,
        now: impl FnOnce() -> String,
    ) -> Option<Value> {
        let RecordUpdate {
            kind, name, patch, ..
        } = update;
        let existing = self.get(*kind, name);
        let new_record = || {
            let mut metadata = json!({"name": name.name});
            if kind.is_namespaced() {
                metadata["namespace"] = json!(name.namespace);
            }
            json!({"apiVersion": kind.api_version(), "kind": kind.as_str(), "metadata": metadata})
        };
        let mut record = merge(&existing.cloned().unwrap_or_else(new_record), patch);
        let has_uid = *kind == Kind::PersistentVolumeClaim || is_generated(*kind, &record);
        if has_uid && record.pointer("/metadata/uid").is_none() {
            record["metadata"]["uid"] = json!(uid());
        }
        if is_generated(*kind, &record) && record.pointer("/metadata/creationTimestamp").is_none() {
            record["metadata"]["creationTimestamp"] = json!(now());
        }
        (existing != Some(&record)).then_some(record)
    }

    pub(super) fn insert(&mut self, kind: Kind, name: Name, record: Value) {
        self.0.insert((kind, name), record);
    }

    pub(super) fn remove(&mut self, kind: Kind, name: &Name) {
        self.0.remove(&(kind, name.clone()));
    }
}

fn is_deleted(record: &Value) -> bool {
    record.pointer("/metadata/deletionTimestamp").is_some()
}

/// Returns whether a record belongs to a deleted claim, and the manifest to a new one with the same name.
fn record_is_of_deleted_claim(kind: Kind, record: &Value, manifest: &Value) -> bool {
    kind == Kind::PersistentVolumeClaim && is_deleted(record) && !is_deleted(manifest)
}

/// Returns a manifest without its status, which is outdated if the manifest comes from an export.
fn without_status(manifest: &Value) -> Value {
    let mut manifest = manifest.clone();
    manifest
        .as_object_mut()
        .map(|fields| fields.remove("status"));
    manifest
}

/// Returns a value without the keys whose value is null.
fn remove_nulls(value: &Value) -> Value {
    let Value::Object(fields) = value else {
        return value.clone();
    };
    let set = fields.iter().filter(|(_, value)| !value.is_null());
    set.map(|(key, value)| (key.clone(), remove_nulls(value)))
        .collect()
}

/// Returns whether an object has no manifest of its own: the claim of an `ephemeral` volume, or a provisioned volume.
fn is_generated(kind: Kind, record: &Value) -> bool {
    let metadata = &record["metadata"];
    match kind {
        Kind::PersistentVolumeClaim => metadata.get("ownerReferences").is_some(),
        _ => metadata["annotations"].get(PROVISIONED_BY).is_some(),
    }
}

/// Returns `base` with `over` merged into it: maps are merged key by key, and any other value is replaced. `status` is
/// replaced as a whole.
fn merge(base: &Value, over: &Value) -> Value {
    let (Value::Object(base), Value::Object(over)) = (base, over) else {
        return over.clone();
    };
    let mut merged_fields: Map<String, Value> = base.clone();
    for (key, value) in over {
        let value = match base.get(key) {
            Some(before) if key != "status" => merge(before, value),
            _ => value.clone(),
        };
        merged_fields.insert(key.clone(), value);
    }
    Value::Object(merged_fields)
}
