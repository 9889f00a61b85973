//! The records of decisions about objects, which are merged into their manifests.
//!
//! A record is a part of an object, in that object's own shape: a claim's uid, `volumeName` and `status`, a volume's
//! `claimRef`. Objects that were made here have nobody else who writes them, and are records whole; what somebody says
//! of a volume all the same, and may, becomes part of its record.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde_json::{Map, Value, json};

use super::provision::PROVISIONED_BY;
use super::{World, Write};
use crate::objects::manifest;
use crate::objects::{Kind, Name, Objects};
use crate::volumes::claim_ref;

/// All of them.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Records(BTreeMap<(Kind, Name), Value>);

impl Records {
    /// Returns the record of an object.
    pub(crate) fn get(&self, kind: Kind, name: &Name) -> Option<&Value> {
        self.0.get(&(kind, name.clone()))
    }

    /// Returns the UID of a claim, by which volumes refer to it.
    pub(super) fn uid(&self, claim: &Name) -> Option<&str> {
        let claim = self.get(Kind::PersistentVolumeClaim, claim)?;
        claim.pointer("/metadata/uid")?.as_str()
    }

    /// Whether a volume was made here.
    pub(crate) fn has_made(&self, volume: &str) -> bool {
        let record = self.get(Kind::PersistentVolume, &Name::new("", volume));
        record.is_some_and(|it| is_whole(Kind::PersistentVolume, it))
    }

    /// Returns the objects of manifests, with the records merged into them. A record without a manifest is left out.
    pub(crate) fn view(&self, written: &Objects) -> Objects {
        let mut objects = written.clone();
        for ((kind, name), record) in &self.0 {
            let document = match written.documents.get(&(*kind, name.clone())) {
                // Who writes a claim again that has gone means another.
                Some(base) if is_over(*kind, record, base) => continue,
                // What was said of it is in the record, as far as it may change ([`Self::taken_over`]).
                Some(_) if *kind == Kind::PersistentVolume && is_whole(*kind, record) => {
                    record.clone()
                }
                Some(base) => laid(&without_status(base), record),
                None if is_whole(*kind, record) => record.clone(),
                None => continue,
            };
            // Each of the two can be read, and so can they together: what one says of a field is read as it was.
            if let Ok(manifest) = manifest::from_document(document) {
                objects.insert(manifest);
            }
        }
        objects
    }

    /// Whether an object was to go when it was looked at last.
    pub(crate) fn is_deleted(&self, kind: Kind, name: &Name) -> bool {
        self.get(kind, name).is_some_and(is_deleted)
    }

    /// Those of objects that are gone for good.
    pub(super) fn gone<'r>(&'r self, world: &World<'r>) -> impl Iterator<Item = (Kind, Name)> + 'r {
        let world = *world;
        let records = self.0.iter();
        let gone = records.filter(move |((kind, name), record)| match kind {
            Kind::PersistentVolumeClaim if is_whole(*kind, record) => {
                let owners = record.pointer("/metadata/ownerReferences");
                let mut owners = owners.and_then(Value::as_array).into_iter().flatten();
                !owners.any(|owner| world.pods.iter().any(|pod| owner["uid"] == pod.uid))
            }
            // As long as a pod has it, as Kubernetes' protection of claims does. One whose manifest is away without
            // a word is missed, and not gone: its volume would be destroyed for a file that was moved.
            Kind::PersistentVolumeClaim => {
                let claim = world.objects.claims.get(name);
                is_deleted(record)
                    && claim.map_or_else(|| !world.is_used(name), |it| !claim_ref::is_deleted(it))
            }
            // Who had it is known as long as that one is there: the volume's manifest may come back.
            Kind::PersistentVolume if !is_whole(*kind, record) => {
                !world.objects.volumes.contains_key(&name.name) && !self.has_holder(record)
            }
            _ => false,
        });
        gone.map(|(key, _)| key.clone())
    }

    /// Whether what was decided is about a claim that went, and not about the one by its name that there is.
    pub(super) fn are_over(&self, name: &Name, claim: &PersistentVolumeClaim) -> bool {
        let record = self.get(Kind::PersistentVolumeClaim, name);
        record.is_some_and(is_deleted) && !claim_ref::is_deleted(claim)
    }

