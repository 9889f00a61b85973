//! The objects of a scenario. Manifests name the classes and the image that the project's own manifests and examples
//! have; they are adapted to those of the cluster.

use anyhow::{Context, Result, anyhow, bail};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Namespace, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::api::storage::v1::{CSIDriver, StorageClass};
use kube::api::{ApiResource, DynamicObject};
use serde_json::{Value, json};

use crate::arguments::Arguments;

/// The names that stand for the cluster's in manifests.
const RUNTIME_CLASS: &str = "crust";
const STORAGE_CLASS: &str = "crust-deferred";
const NFS_STORAGE_CLASS: &str = "crust-nfs-deferred";
const IMAGE: &str = "busybox";

/// The size of a claim that gives none. Every file system of crust-csi's default class can be made on it.
const CLAIM_SIZE: &str = "64Mi";

/// Returns the resource of a kind.
pub(crate) fn resource(kind: &str) -> Result<ApiResource> {
    Ok(match kind {
        "CSIDriver" => ApiResource::erase::<CSIDriver>(&()),
        "DaemonSet" => ApiResource::erase::<DaemonSet>(&()),
        "Deployment" => ApiResource::erase::<Deployment>(&()),
        "Job" => ApiResource::erase::<Job>(&()),
        "Namespace" => ApiResource::erase::<Namespace>(&()),
        "PersistentVolume" => ApiResource::erase::<PersistentVolume>(&()),
        "PersistentVolumeClaim" => ApiResource::erase::<PersistentVolumeClaim>(&()),
        "Pod" => ApiResource::erase::<Pod>(&()),
        "RuntimeClass" => ApiResource::erase::<RuntimeClass>(&()),
        "StatefulSet" => ApiResource::erase::<StatefulSet>(&()),
        "StorageClass" => ApiResource::erase::<StorageClass>(&()),
        _ => bail!("the suite has no objects of kind {kind}"),
    })
}

/// Reads the objects of a manifest.
pub(crate) fn read(manifest: &str) -> Result<Vec<Value>> {
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(manifest).map_err(|error| anyhow!("{error}"))?;
    Ok(documents)
}

/// Returns an object of a manifest, by its kind and name: `Pod/a`.
pub(crate) fn find(manifest: &str, wanted: &str) -> Result<Value> {
    let objects = read(manifest)?;
    let found = objects.into_iter().find(|object| id(object) == wanted);
    found.with_context(|| format!("the scenario's manifest has no {wanted}"))
}

/// Returns kind and name of an object: `Pod/a`.
pub(crate) fn id(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    format!(
        "{}/{}",
        text(&object["kind"]),
        text(&object["metadata"]["name"])
    )
}

/// Adapts an object to the cluster: its classes, image and node. Fills in what every pod and claim of the suite has.
pub(crate) fn adapt(mut object: Value, arguments: &Arguments, node: &str) -> Result<DynamicObject> {
    match object["kind"].as_str() {
        Some("Pod") => adapt_pod(&mut object["spec"], arguments, node),
        Some("PersistentVolumeClaim") => adapt_claim(&mut object["spec"], arguments),
        Some("Deployment" | "StatefulSet" | "Job") => {
            adapt_pod(&mut object["spec"]["template"]["spec"], arguments, node);
            if let Some(claims) = object["spec"]["volumeClaimTemplates"].as_array_mut() {
                for claim in claims {
                    adapt_claim(&mut claim["spec"], arguments);
                }
            }
        }
        _ => {}
    }
    remove_nulls(&mut object);
    serde_json::from_value(object).context("a manifest of the suite")
}

fn adapt_pod(spec: &mut Value, arguments: &Arguments, node: &str) {
    if spec["runtimeClassName"] == RUNTIME_CLASS {
        spec["runtimeClassName"] = json!(arguments.runtime_class);
    }
    // By its name: the label kubernetes.io/hostname can have another value.
    let field = json!({"key": "metadata.name", "operator": "In", "values": [node]});
    let required = json!({"nodeSelectorTerms": [{"matchFields": [field]}]});
    spec["affinity"] =
        json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}});
    spec["automountServiceAccountToken"] = json!(false);
    if spec["terminationGracePeriodSeconds"].is_null() {
        spec["terminationGracePeriodSeconds"] = json!(1);
    }
    for list in ["initContainers", "containers"] {
        let containers = spec.get_mut(list).and_then(Value::as_array_mut);
        containers
            .into_iter()
            .flatten()
            .for_each(|it| adapt_container(it, arguments));
    }
    let volumes = spec.get_mut("volumes").and_then(Value::as_array_mut);
    for volume in volumes.into_iter().flatten() {
        let template = volume.pointer_mut("/ephemeral/volumeClaimTemplate/spec");
        if let Some(claim) = template {
            adapt_claim(claim, arguments);
        }
    }
}

