use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim, Pod, ResourceQuota};
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::api::storage::v1::StorageClass;
use runcrust_tests::kubernetes::{document, manifests, parse_strictly, with_component};

use crate::files::{assert_valid, containers, kustomization, pod, read};

/// The directories with manifests.
const DIRECTORIES: [&str; 7] = [
    "base/",
    "example/",
    "csi/",
    "csi/example/",
    "csi-nfs/",
    "csi-nfs/example/",
    "components/expansion/",
];

fn daemon_set() -> DaemonSet {
    read("base/daemonset.yaml")
}

#[test]
fn every_manifest_is_valid_for_its_kind() {
    for directory in DIRECTORIES {
        for resource in kustomization(directory).resources {
            assert_valid(&format!("{directory}{}", resource.display()));
        }
    }
}

#[test]
fn a_kustomization_lists_all_files_of_its_directory() {
    for directory in DIRECTORIES {
        let kustomization = kustomization(directory);
        let generated = kustomization
            .config_map_generator
            .into_iter()
            .flat_map(|map| map.files);
        let named: BTreeSet<PathBuf> = kustomization
            .resources
            .into_iter()
            .chain(generated)
            .collect();
        let entries = fs::read_dir(manifests().join(directory))
            .unwrap()
            .map(Result::unwrap);
        let files = entries.filter(|entry| entry.file_type().unwrap().is_file());
        let existing: BTreeSet<PathBuf> = files
            .map(|entry| PathBuf::from(entry.file_name()))
            .filter(|name| name != Path::new("kustomization.yaml"))
            .collect();
        assert_eq!(named, existing, "{directory}");
    }
}

/// Asserts that labels, namespace and volumes of a `DaemonSet` match, and that images built from this tree have its
/// version as their tag.
#[track_caller]
pub(crate) fn assert_consistent(set: &DaemonSet, directory: &str) {
    let spec = set.spec.as_ref().unwrap();
    assert_eq!(
        spec.selector.match_labels,
        spec.template.metadata.as_ref().unwrap().labels
    );
    let namespace: Namespace = read(&format!("{directory}namespace.yaml"));
    assert_eq!(set.metadata.namespace, namespace.metadata.name);
    let quota: ResourceQuota = read(&format!("{directory}resourcequota.yaml"));
    assert_eq!(set.metadata.namespace, quota.metadata.namespace);
    let volumes = pod(set).volumes.iter().flatten();
    let volumes: BTreeSet<&str> = volumes.map(|volume| volume.name.as_str()).collect();
    let containers = containers(set);
    let mounts = containers
        .iter()
        .flat_map(|container| container.volume_mounts.iter().flatten());
    let mounted: BTreeSet<&str> = mounts.map(|mount| mount.name.as_str()).collect();
    assert_eq!(volumes, mounted);
    for container in &containers {
        let image = container.image.as_deref().unwrap();
        if let Some(ours) = image.strip_prefix("localhost/") {
            let (_, tag) = ours.split_once(':').unwrap();
            assert_eq!(tag, env!("CARGO_PKG_VERSION"), "{}", container.name);
        }
    }
}

#[test]
fn the_daemon_set_is_consistent() {
    let set = daemon_set();
    assert_consistent(&set, "base/");
    let maps: Vec<String> = pod(&set)
        .volumes
        .iter()
        .flatten()
        .filter_map(|volume| Some(volume.config_map.as_ref()?.name.clone()))
        .collect();
    let generated = kustomization("base/").config_map_generator;
    let generated: Vec<String> = generated
        .into_iter()
        .inspect(|map| assert_eq!(Some(&map.namespace), set.metadata.namespace.as_ref()))
        .map(|map| map.name)
        .collect();
    assert_eq!(maps, generated);
    for container in containers(&set) {
        let image = container.image.unwrap();
        assert!(image.starts_with("localhost/runcrust:"), "{image}");
    }
}

/// The class names the handler that the `DaemonSet` installs, and the example's pod names the class.
#[test]
fn the_manifests_refer_to_each_other() {
    let class: RuntimeClass = read("base/runtimeclass.yaml");
    let handler = format!("--handler={}", class.handler);
    let install = containers(&daemon_set()).remove(0);
    let command = install.command.unwrap();
    let named = command.iter().find(|word| word.starts_with("--handler"));
    assert!(named.is_none_or(|word| *word == handler), "{command:?}");
    // The default of --handler.
    assert!(named.is_some() || class.handler == "crust");

    let pod: Pod = read("example/pod.yaml");
    let spec = pod.spec.unwrap();
    assert_eq!(spec.runtime_class_name, class.metadata.name);
    let claim: PersistentVolumeClaim = read("example/pvc.yaml");
    let volume = spec.volumes.unwrap().remove(0);
    assert_eq!(
        Some(volume.persistent_volume_claim.unwrap().claim_name),
        claim.metadata.name
    );
    let storage: StorageClass = read("example/storageclass.yaml");
    assert_eq!(
        claim.spec.unwrap().storage_class_name,
        storage.metadata.name
    );
}

/// The uninstall has the arguments of the install, while the daemon keeps running.
#[test]
fn the_uninstall_reverses_the_install() {
    let kustomization = kustomization("uninstall/");
    assert_eq!(kustomization.resources, [Path::new("../base")]);
    assert_eq!(
        kustomization.components,
        [Path::new("../components/uninstall")]
    );
    let base = document(&manifests().join("base/daemonset.yaml"));
    let set: DaemonSet = parse_strictly(&with_component(base, "uninstall")).unwrap();
    let (before, after) = (containers(&daemon_set()), containers(&set));
    let [install, crust_ops] = before.as_slice() else {
        panic!("{before:?}");
    };
    let mut uninstall = install.clone();
    uninstall.name = "uninstall".into();
    let command = uninstall.command.as_mut().unwrap();
    command[1] = "uninstall".into();
    command.push("--stay".into());
    assert_eq!(after, [crust_ops.clone(), uninstall]);
    let spec = set.spec.unwrap().template.spec.unwrap();
    assert_eq!(spec.init_containers, Some(Vec::new()));
}

/// The container runtime creates a missing directory of the node, empty, unless the manifest requires it to exist.
#[test]
fn host_directories_are_required_or_created_on_purpose() {
    for name in ["base/daemonset.yaml", "csi/daemonset.yaml"] {
        let set: DaemonSet = read(name);
        for volume in pod(&set).volumes.iter().flatten() {
            let Some(host) = &volume.host_path else {
                continue;
            };
            let kind = host.type_.as_deref();
            let is_known = matches!(kind, Some("Directory" | "DirectoryOrCreate"));
            assert!(is_known, "{name}: {host:?}");
        }
    }
}
