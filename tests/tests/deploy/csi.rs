//! The manifests of `crust-csi`, compared with the program that they run.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crust_proto::csi::v1::controller_client::ControllerClient;
use crust_proto::csi::v1::controller_service_capability::rpc::Type as ControllerType;
use crust_proto::csi::v1::identity_client::IdentityClient;
use crust_proto::csi::v1::node_client::NodeClient;
use crust_proto::csi::v1::node_service_capability::rpc::Type as NodeType;
use crust_proto::csi::v1::{
    ControllerGetCapabilitiesRequest, GetCapacityRequest, GetPluginInfoRequest,
    NodeGetCapabilitiesRequest, NodeGetInfoRequest, controller_service_capability,
    node_service_capability,
};
use k8s_openapi::api::apps::v1::{DaemonSet, StatefulSet};
use k8s_openapi::api::core::v1::{Container, PodSpec, Service, ServiceAccount, VolumeMount};
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::api::storage::v1::{CSIDriver, StorageClass};
use runcrust_tests::cleanup::Cleanup;
use runcrust_tests::kubernetes::{document, manifests, parse_strictly, with_component};
use runcrust_tests::{TestDir, binary, flags, wait_until};
use tonic::transport::{Channel, Endpoint};

use crate::files::{containers, pod, read};
use crate::manifests::assert_consistent;

const START_TIMEOUT: Duration = Duration::from_secs(30);
const KUBELET: &str = "/var/lib/kubelet";

fn daemon_set() -> DaemonSet {
    read("csi/daemonset.yaml")
}

fn classes() -> [StorageClass; 2] {
    ["deferred", "plain"].map(|name| read(&format!("csi/storageclass-{name}.yaml")))
}

fn container(set: &DaemonSet, name: &str) -> Container {
    let mut all = containers(set).into_iter();
    let found = all.find(|container| container.name == name);
    found.unwrap_or_else(|| panic!("no container {name}"))
}

/// Returns the value of the argument `--name=value`.
fn argument(container: &Container, name: &str) -> Option<String> {
    let mut words = container.args.iter().flatten();
    let found = words.find_map(|word| word.strip_prefix(&format!("--{name}=")));
    found.map(str::to_owned)
}

fn default_of(name: &str) -> String {
    let default = flags::long_options("crust-csi").remove(name).flatten();
    default.unwrap_or_else(|| panic!("--{name} has no default"))
}

fn endpoint(set: &DaemonSet) -> PathBuf {
    let endpoint = argument(&container(set, "crust-csi"), "endpoint").unwrap();
    endpoint.strip_prefix("unix://").unwrap().into()
}

/// Returns the path on the node that a container's mount shows.
fn host_path(spec: &PodSpec, mount: &VolumeMount) -> Option<PathBuf> {
    let mut volumes = spec.volumes.iter().flatten();
    let volume = volumes.find(|volume| volume.name == mount.name).unwrap();
    Some(volume.host_path.as_ref()?.path.clone().into())
}

#[test]
fn the_daemon_set_of_the_driver_is_consistent() {
    let set = daemon_set();
    assert_consistent(&set, "csi/");
    let image = container(&set, "crust-csi").image.unwrap();
    assert!(image.starts_with("localhost/crust-csi:"), "{image}");
    let account: ServiceAccount = read("csi/serviceaccount.yaml");
    assert_eq!(pod(&set).service_account_name, account.metadata.name);
    assert_eq!(set.metadata.namespace, account.metadata.namespace);
}

#[test]
fn the_driver_has_the_flags_of_the_daemon_set() {
    let flags = flags::long_options("crust-csi");
    assert!(flags.contains_key("data-dir"), "{flags:?}");
    let driver = container(&daemon_set(), "crust-csi");
    for word in driver.args.unwrap() {
        let name = word.trim_start_matches("--").split('=').next().unwrap();
        assert!(flags.contains_key(name), "{word}: not one of {flags:?}");
    }
    // The node's name for the scheduler.
    let env = driver.env.unwrap().remove(0);
    assert_eq!(env.name, "NODE_NAME");
    let field = env.value_from.unwrap().field_ref.unwrap();
    assert_eq!(field.field_path, "spec.nodeName");
}