/// Adapts a container, also an ephemeral one.
pub(crate) fn adapt_container(container: &mut Value, arguments: &Arguments) {
    if container["image"] == IMAGE {
        container["image"] = json!(arguments.image);
    }
    container["imagePullPolicy"] = json!("IfNotPresent");
}

fn adapt_claim(spec: &mut Value, arguments: &Arguments) {
    let class = match spec["storageClassName"].as_str() {
        Some(STORAGE_CLASS) => Some(&arguments.storage_class),
        Some(NFS_STORAGE_CLASS) => Some(&arguments.nfs_storage_class),
        _ => None,
    };
    if let Some(class) = class {
        spec["storageClassName"] = json!(class);
    }
    if spec["accessModes"].is_null() {
        spec["accessModes"] = json!(["ReadWriteOnce"]);
    }
    if spec["resources"].is_null() {
        spec["resources"] = json!({"requests": {"storage": CLAIM_SIZE}});
    }
}

/// Removes the fields without a value. Indexing a missing field of an object adds it.
fn remove_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, field| !field.is_null());
            fields.values_mut().for_each(remove_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_nulls),
        _ => {}
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use clap::Parser;
    use k8s_openapi::serde::Serialize;
    use k8s_openapi::serde::de::DeserializeOwned;

    use super::*;

    /// Checks that an object has only fields of its type: the type's form contains nothing else.
    fn check<T: Serialize + DeserializeOwned>(object: &Value) {
        let typed: T = serde_json::from_value(object.clone())
            .unwrap_or_else(|error| panic!("{}: {error}", id(object)));
        assert_eq!(
            &serde_json::to_value(typed).unwrap(),
            object,
            "{}",
            id(object)
        );
    }

    /// Checks an object that was adapted to a cluster against the API's types.
    pub(crate) fn check_strictly(object: &Value) {
        match object["kind"].as_str().unwrap_or_default() {
            "Deployment" => check::<Deployment>(object),
            "Job" => check::<Job>(object),
            "PersistentVolumeClaim" => check::<PersistentVolumeClaim>(object),
            "Pod" => check::<Pod>(object),
            "StatefulSet" => check::<StatefulSet>(object),
            "StorageClass" => check::<StorageClass>(object),
            other => panic!("{other}"),
        }
    }

    #[test]
    fn objects_get_the_classes_image_and_node_of_the_cluster() {
        let line = "crust-e2e --runtime-class kata --storage-class slow --image mirror/busybox:1";
        let arguments = Arguments::parse_from(line.split(' '));
        let manifest = "
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {storageClassName: crust-deferred}
---
kind: Pod
metadata: {name: a}
spec:
  runtimeClassName: crust
  containers: [{name: c, image: busybox}]
  volumes:
  - name: v
    ephemeral: {volumeClaimTemplate: {spec: {storageClassName: crust-deferred, accessModes: [ReadWriteMany]}}}
---
kind: Pod
metadata: {name: b}
spec: {terminationGracePeriodSeconds: 7, containers: [{name: c, image: other}]}
";
        let adapted = |name| {
            let object = adapt(find(manifest, name).unwrap(), &arguments, "node-1").unwrap();
            serde_json::to_value(object).unwrap()["spec"].clone()
        };
        let requests = json!({"requests": {"storage": "64Mi"}});
        let claim = json!({"storageClassName": "slow", "accessModes": ["ReadWriteOnce"], "resources": requests});
        assert_eq!(adapted("PersistentVolumeClaim/data"), claim);
        let pod = adapted("Pod/a");
        assert_eq!(pod["runtimeClassName"], "kata");
        assert!(pod["affinity"].to_string().contains("node-1"), "{pod}");
        assert_eq!(pod["containers"][0]["image"], "mirror/busybox:1");
        let claim = &pod["volumes"][0]["ephemeral"]["volumeClaimTemplate"]["spec"];
        assert_eq!(claim["storageClassName"], "slow");
        assert_eq!(claim["accessModes"], json!(["ReadWriteMany"]));
        let other = adapted("Pod/b");
        assert_eq!(other["terminationGracePeriodSeconds"], 7);
        assert_eq!(other["containers"][0]["image"], "other");
        assert!(other.get("runtimeClassName").is_none(), "{other}");
        let missing = find(manifest, "Pod/c").unwrap_err().to_string();
        assert!(missing.contains("Pod/c"), "{missing}");
    }
}
