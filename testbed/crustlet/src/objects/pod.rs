//! Pods, with `deferFSMount` (KEP-2857, "`DeferFSMount` field in Pod Spec").

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, Pod as Object, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde_json::{Value, json};

use super::manifest::{deserialize, find_duplicate, is_name};
use super::name::Name;

/// A pod of a manifest.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Pod {
    pub(crate) name: Name,
    /// `metadata.uid`. A pod without one gets a UID that is derived from its name, so that the UID is the same each
    /// time the manifest is read. A static pod of kubelet gets a derived UID, too.
    pub(crate) uid: String,
    pub(crate) metadata: ObjectMeta,
    pub(crate) spec: PodSpec,
    /// The names of the volumes with `deferFSMount: true`.
    pub(crate) deferred: BTreeSet<String>,
}

/// The fields that the types of k8s-openapi lack.
#[derive(Deserialize)]
struct ExtraFields {
    #[serde(default)]
    spec: ExtraSpec,
}

#[derive(Default, Deserialize)]
struct ExtraSpec {
    #[serde(default)]
    volumes: Vec<ExtraVolume>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExtraVolume {
    name: String,
    persistent_volume_claim: Option<ExtraSource>,
    ephemeral: Option<ExtraSource>,
    csi: Option<ExtraSource>,
}

#[derive(Deserialize)]
struct ExtraSource {
    #[serde(rename = "deferFSMount", default)]
    defer: Option<bool>,
}

impl ExtraVolume {
    fn is_deferred(&self) -> bool {
        let sources = [&self.persistent_volume_claim, &self.ephemeral, &self.csi];
        let mut sources = sources.into_iter().flatten();
        sources.any(|source| source.defer == Some(true))
    }
}

impl Pod {
    /// Converts and checks a pod's document.
    pub(super) fn read(document: &Value, name: &Name) -> Result<Self, String> {
        let object: Object = deserialize(document)?;
        let extra: ExtraFields = deserialize(document)?;
        let deferred = extra
            .spec
            .volumes
            .iter()
            .filter(|volume| volume.is_deferred());
        let metadata = object.metadata;
        let mut spec = object.spec.ok_or("the pod has no spec")?;
        // The pod runs on this node. The node's name is added when the pod is shown.
        spec.node_name = None;
        let uid = metadata.uid.clone().filter(|uid| !uid.is_empty());
        let pod = Self {
            name: name.clone(),
            uid: uid.unwrap_or_else(|| uid_from_name(name)),
            metadata,
            spec,
            deferred: deferred.map(|volume| volume.name.clone()).collect(),
        };
        pod.check()?;
        Ok(pod)
    }

    /// Checks everything that becomes part of a path, and the references to volumes.
    fn check(&self) -> Result<(), String> {
        let spec = &self.spec;
        if !is_name(&self.uid) {
            return Err(format!("metadata.uid: {:?} is not a valid UID", self.uid));
        }
        if spec.containers.is_empty() {
            return Err("spec.containers is empty".to_owned());
        }
        let volumes = || {
            spec.volumes
                .iter()
                .flatten()
                .map(|volume| volume.name.as_str())
        };
        let containers = || self.containers().map(|container| container.name.as_str());
        for (field, name) in volumes()
            .map(|name| ("volumes", name))
            .chain(containers().map(|name| ("containers", name)))
        {
            if !is_name(name) || name.contains('.') {
                return Err(format!("spec.{field}: {name:?} is not a valid name"));
            }
        }
        if let Some(name) = find_duplicate(volumes()) {
            return Err(format!("spec.volumes: two volumes have the name {name:?}"));
        }
        if let Some(name) = find_duplicate(containers()) {
            return Err(format!(
                "spec.containers: two containers have the name {name:?}"
            ));
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

    /// Returns the init containers, followed by the app containers.
    pub(crate) fn containers(&self) -> impl Iterator<Item = &Container> {
        let init = self.spec.init_containers.iter().flatten();
        init.chain(&self.spec.containers)
    }

    /// Returns whether an existing pod has the same name and specification, apart from the deferred volumes.
    pub(crate) fn has_same_spec(&self, existing: &Self) -> bool {
        self.name == existing.name && self.spec == existing.spec
    }

    /// Returns whether this pod may replace an existing one that hasn't started: volumes may become deferred
    /// (KEP-2857), and the metadata may change.
    pub(crate) fn may_replace(&self, existing: &Self) -> bool {
        self.has_same_spec(existing) && self.deferred.is_superset(&existing.deferred)
    }

    /// Returns the pod's document.
    pub(crate) fn document(&self) -> Value {
        let Name { namespace, name } = &self.name;
        let mut document = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "uid": self.uid},
            "spec": self.spec,
        });
        for volume in &self.deferred {
            set_deferred(&mut document, volume);
        }
        document
    }

    /// Returns whether the pod is being deleted.
    pub(crate) const fn is_deleted(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Returns the time that the containers have to end, in seconds.
    pub(crate) fn grace(&self) -> i64 {
        const DEFAULT: i64 = 30;
        let deletion = self.metadata.deletion_grace_period_seconds;
        deletion
            .or(self.spec.termination_grace_period_seconds)
            .unwrap_or(DEFAULT)
            .max(0)
    }
}

/// Sets `deferFSMount: true` in a volume of a pod's document.
pub(crate) fn set_deferred(document: &mut Value, name: &str) {
    let volumes = document.pointer_mut("/spec/volumes");
    let volumes = volumes.and_then(Value::as_array_mut).into_iter().flatten();
    for volume in volumes.filter(|volume| volume["name"] == name) {
        for source in ["persistentVolumeClaim", "ephemeral", "csi"] {
            if let Some(Value::Object(source)) = volume.get_mut(source) {
                source.insert("deferFSMount".to_owned(), Value::Bool(true));
            }
        }
    }
}

fn uid_from_name(name: &Name) -> String {
    let digest = <sha2::Sha256 as sha2::Digest>::digest(name.to_string());
    let digits = hex::encode(&digest[..16]);
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &digits[part]);
    parts.join("-")
}
