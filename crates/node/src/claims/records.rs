//! What was decided about objects, laid over what people wrote of them.
//!
//! A record is a part of an object, in that object's own shape: a claim's uid, `volumeName` and `status`, a volume's
//! `claimRef`. Objects that were made here have nobody else who writes them, and are records whole.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::provision::PROVISIONED_BY;
use super::{World, Write};
use crate::objects::manifest;
use crate::objects::{Kind, Name, Objects};

/// All of them.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Records(BTreeMap<(Kind, Name), Value>);

impl Records {
    /// What was decided about an object.
    pub(crate) fn get(&self, kind: Kind, name: &Name) -> Option<&Value> {
        self.0.get(&(kind, name.clone()))
    }

    /// Of a claim, by which volumes know it.
    pub(super) fn uid(&self, claim: &Name) -> Option<&str> {
        let claim = self.get(Kind::PersistentVolumeClaim, claim)?;
        claim.pointer("/metadata/uid")?.as_str()
    }

    /// Whether a volume was made here.
    pub(super) fn has_made(&self, volume: &str) -> bool {
        let record = self.get(Kind::PersistentVolume, &Name::new("", volume));
        record.is_some_and(|it| is_whole(Kind::PersistentVolume, it))
    }

    /// What there is: what people wrote, with this laid over it. What is laid over nothing is left out.
    pub(crate) fn view(&self, written: &Objects) -> Objects {
        let mut objects = written.clone();
        for ((kind, name), record) in &self.0 {
            let document = match written.documents.get(&(*kind, name.clone())) {
                Some(base) => laid(base, record),
                None if is_whole(*kind, record) => record.clone(),
                None => continue,
            };
            // Each of the two can be read, and so can they together: what one says of a field is read as it was.
            if let Ok(manifest) = manifest::of(document) {
                objects.insert(manifest);
            }
        }
        objects
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
            // As long as a pod has it, as Kubernetes' protection of claims does.
            Kind::PersistentVolumeClaim => {
                !world.objects.claims.contains_key(name) && !world.is_used(name)
            }
            // Who had it is known as long as that one is there: the volume's manifest may come back.
            Kind::PersistentVolume if !is_whole(*kind, record) => {
                !world.objects.volumes.contains_key(&name.name) && !self.has_holder(record)
            }
            _ => false,
        });
        gone.map(|(key, _)| key.clone())
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