    /// Claims whose manifest is away without a word, and the volume that is kept for each.
    pub(super) fn missed<'r>(
        &'r self,
        world: &World<'r>,
    ) -> impl Iterator<Item = (&'r Name, &'r str)> {
        let claims = &world.objects.claims;
        self.0.iter().filter_map(|((kind, name), record)| {
            let is_missed = *kind == Kind::PersistentVolumeClaim
                && !is_whole(*kind, record)
                && !is_deleted(record)
                && !claims.contains_key(name);
            let volume = record.pointer("/spec/volumeName")?.as_str()?;
            is_missed.then_some((name, volume))
        })
    }

    /// Returns the record of what a manifest changes about a volume that was made here, as far as it may. It counts
    /// from then on, also when the manifest is removed.
    pub(super) fn taken_over(&self, written: &Objects, volume: &str) -> Option<Write> {
        const MAY_CHANGE: [(&str, &str); 6] = [
            ("metadata", "labels"),
            ("metadata", "annotations"),
            ("spec", "persistentVolumeReclaimPolicy"),
            ("spec", "mountOptions"),
            ("spec", "accessModes"),
            ("spec", "storageClassName"),
        ];
        let (record, written) = self.both(written, volume)?;
        let mut patch = json!({"metadata": {}, "spec": {}});
        for (part, field) in MAY_CHANGE {
            let said = &written[part][field];
            if !said.is_null() {
                patch[part][field] = said.clone();
            }
        }
        // By it the record is known as ours.
        if let Some(Value::Object(annotations)) = patch.pointer_mut("/metadata/annotations") {
            annotations.remove(PROVISIONED_BY);
        }
        (laid(record, &patch) != *record).then(|| Write::volume(volume, patch))
    }

    /// The fields that somebody has written otherwise, and that can't change.
    pub(super) fn immutable(&self, written: &Objects, volume: &str) -> Vec<&'static str> {
        let differs = |field: &&str| {
            let (record, written) = self.both(written, volume)?;
            let (there, said) = (&record["spec"][field], &written["spec"][field]);
            Some(!said.is_null() && laid(there, &without_nulls(said)) != *there)
        };
        let fields = ["csi", "claimRef", "volumeMode"].into_iter();
        fields.filter(|it| differs(it) == Some(true)).collect()
    }

    /// A volume that was made here and that somebody has written too.
    fn both<'r>(&'r self, written: &'r Objects, volume: &str) -> Option<(&'r Value, &'r Value)> {
        let key = (Kind::PersistentVolume, Name::new("", volume));
        let record = self.0.get(&key).filter(|it| is_whole(key.0, it))?;
        Some((record, written.documents.get(&key)?))
    }

    fn has_holder(&self, volume: &Value) -> bool {
        let text = |pointer| volume.pointer(pointer).and_then(Value::as_str);
        let claim = Name::new(
            text("/spec/claimRef/namespace").unwrap_or_default(),
            text("/spec/claimRef/name").unwrap_or_default(),
        );
        let uid = text("/spec/claimRef/uid");
        uid.is_some() && self.uid(&claim) == uid
    }

    /// An object's record with a write laid over it; `None` where that changes nothing. A claim has a
    /// uid from then on, and so has what was made here, which was made `now`.
    pub(super) fn next(
        &self,
        write: &Write,
        uid: impl FnOnce() -> String,
        now: impl FnOnce() -> String,
    ) -> Option<Value> {
        let Write {
            kind, name, patch, ..
        } = write;
        let before = self.get(*kind, name);
        let head = || {
            let mut metadata = json!({"name": name.name});
            if kind.is_namespaced() {
                metadata["namespace"] = json!(name.namespace);
            }
            json!({"apiVersion": kind.api_version(), "kind": kind.as_str(), "metadata": metadata})
        };
        let mut record = laid(&before.cloned().unwrap_or_else(head), patch);
        let is_ours = *kind == Kind::PersistentVolumeClaim || is_whole(*kind, &record);
        if is_ours && record.pointer("/metadata/uid").is_none() {
            record["metadata"]["uid"] = json!(uid());
        }
        // Of what has a manifest that says it.
        if is_whole(*kind, &record) && record.pointer("/metadata/creationTimestamp").is_none() {
            record["metadata"]["creationTimestamp"] = json!(now());
        }
        (before != Some(&record)).then_some(record)
    }

    pub(super) fn insert(&mut self, kind: Kind, name: Name, record: Value) {
        self.0.insert((kind, name), record);
    }

    pub(super) fn remove(&mut self, kind: Kind, name: &Name) {
        self.0.remove(&(kind, name.clone()));
    }
}

/// Whether somebody has said that it is to go.
fn is_deleted(record: &Value) -> bool {
    record.pointer("/metadata/deletionTimestamp").is_some()
}

fn is_over(kind: Kind, record: &Value, written: &Value) -> bool {
    kind == Kind::PersistentVolumeClaim && is_deleted(record) && !is_deleted(written)
}

/// How an object is isn't its author's to say: an export has it, of another day.
fn without_status(written: &Value) -> Value {
    let mut written = written.clone();
    written.as_object_mut().map(|it| it.remove("status"));
    written
}

/// A key without a value says nothing.
fn without_nulls(value: &Value) -> Value {
    let Value::Object(fields) = value else {
        return value.clone();
    };
    let said = fields.iter().filter(|(_, it)| !it.is_null());
    said.map(|(key, it)| (key.clone(), without_nulls(it)))
        .collect()
}

/// Whether nobody else writes the object: a claim that a pod brought, a volume that a driver made.
fn is_whole(kind: Kind, record: &Value) -> bool {
    let metadata = &record["metadata"];
    match kind {
        Kind::PersistentVolumeClaim => metadata.get("ownerReferences").is_some(),
        _ => metadata["annotations"].get(PROVISIONED_BY).is_some(),
    }
}

/// One over the other: maps key by key, all else as a whole. So is `status`: what isn't in the later one is over.
fn laid(base: &Value, over: &Value) -> Value {
    let (Value::Object(base), Value::Object(over)) = (base, over) else {
        return over.clone();
    };
    let mut both: Map<String, Value> = base.clone();
    for (key, value) in over {
        let value = match base.get(key) {
            Some(before) if key != "status" => laid(before, value),
            _ => value.clone(),
        };
        both.insert(key.clone(), value);
    }
    Value::Object(both)
}