/// The driver passes paths to kubelet, `crust_ops` and the runtime, so it has to see them at the same place.
#[test]
fn the_driver_sees_the_node_at_its_own_paths() {
    let set = daemon_set();
    let driver = container(&set, "crust-csi");
    assert_eq!(driver.security_context.unwrap().privileged, Some(true));
    let mounts = driver.volume_mounts.unwrap();
    let propagation: BTreeMap<&Path, Option<&str>> = mounts
        .iter()
        .inspect(|mount| {
            let host = host_path(pod(&set), mount).unwrap();
            assert_eq!(host, Path::new(&mount.mount_path));
            assert_ne!(mount.read_only, Some(true), "{mount:?}");
        })
        .map(|mount| {
            (
                Path::new(&mount.mount_path),
                mount.mount_propagation.as_deref(),
            )
        })
        .collect();
    // Files are moved from target paths to the quarantine with rename(2), which needs one mount for both.
    let is_below_kubelet = |path: &&&Path| path.starts_with(KUBELET);
    assert_eq!(propagation.keys().filter(is_below_kubelet).count(), 1);
    assert_eq!(propagation[Path::new(KUBELET)], Some("Bidirectional"));
    assert_eq!(propagation[Path::new("/dev")], None);
    assert_eq!(propagation[Path::new("/run")], Some("HostToContainer"));
    let is_mounted = |path: &str| {
        propagation
            .keys()
            .any(|mount| Path::new(path).starts_with(mount))
    };
    for name in ["data-dir", "crust-ops", "crust-root"] {
        let path = default_of(name);
        assert!(is_mounted(&path), "{path}: below none of {propagation:?}");
    }
}

#[test]
fn sidecars_find_the_socket_and_have_no_capabilities() {
    let set = daemon_set();
    let endpoint = endpoint(&set);
    let driver: CSIDriver = read("csi/csidriver.yaml");
    let plugin = Path::new(KUBELET)
        .join("plugins")
        .join(driver.metadata.name.unwrap());
    assert_eq!(endpoint.parent(), Some(plugin.as_path()));
    let sidecars = containers(&set)
        .into_iter()
        .filter(|it| it.name != "crust-csi");
    for sidecar in sidecars {
        let name = &sidecar.name;
        let address = PathBuf::from(argument(&sidecar, "csi-address").unwrap());
        let mut mounts = sidecar.volume_mounts.iter().flatten();
        let directory = address.parent().unwrap();
        let mount = mounts.find(|mount| Path::new(&mount.mount_path) == directory);
        assert_eq!(
            host_path(pod(&set), mount.unwrap()),
            Some(plugin.clone()),
            "{name}"
        );
        assert_eq!(address.file_name(), endpoint.file_name(), "{name}");
        let security = sidecar.security_context.clone().unwrap();
        assert_eq!(
            (security.privileged, security.run_as_user),
            (None, Some(0)),
            "{name}"
        );
        assert_eq!(security.allow_privilege_escalation, Some(false), "{name}");
        assert_eq!(
            security.capabilities.unwrap().drop,
            Some(vec!["ALL".to_owned()]),
            "{name}"
        );
    }
    let registrar = container(&set, "node-driver-registrar");
    let registered = argument(&registrar, "kubelet-registration-path").unwrap();
    assert_eq!(Path::new(&registered), endpoint);
    let probe = container(&set, "liveness-probe");
    let port = container(&set, "crust-csi")
        .ports
        .unwrap()
        .remove(0)
        .container_port;
    assert_eq!(argument(&probe, "health-port"), Some(port.to_string()));
}

/// The driver is root on its node and does not use the API server.
#[test]
fn only_the_provisioner_has_a_token() {
    let set = daemon_set();
    assert_eq!(pod(&set).automount_service_account_token, Some(false));
    let with_token = |it: &Container| {
        it.volume_mounts
            .iter()
            .flatten()
            .any(|it| it.name == "token")
    };
    let names: Vec<String> = containers(&set)
        .into_iter()
        .filter(with_token)
        .map(|container| container.name)
        .collect();
    assert_eq!(names, ["csi-provisioner"]);
}

#[test]
fn rights_are_given_to_the_drivers_account() {
    let account: ServiceAccount = read("csi/serviceaccount.yaml");
    let account_name = account.metadata.name.unwrap();
    let check = |subjects: Option<Vec<k8s_openapi::api::rbac::v1::Subject>>| {
        let [subject] = subjects.unwrap().try_into().unwrap();
        assert_eq!(
            (subject.kind, subject.name),
            ("ServiceAccount".to_owned(), account_name.clone())
        );
        assert_eq!(subject.namespace, account.metadata.namespace);
    };
    for directory in ["csi", "components/expansion"] {
        let role: ClusterRole = read(&format!("{directory}/clusterrole.yaml"));
        let binding: ClusterRoleBinding = read(&format!("{directory}/clusterrolebinding.yaml"));
        assert_eq!(Some(binding.role_ref.name), role.metadata.name);
        check(binding.subjects);
    }
    let role: Role = read("csi/role.yaml");
    let binding: RoleBinding = read("csi/rolebinding.yaml");
    assert_eq!(Some(binding.role_ref.name), role.metadata.name);
    assert_eq!(role.metadata.namespace, account.metadata.namespace);
    check(binding.subjects);
}

