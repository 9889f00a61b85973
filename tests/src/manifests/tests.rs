//! The manifests that the builders write conform to Kubernetes' types, except for the fields of the KEPs.

use std::path::Path;

use crust_proto::csi::v1::volume_capability::MountVolume;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::node::v1 as node;
use k8s_openapi::api::storage::v1 as storage;
use serde_json::Value;

use super::*;
use crate::csi::{CsiVolume, filesystem, mount_of};
use crate::kubernetes::{parse_strictly, yaml};

/// Parses a document and removes a field of the KEPs, which must exist.
fn without(document: &str, at: &str, field: &str) -> Value {
    let mut document = yaml(document);
    let object = document.pointer_mut(at).and_then(Value::as_object_mut);
    let removed = object.and_then(|it| it.remove(field));
    assert!(removed.is_some(), "{field} isn't at {at}: {document}");
    document
}

fn created() -> CsiVolume {
    let mut capability = filesystem("ext4");
    *mount_of(&mut capability) = MountVolume {
        fs_type: "ext4".to_owned(),
        mount_flags: vec!["nobarrier".to_owned()],
        ..MountVolume::default()
    };
    CsiVolume {
        id: "crust-0".to_owned(),
        context: [("crust.dev/defer".to_owned(), "true".to_owned())].into(),
        capacity: 32 << 20,
        capability,
        staging: "/staging".into(),
    }
}

#[test]
fn classes_conform_to_kubernetes_types() {
    let class = StorageClass::new("fast-storage");
    let read: storage::StorageClass = parse_strictly(&yaml(&class.to_string())).unwrap();
    assert_eq!(read.provisioner, crate::csi::DRIVER);
    let text = class.allow_runtime_assisted_mount(true).to_string();
    let plain = without(&text, "", "allowRuntimeAssistedMount");
    let _: storage::StorageClass = parse_strictly(&plain).unwrap();

    let class = RuntimeClass::new("microvm", "crust");
    let read: node::RuntimeClass = parse_strictly(&yaml(&class.to_string())).unwrap();
    assert_eq!(read.handler, "crust");
    let text = class.fs_mgmt_socket(Path::new("/run/c")).to_string();
    assert_eq!(yaml(&text)["fsMgmtSocket"], "/run/c");
    let _: node::RuntimeClass = parse_strictly(&without(&text, "", "fsMgmtSocket")).unwrap();

    let made = StorageClass::new("made").immediate().parameter("a/b: c");
    let read: storage::StorageClass = parse_strictly(&yaml(&made.to_string())).unwrap();
    assert_eq!(read.volume_binding_mode.as_deref(), Some("Immediate"));
    assert_eq!(read.parameters.unwrap()["a/b"], "c");

    let driver: storage::CSIDriver =
        parse_strictly(&yaml(&CsiDriver::with("None").to_string())).unwrap();
    assert_eq!(driver.spec.fs_group_policy.as_deref(), Some("None"));
}

#[test]
fn a_claim_is_bound_to_a_created_volume() {
    let volume = Volume::new("pv-1", &created())
        .class("fast")
        .mode("ReadWriteOncePod");
    let claim = volume.claim("data").request(48 << 20).to_string();
    let read: core::PersistentVolume = parse_strictly(&yaml(&volume.to_string())).unwrap();
    let spec = read.spec.unwrap();
    assert_eq!(spec.access_modes.unwrap(), ["ReadWriteOncePod"]);
    assert_eq!(spec.mount_options.unwrap(), ["nobarrier"]);
    assert_eq!(spec.capacity.unwrap()["storage"].0, "32Mi");
    let csi = spec.csi.unwrap();
    assert_eq!(
        (csi.volume_handle.as_str(), csi.fs_type.as_deref()),
        ("crust-0", Some("ext4"))
    );
    assert_eq!(csi.volume_attributes.unwrap()["crust.dev/defer"], "true");
    let claim: core::PersistentVolumeClaim = parse_strictly(&yaml(&claim)).unwrap();
    let spec = claim.spec.unwrap();
    assert_eq!(spec.volume_name.as_deref(), Some("pv-1"));
    assert_eq!(
        spec.resources.unwrap().requests.unwrap()["storage"].0,
        "48Mi"
    );
}

