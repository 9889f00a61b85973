//! Pods, with `deferFSMount` (KEP-2857, "`DeferFSMount` field in Pod Spec").

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, Pod as Object, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde_json::{Value, json};

use super::manifest::{is_name, plain, twice};
use super::name::Name;

/// A pod as it is wanted.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Pod {
    pub(crate) name: Name,
    /// `metadata.uid`. A pod that was written by hand mostly has none, and gets one of its name: as a static pod of
    /// kubelet's it is the same one whenever it is read.
    pub(crate) uid: String,
    pub(crate) metadata: ObjectMeta,
    /// The specification.
    pub(crate) spec: PodSpec,
    /// Its volumes with `deferFSMount: true`, by their names.
    pub(crate) deferred: BTreeSet<String>,
}

/// The fields that Kubernetes' types don't have.
#[derive(Deserialize)]
struct Ours {
    #[serde(default)]
    spec: Spec,
}

#[derive(Default, Deserialize)]
struct Spec {
    #[serde(default)]
    volumes: Vec<Volume>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Volume {
    name: String,
    persistent_volume_claim: Option<Source>,
    ephemeral: Option<Source>,
    csi: Option<Source>,
}

#[derive(Deserialize)]
struct Source {
    #[serde(rename = "deferFSMount", default)]
    defer: Option<bool>,
}

impl Volume {
    fn is_deferred(&self) -> bool {
        let sources = [&self.persistent_volume_claim, &self.ephemeral, &self.csi];
        let mut there = sources.into_iter().flatten();
        there.any(|source| source.defer == Some(true))
    }
}

impl Pod {
    /// Reads a pod. What would be part of a path is looked at.
    pub(super) fn read(document: &Value, name: &Name) -> Result<Self, String> {
        let object: Object = plain(document)?;
        let ours: Ours = plain(document)?;
        let deferred = ours.spec.volumes.iter().filter(|it| it.is_deferred());
        let metadata = object.metadata;
        let mut spec = object.spec.ok_or("it has no spec")?;
        // It is this one's, which says so when the pod is shown.
        spec.node_name = None;
        let uid = metadata.uid.clone().filter(|uid| !uid.is_empty());
        let pod = Self {
            name: name.clone(),
            uid: uid.unwrap_or_else(|| uid_of(name)),
            metadata,
            spec,
            deferred: deferred.map(|volume| volume.name.clone()).collect(),
        };
        pod.check()?;
        Ok(pod)
    }

    fn check(&self) -> Result<(), String> {
        let spec = &self.spec;
        if !is_name(&self.uid) {
            return Err(format!("metadata.uid: {:?} is none", self.uid));
        }
        if spec.containers.is_empty() {
            return Err("spec.containers: it has none".to_owned());
        }
        let volumes = || spec.volumes.iter().flatten().map(|it| it.name.as_str());
        let containers = || self.containers().map(|it| it.name.as_str());
        for (what, name) in volumes()
            .map(|it| ("volumes", it))
            .chain(containers().map(|it| ("containers", it)))
        {
            if !is_name(name) || name.contains('.') {
                return Err(format!("spec.{what}: {name:?} is no name"));
            }
        }
        if let Some(name) = twice(volumes()) {
            return Err(format!("spec.volumes: {name:?} is there twice"));
        }
        if let Some(name) = twice(containers()) {
            return Err(format!("spec.containers: {name:?} is there twice"));
        }
        for container in self.containers() {
            for mount in container.volume_mounts.iter().flatten() {
                if !volumes().any(|name| name == mount.name) {
                    return Err(format!(
                        "container {:?}: volumeMounts: there is no volume {:?} in spec.volumes",
                        container.name, mount.name
                    ));
                }
            }
        }
        Ok(())
    }

    /// Its containers, those that begin it first.
    pub(crate) fn containers(&self) -> impl Iterator<Item = &Container> {
        let first = self.spec.init_containers.iter().flatten();
        first.chain(&self.spec.containers)
    }

    /// Whether this one is `before`, but for what is about it and who mounts its volumes.
    pub(crate) fn is_same(&self, before: &Self) -> bool {
        self.name == before.name && self.spec == before.spec
    }

    /// Returns whether this pod may replace `before`, which has the same UID and hasn't begun: only volumes may become
    /// deferred (KEP-2857), and the metadata may change.
    pub(crate) fn may_follow(&self, before: &Self) -> bool {
        self.is_same(before) && self.deferred.is_superset(&before.deferred)
    }

    /// Returns the pod's manifest.
    pub(crate) fn document(&self) -> Value {
        let Name { namespace, name } = &self.name;
        let mut document = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "uid": self.uid},
            "spec": self.spec,
        });
        for volume in &self.deferred {
            defer(&mut document, volume);
        }
        document
    }

    /// Whether it was asked to end.
    pub(crate) const fn is_deleted(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// In seconds: what its containers are given to end.
    pub(crate) fn grace(&self) -> i64 {
        const DEFAULT: i64 = 30;
        let said = self.metadata.deletion_grace_period_seconds;
        said.or(self.spec.termination_grace_period_seconds)
            .unwrap_or(DEFAULT)
            .max(0)
    }
}

/// Has a pod's document say `deferFSMount: true` of a volume.
pub(crate) fn defer(document: &mut Value, name: &str) {
    let volumes = document.pointer_mut("/spec/volumes");
    let volumes = volumes.and_then(Value::as_array_mut).into_iter().flatten();
    for volume in volumes.filter(|it| it["name"] == name) {
        for source in ["persistentVolumeClaim", "ephemeral", "csi"] {
            if let Some(Value::Object(source)) = volume.get_mut(source) {
                source.insert("deferFSMount".to_owned(), Value::Bool(true));
            }
        }
    }
}

fn uid_of(name: &Name) -> String {
    let digest = <sha2::Sha256 as sha2::Digest>::digest(name.to_string());
    let digits = hex::encode(&digest[..16]);
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &digits[part]);
    parts.join("-")
}
