//! Reads the files of `deploy/kubernetes` as the API's types.

use std::path::PathBuf;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{
    Container, Namespace, PersistentVolumeClaim, Pod, PodSpec, ResourceQuota, Service,
    ServiceAccount,
};
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::api::storage::v1::{CSIDriver, StorageClass};
use runcrust_tests::kubernetes::{document, manifests, parse_strictly};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The fields that are used in a kustomization. The API has no type for it.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Kustomization {
    pub(crate) api_version: String,
    pub(crate) kind: String,
    pub(crate) resources: Vec<PathBuf>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) components: Vec<PathBuf>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) config_map_generator: Vec<ConfigMapGenerator>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) patches: Vec<serde_json::Value>,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConfigMapGenerator {
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) files: Vec<PathBuf>,
}

/// Reads a manifest as its type.
#[track_caller]
pub(crate) fn read<T: DeserializeOwned + Serialize>(name: &str) -> T {
    parse_strictly(&document(&manifests().join(name)))
        .unwrap_or_else(|error| panic!("{name}{error}"))
}

/// Reads the kustomization of a directory, whose name has to end with a `/`.
#[track_caller]
pub(crate) fn kustomization(directory: &str) -> Kustomization {
    let kustomization: Kustomization = read(&format!("{directory}kustomization.yaml"));
    let expected = if directory.starts_with("components/") {
        ("kustomize.config.k8s.io/v1alpha1", "Component")
    } else {
        ("kustomize.config.k8s.io/v1beta1", "Kustomization")
    };
    let (version, kind) = (&kustomization.api_version, &kustomization.kind);
    assert_eq!((version.as_str(), kind.as_str()), expected, "{directory}");
    kustomization
}

pub(crate) fn pod(set: &DaemonSet) -> &PodSpec {
    set.spec.as_ref().unwrap().template.spec.as_ref().unwrap()
}

pub(crate) fn containers(set: &DaemonSet) -> Vec<Container> {
    let spec = pod(set);
    let inits = spec.init_containers.iter().flatten();
    inits.chain(&spec.containers).cloned().collect()
}

const RBAC: &str = "rbac.authorization.k8s.io/v1";

/// Asserts that a manifest is valid for its `apiVersion` and `kind`.
pub(crate) fn assert_valid(name: &str) {
    let document = document(&manifests().join(name));
    let word = |key: &str| document[key].as_str().unwrap_or_default();
    match (word("apiVersion"), word("kind")) {
        ("v1", "Namespace") => drop(read::<Namespace>(name)),
        ("v1", "PersistentVolumeClaim") => drop(read::<PersistentVolumeClaim>(name)),
        ("v1", "Pod") => drop(read::<Pod>(name)),
        ("v1", "ResourceQuota") => drop(read::<ResourceQuota>(name)),
        ("v1", "Service") => drop(read::<Service>(name)),
        ("v1", "ServiceAccount") => drop(read::<ServiceAccount>(name)),
        ("apps/v1", "DaemonSet") => drop(read::<DaemonSet>(name)),
        ("apps/v1", "Deployment") => drop(read::<Deployment>(name)),
        ("apps/v1", "StatefulSet") => drop(read::<StatefulSet>(name)),
        ("node.k8s.io/v1", "RuntimeClass") => drop(read::<RuntimeClass>(name)),
        (RBAC, "ClusterRole") => drop(read::<ClusterRole>(name)),
        (RBAC, "ClusterRoleBinding") => drop(read::<ClusterRoleBinding>(name)),
        (RBAC, "Role") => drop(read::<Role>(name)),
        (RBAC, "RoleBinding") => drop(read::<RoleBinding>(name)),
        ("storage.k8s.io/v1", "CSIDriver") => drop(read::<CSIDriver>(name)),
        ("storage.k8s.io/v1", "StorageClass") => drop(read::<StorageClass>(name)),
        other => panic!("{name}: {other:?}"),
    }
}
