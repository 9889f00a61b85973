//! The manifests of `crust-csi` for shares.

use std::path::Path;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Container, PersistentVolumeClaim, PodSpec, ServiceAccount};
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use k8s_openapi::api::storage::v1::{CSIDriver, StorageClass};
use runcrust_tests::flags;

use crate::files::{containers, pod, read};
use crate::manifests::assert_consistent;

fn daemon_set() -> DaemonSet {
    read("csi-nfs/daemonset.yaml")
}

fn controller() -> PodSpec {
    let deployment: Deployment = read("csi-nfs/deployment.yaml");
    let spec = deployment.spec.unwrap();
    assert_eq!(spec.replicas, Some(1), "none is elected");
    assert_eq!(
        spec.selector.match_labels,
        spec.template.metadata.unwrap().labels
    );
    spec.template.spec.unwrap()
}

fn driver(containers: &[Container]) -> &Container {
    let mut all = containers.iter();
    all.find(|it| it.name == "crust-csi").unwrap()
}

fn has_argument(container: &Container, argument: &str) -> bool {
    container.args.iter().flatten().any(|it| it == argument)
}

#[test]
fn both_pods_of_the_share_driver_run_it_with_its_flags() {
    let set = daemon_set();
    assert_consistent(&set, "csi-nfs/");
    let flags = flags::long_options("crust-csi");
    let controller = controller();
    for spec in [pod(&set), &controller] {
        // The network namespace of a mount has to outlive the driver's pod.
        assert_eq!(spec.host_network, Some(true));
        assert_eq!(spec.dns_policy.as_deref(), Some("ClusterFirstWithHostNet"));
        let driver = driver(&spec.containers);
        assert!(has_argument(driver, "--driver=nfs"), "{driver:?}");
        for word in driver.args.iter().flatten() {
            let name = word.trim_start_matches("--").split('=').next().unwrap();
            assert!(flags.contains_key(name), "{word}: not one of {flags:?}");
        }
    }
    let images = [&containers(&set), &controller.containers].map(|it| driver(it).image.clone());
    assert_eq!(images[0], images[1]);
    let account: ServiceAccount = read("csi-nfs/serviceaccount.yaml");
    assert_eq!(controller.service_account_name, account.metadata.name);
}

#[test]
fn the_share_driver_is_registered_with_its_name() {
    let object: CSIDriver = read("csi-nfs/csidriver.yaml");
    let name = object.metadata.name.unwrap();
    let modes = object.spec.volume_lifecycle_modes.unwrap();
    assert_eq!(modes, ["Persistent"], "no pod chooses a server");
    let socket = format!("/var/lib/kubelet/plugins/{name}/csi.sock");
    let containers = containers(&daemon_set());
    assert!(has_argument(
        driver(&containers),
        &format!("--endpoint=unix://{socket}")
    ));
    let registration = format!("--kubelet-registration-path={socket}");
    assert!(containers.iter().any(|it| has_argument(it, &registration)));
    let set = daemon_set();
    let mut volumes = pod(&set).volumes.iter().flatten();
    let plugin = volumes.find(|volume| volume.name == "plugin").unwrap();
    let directory = &plugin.host_path.as_ref().unwrap().path;
    assert_eq!(Some(Path::new(directory)), Path::new(&socket).parent());
    for class in ["deferred", "plain"] {
        let class: StorageClass = read(&format!("csi-nfs/storageclass-{class}.yaml"));
        assert_eq!(class.provisioner, name);
        let parameters = class.parameters.unwrap();
        assert!(parameters.contains_key("server") && parameters.contains_key("share"));
    }
}

#[test]
fn only_the_provisioner_of_shares_has_a_token_and_rights() {
    let set = daemon_set();
    assert_eq!(pod(&set).automount_service_account_token, Some(false));
    let controller = controller();
    assert_eq!(controller.automount_service_account_token, Some(false));
    let has_token = |it: &&Container| {
        let mut mounts = it.volume_mounts.iter().flatten();
        mounts.any(|mount| mount.name == "token")
    };
    let containers = controller.containers.iter().filter(has_token);
    let names: Vec<&str> = containers.map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["csi-provisioner"]);
    let role: ClusterRole = read("csi-nfs/clusterrole.yaml");
    let binding: ClusterRoleBinding = read("csi-nfs/clusterrolebinding.yaml");
    assert_eq!(Some(binding.role_ref.name), role.metadata.name);
    let [subject] = binding.subjects.unwrap().try_into().unwrap();
    assert_eq!(Some(subject.name), controller.service_account_name);
}

#[test]
fn the_example_of_shares_refers_to_existing_objects() {
    let deployment: Deployment = read("csi-nfs/example/deployment.yaml");
    let spec = deployment.spec.unwrap();
    assert_eq!(
        spec.selector.match_labels,
        spec.template.metadata.unwrap().labels
    );
    let pod = spec.template.spec.unwrap();
    let class: RuntimeClass = read("base/runtimeclass.yaml");
    assert_eq!(pod.runtime_class_name, class.metadata.name);
    let claim: PersistentVolumeClaim = read("csi-nfs/example/pvc.yaml");
    let volume = pod.volumes.unwrap().remove(0);
    assert_eq!(
        Some(volume.persistent_volume_claim.unwrap().claim_name),
        claim.metadata.name
    );
    let storage: StorageClass = read("csi-nfs/storageclass-deferred.yaml");
    assert_eq!(
        claim.spec.unwrap().storage_class_name,
        storage.metadata.name
    );
}