#[test]
fn the_expansion_component_only_adds_a_resizer() {
    let base = document(&manifests().join("csi/daemonset.yaml"));
    let set: DaemonSet = parse_strictly(&with_component(base, "expansion")).unwrap();
    assert_consistent(&set, "csi/");
    let (before, mut after) = (containers(&daemon_set()), containers(&set));
    let resizer = after.pop().unwrap();
    assert_eq!(after, before);
    assert_eq!(resizer.name, "csi-resizer");
    assert_eq!(resizer.env, None);
    let provisioner = container(&set, "csi-provisioner");
    assert_eq!(resizer.volume_mounts, provisioner.volume_mounts);
    assert_eq!(
        argument(&resizer, "csi-address"),
        argument(&provisioner, "csi-address")
    );
}

/// The example names a handler, a class and a driver of the other manifests.
#[test]
fn the_example_refers_to_existing_objects() {
    let set: StatefulSet = read("csi/example/statefulset.yaml");
    let spec = set.spec.unwrap();
    let service: Service = read("csi/example/service.yaml");
    assert_eq!(spec.service_name, service.metadata.name);
    let labels = spec.template.metadata.unwrap().labels;
    assert_eq!(spec.selector.match_labels, labels);
    assert_eq!(service.spec.unwrap().selector, labels);
    let pod = spec.template.spec.unwrap();
    let class: RuntimeClass = read("base/runtimeclass.yaml");
    assert_eq!(pod.runtime_class_name, class.metadata.name);
    assert!(pod.security_context.unwrap().fs_group.is_some());
    let [claim] = spec.volume_claim_templates.unwrap().try_into().unwrap();
    let [deferred, _] = classes();
    assert_eq!(
        claim.spec.unwrap().storage_class_name,
        deferred.metadata.name
    );
    let mounts = pod
        .containers
        .iter()
        .flat_map(|it| it.volume_mounts.iter().flatten());
    let volumes: BTreeSet<Option<&str>> = mounts.clone().map(|it| Some(it.name.as_str())).collect();
    assert_eq!(volumes, BTreeSet::from([claim.metadata.name.as_deref()]));
    assert!(mounts.clone().any(|mount| mount.sub_path.is_some()));
}

#[test]
fn both_classes_wait_for_a_pod_and_let_claims_grow() {
    let driver: CSIDriver = read("csi/csidriver.yaml");
    for class in classes() {
        let name = class.metadata.name;
        assert_eq!(
            Some(&class.provisioner),
            driver.metadata.name.as_ref(),
            "{name:?}"
        );
        let binding = class.volume_binding_mode.as_deref();
        assert_eq!(binding, Some("WaitForFirstConsumer"), "{name:?}");
        assert_eq!(class.allow_volume_expansion, Some(true), "{name:?}");
    }
}

/// A driver with the arguments of the `DaemonSet`, except for its paths.
struct Driver {
    channel: Channel,
    runtime: tokio::runtime::Runtime,
    _dir: TestDir,
    _ended: Cleanup,
}

