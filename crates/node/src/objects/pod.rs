//! Pods, with `deferFSMount` (KEP-2857, "`DeferFSMount` field in Pod Spec").

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Pod as Object, PodSpec};
use serde::Deserialize;
use serde_json::Value;

use super::manifest::{is_name, plain, twice};
use super::name::Name;

/// A pod as it is wanted.
#[derive(Debug, Clone, PartialEq)]
pub struct Pod {
    /// As Kubernetes has it.
    pub object: Object,
    /// Its volumes with `deferFSMount: true`, by their names.
    pub deferred: BTreeSet<String>,
}

/// What the types of Kubernetes don't have.
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

impl Pod {
    /// Reads a pod. What would be part of a path is looked at.
    pub(super) fn read(document: &Value) -> Result<Self, String> {
        let object: Object = plain(document)?;
        let ours: Ours = plain(document)?;
        let of = |volume: &Volume| {
            [
                &volume.persistent_volume_claim,
                &volume.ephemeral,
                &volume.csi,
            ]
            .map(|source| {
                source
                    .as_ref()
                    .is_some_and(|source| source.defer == Some(true))
            })
        };
        let deferred = ours.spec.volumes.iter().filter(|it| of(it).contains(&true));
        let deferred = deferred.map(|volume| volume.name.clone()).collect();
        let pod = Self { object, deferred };
        pod.check()?;
        Ok(pod)
    }

    fn check(&self) -> Result<(), String> {
        let spec = self.object.spec.as_ref().ok_or("it has no spec")?;
        if let Some(uid) = self
            .object
            .metadata
            .uid
            .as_deref()
            .filter(|uid| !is_name(uid))
        {
            return Err(format!("metadata.uid: {uid:?} is none"));
        }
        if spec.containers.is_empty() {
            return Err("spec.containers: it has none".to_owned());
        }
        let volumes = || spec.volumes.iter().flatten().map(|it| it.name.as_str());
        let containers = spec
            .containers
            .iter()
            .chain(spec.init_containers.iter().flatten());
        let containers = || containers.clone().map(|it| it.name.as_str());
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
        for container in spec
            .containers
            .iter()
            .chain(spec.init_containers.iter().flatten())
        {
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

    /// Its name.
    #[must_use]
    pub fn name(&self) -> Name {
        let metadata = &self.object.metadata;
        let namespace = metadata.namespace.as_deref().filter(|it| !it.is_empty());
        Name::new(
            namespace.unwrap_or(super::manifest::DEFAULT_NAMESPACE),
            metadata.name.as_deref().unwrap_or_default(),
        )
    }

    /// `metadata.uid`. A pod that was written by hand mostly has none, and gets one of its name: as a static pod of
    /// kubelet's it is the same one whenever it is read.
    #[must_use]
    pub fn uid(&self) -> String {
        self.object
            .metadata
            .uid
            .clone()
            .filter(|uid| !uid.is_empty())
            .unwrap_or_else(|| {
                let digest = <sha2::Sha256 as sha2::Digest>::digest(self.name().to_string());
                let digits = hex::encode(&digest[..16]);
                let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &digits[part]);
                parts.join("-")
            })
    }

    /// What it consists of.
    #[must_use]
    pub fn spec(&self) -> &PodSpec {
        // It was looked at when it was read.
        static NONE: std::sync::LazyLock<PodSpec> = std::sync::LazyLock::new(PodSpec::default);
        self.object.spec.as_ref().unwrap_or(&NONE)
    }

    /// Whether it was asked to end.
    #[must_use]
    pub const fn is_deleted(&self) -> bool {
        self.object.metadata.deletion_timestamp.is_some()
    }

    /// In seconds: what its containers are given to end.
    #[must_use]
    pub fn grace(&self) -> i64 {
        const DEFAULT: i64 = 30;
        let said = self.object.metadata.deletion_grace_period_seconds;
        said.or(self.spec().termination_grace_period_seconds)
            .unwrap_or(DEFAULT)
            .max(0)
    }
}