#[test]
fn a_claim_asks_for_a_volume_of_a_class() {
    let claim = Claim::of_class("data", "fast", 48 << 20).mode("ReadWriteOncePod");
    let read: core::PersistentVolumeClaim = parse_strictly(&yaml(&claim.to_string())).unwrap();
    let spec = read.spec.unwrap();
    assert_eq!(spec.access_modes.unwrap(), ["ReadWriteOncePod"]);
    assert_eq!(spec.storage_class_name.as_deref(), Some("fast"));
    assert_eq!(spec.volume_name, None);
}

#[test]
fn a_pod_has_the_given_fields() {
    let plain: core::Pod = parse_strictly(&yaml(&Pod::new("web").to_string())).unwrap();
    assert_eq!(plain.spec.unwrap().host_network, Some(true));

    let pod = Pod::new("web")
        .class("microvm")
        .restart_policy("Never")
        .fs_group(100)
        .change_policy("OnRootMismatch")
        .script("echo \"it's: {a}\"\nsleep 1")
        .deferred("data")
        .claim_as("logs", "readOnly: true")
        .volume("inline", "csi: {driver: csi.example}")
        .mount("data", "/data")
        .mount_as("data", "/part", "subPath: a/b, readOnly: true");
    let document = without(
        &pod.to_string(),
        "/spec/volumes/0/persistentVolumeClaim",
        "deferFSMount",
    );
    let read: core::Pod = parse_strictly(&document).unwrap();
    assert_eq!(read.metadata.uid, Some(pod.uid()));
    let spec = read.spec.unwrap();
    assert_eq!(spec.runtime_class_name.as_deref(), Some("microvm"));
    let security = spec.security_context.unwrap();
    assert_eq!(security.fs_group, Some(100));
    let volumes = spec.volumes.unwrap();
    let names: Vec<&str> = volumes.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["data", "logs", "inline"]);
    let app = &spec.containers[0];
    let script = app.command.as_ref().unwrap().last().unwrap();
    assert_eq!(script, "echo \"it's: {a}\"\nsleep 1");
    let mounts = app.volume_mounts.as_ref().unwrap();
    assert_eq!(mounts[1].sub_path.as_deref(), Some("a/b"));
}

#[test]
fn a_pod_has_several_containers() {
    let mounts = [("data", "/data")];
    let pod = Pod::new("web")
        .claim("data")
        .init("first", "echo 'a: b'", &mounts)
        .variable("PART", "a: {b}")
        .mount_as("data", "/data", "subPathExpr: $(PART)")
        .add_container("second", "sleep 1", &mounts);
    let read: core::Pod = parse_strictly(&yaml(&pod.to_string())).unwrap();
    let spec = read.spec.unwrap();
    let names: Vec<&str> = spec.containers.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["app", "second"]);
    let variables = spec.containers[0].env.as_ref().unwrap();
    assert_eq!(variables[0].value.as_deref(), Some("a: {b}"));
    let first = &spec.init_containers.unwrap()[0];
    assert_eq!(first.command.as_ref().unwrap()[2], "echo 'a: b'");
    assert_eq!(first.volume_mounts.as_ref().unwrap()[0].mount_path, "/data");
}

#[test]
fn a_file_has_several_documents() {
    let class = RuntimeClass::new("microvm", "crust");
    let pod = Pod::new("web");
    let text = documents(&[&class, &pod]);
    let read: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    let kinds: Vec<&Value> = read.iter().map(|it| &it["kind"]).collect();
    assert_eq!(kinds, ["RuntimeClass", "Pod"]);
}