impl Driver {
    fn start() -> Self {
        let dir = TestDir::root_only();
        let socket = dir.join("csi.sock");
        let mut command = Command::new(binary("crust-csi"));
        for word in container(&daemon_set(), "crust-csi").args.unwrap() {
            let word = word.replace("$(NODE_NAME)", "node");
            if !word.starts_with("--endpoint=") {
                command.arg(word);
            }
        }
        command.arg("--endpoint").arg(&socket);
        command.arg("--data-dir").arg(dir.join("data"));
        let mut child = command.stdin(Stdio::null()).spawn().unwrap();
        let ended = Cleanup::register(move || {
            let _ = child.kill();
            let _ = child.wait();
            Vec::new()
        });
        wait_until("crust-csi to listen", START_TIMEOUT, || {
            UnixStream::connect(&socket).is_ok()
        });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = runtime.unwrap();
        let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display())).unwrap();
        let channel = {
            let _inside = runtime.enter();
            endpoint.connect_lazy()
        };
        Self {
            channel,
            runtime,
            _dir: dir,
            _ended: ended,
        }
    }

    fn capacity(&self, parameters: HashMap<String, String>) -> i64 {
        let request = GetCapacityRequest {
            parameters,
            ..GetCapacityRequest::default()
        };
        let mut client = ControllerClient::new(self.channel.clone());
        let answer = self.runtime.block_on(client.get_capacity(request)).unwrap();
        answer.into_inner().available_capacity
    }

    fn controller_capabilities(&self) -> Vec<ControllerType> {
        let mut client = ControllerClient::new(self.channel.clone());
        let request = ControllerGetCapabilitiesRequest {};
        let answer = self
            .runtime
            .block_on(client.controller_get_capabilities(request));
        let capabilities = answer.unwrap().into_inner().capabilities.into_iter();
        let types = capabilities.map(|capability| match capability.r#type {
            Some(controller_service_capability::Type::Rpc(rpc)) => rpc.r#type(),
            None => panic!("a capability of no type"),
        });
        types.collect()
    }

    fn node_capabilities(&self) -> Vec<NodeType> {
        let mut client = NodeClient::new(self.channel.clone());
        let answer = self
            .runtime
            .block_on(client.node_get_capabilities(NodeGetCapabilitiesRequest {}));
        let capabilities = answer.unwrap().into_inner().capabilities.into_iter();
        let types = capabilities.map(|capability| match capability.r#type {
            Some(node_service_capability::Type::Rpc(rpc)) => rpc.r#type(),
            None => panic!("a capability of no type"),
        });
        types.collect()
    }
}

/// The driver reports no capacity for a class with unknown parameters.
#[test]
fn the_driver_knows_its_classes_parameters() {
    let driver = Driver::start();
    for class in classes() {
        let parameters: HashMap<String, String> = class.parameters.unwrap().into_iter().collect();
        // csi-provisioner removes its own parameters.
        let is_of_driver = |(key, _): &(&String, &String)| !key.starts_with("csi.storage.k8s.io/");
        let given: HashMap<_, _> = parameters
            .iter()
            .filter(is_of_driver)
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        assert!(driver.capacity(given.clone()) > 0, "{given:?}");
        for key in given.keys() {
            let mut misspelt = given.clone();
            misspelt.insert(format!("{key}s"), "true".to_owned());
            assert_eq!(driver.capacity(misspelt.clone()), 0, "{misspelt:?}");
        }
    }
}

#[test]
fn the_driver_matches_its_csidriver_object() {
    let driver = Driver::start();
    let csi_driver: CSIDriver = read("csi/csidriver.yaml");
    let mut identity = IdentityClient::new(driver.channel.clone());
    let info = identity.get_plugin_info(GetPluginInfoRequest {});
    let info = driver.runtime.block_on(info).unwrap().into_inner();
    assert_eq!(Some(info.name), csi_driver.metadata.name);
    let mut node = NodeClient::new(driver.channel.clone());
    let info = node.node_get_info(NodeGetInfoRequest {});
    let info = driver.runtime.block_on(info).unwrap().into_inner();
    assert_eq!(info.node_id, "node");
    assert!(info.accessible_topology.is_some());

    let spec = csi_driver.spec;
    let controller_capabilities = driver.controller_capabilities();
    assert_eq!(spec.attach_required, Some(false));
    assert!(!controller_capabilities.contains(&ControllerType::PublishUnpublishVolume));
    assert_eq!(spec.storage_capacity, Some(true));
    assert!(controller_capabilities.contains(&ControllerType::GetCapacity));
    assert!(controller_capabilities.contains(&ControllerType::ExpandVolume));
    // With VOLUME_MOUNT_GROUP, kubelet passes the fsGroup to the driver, whatever the `fsGroupPolicy` is.
    let node_capabilities = driver.node_capabilities();
    assert!(
        node_capabilities.contains(&NodeType::VolumeMountGroup),
        "{node_capabilities:?}"
    );
    assert!(
        node_capabilities.contains(&NodeType::DeferFsOps),
        "{node_capabilities:?}"
    );
    let modes = spec.volume_lifecycle_modes.unwrap();
    assert_eq!(modes, ["Persistent", "Ephemeral"]);
    // Without the pod's keys the driver doesn't know an inline volume, and refuses it.
    assert_eq!(spec.pod_info_on_mount, Some(true));
    let labels = csi_driver.metadata.labels.unwrap();
    let profile = labels.get("security.openshift.io/csi-ephemeral-volume-profile");
    assert_eq!(profile.map(String::as_str), Some("restricted"));
}
