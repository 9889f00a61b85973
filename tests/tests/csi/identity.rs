//! Who the plugin is, what it can do, and what it can't when it plays an older one.

use std::collections::BTreeSet;

use crust_proto::csi::v1::controller_service_capability::rpc::Type as ControllerRpc;
use crust_proto::csi::v1::node_service_capability::rpc::Type as NodeRpc;
use crust_proto::csi::v1::plugin_capability::Type as PluginType;
use crust_proto::csi::v1::plugin_capability::service::Type as Service;
use crust_proto::csi::v1::plugin_capability::volume_expansion::Type as Expansion;
use crust_proto::csi::v1::volume_capability::access_mode::Mode;
use crust_proto::csi::v1::{
    ControllerGetCapabilitiesRequest, GetPluginCapabilitiesRequest, GetPluginInfoRequest,
    NodeGetCapabilitiesRequest, NodeGetInfoRequest, ProbeRequest, controller_service_capability,
    node_service_capability,
};
use runcrust_tests::Csi;
use runcrust_tests::csi::{DRIVER, NODE, create_request, filesystem};
use tonic::Code;

use crate::refused;
use crate::scene::Scene;

const CONTROLLER: [ControllerRpc; 7] = [
    ControllerRpc::CreateDeleteVolume,
    ControllerRpc::ListVolumes,
    ControllerRpc::GetCapacity,
    ControllerRpc::ExpandVolume,
    ControllerRpc::SingleNodeMultiWriter,
    ControllerRpc::GetVolumeHealth,
    ControllerRpc::ListVolumeHealth,
];

const NODE_RPCS: [NodeRpc; 11] = [
    NodeRpc::StageUnstageVolume,
    NodeRpc::GetVolumeStats,
    NodeRpc::ExpandVolume,
    NodeRpc::VolumeCondition,
    NodeRpc::GetVolumeHealth,
    NodeRpc::GetStorageHealth,
    NodeRpc::SingleNodeMultiWriter,
    NodeRpc::VolumeMountGroup,
    NodeRpc::DeferFsOps,
    NodeRpc::DeferFsOpsWithSupplementalGroup,
    NodeRpc::DeferFsOpsWithSupplementalGroupChangePolicy,
];

fn of_the_controller(csi: &Csi) -> BTreeSet<String> {
    use controller_service_capability::Type::Rpc;
    let told = csi.call(ControllerGetCapabilitiesRequest {});
    let told = told.expect("ControllerGetCapabilities").capabilities;
    let names = told.iter().map(|capability| {
        let Some(Rpc(rpc)) = &capability.r#type else {
            panic!("{capability:?} says nothing");
        };
        rpc.r#type().as_str_name().to_owned()
    });
    names.collect()
}

fn of_the_node(csi: &Csi) -> BTreeSet<String> {
    use node_service_capability::Type::Rpc;
    let told = csi.call(NodeGetCapabilitiesRequest {});
    let told = told.expect("NodeGetCapabilities").capabilities;
    let names = told.iter().map(|capability| {
        let Some(Rpc(rpc)) = &capability.r#type else {
            panic!("{capability:?} says nothing");
        };
        rpc.r#type().as_str_name().to_owned()
    });
    names.collect()
}

/// Its services' types and its ways to grow, as numbers.
fn of_the_plugin(csi: &Csi) -> (BTreeSet<i32>, BTreeSet<i32>) {
    let told = csi.call(GetPluginCapabilitiesRequest {});
    let (mut services, mut growth) = (BTreeSet::new(), BTreeSet::new());
    for capability in told.expect("GetPluginCapabilities").capabilities {
        match capability.r#type.expect("a capability says what it is") {
            PluginType::Service(service) => services.insert(service.r#type),
            PluginType::VolumeExpansion(expansion) => growth.insert(expansion.r#type),
        };
    }
    (services, growth)
}

#[test]
fn the_plugin_says_who_it_is_and_where() {
    let scene = Scene::with(&["--max-volumes", "7"]);
    let info = scene.call_ok(GetPluginInfoRequest {});
    assert_eq!(info.name, DRIVER);
    assert!(!info.vendor_version.is_empty(), "{info:?}");
    let probe = scene.call_ok(ProbeRequest {});
    assert_ne!(probe.ready, Some(false));

    let node = scene.call_ok(NodeGetInfoRequest {});
    assert_eq!(
        (node.node_id.as_str(), node.max_volumes_per_node),
        (NODE, 7)
    );
    let place = node.accessible_topology.expect("where it is");
    assert_eq!(place.segments.len(), 1, "{place:?}");
    let made = scene.call(create_request("pv", filesystem("ext4")));
    let made = made.expect("CreateVolume").volume.expect("a volume");
    assert_eq!(made.accessible_topology, [place]);
}

#[test]
fn the_driver_and_the_node_have_the_names_that_they_are_given() {
    let scene = Scene::with(&["--driver-name", "other.example", "--node-id", "other"]);
    let info = scene.call_ok(GetPluginInfoRequest {});
    assert_eq!(info.name, "other.example");
    let node = scene.call_ok(NodeGetInfoRequest {});
    assert_eq!(
        (node.node_id.as_str(), node.max_volumes_per_node),
        ("other", 0)
    );
}

#[test]
fn it_can_do_all_of_this() {
    let scene = Scene::new();
    let expected = CONTROLLER.map(|rpc| rpc.as_str_name().to_owned());
    assert_eq!(of_the_controller(&scene), BTreeSet::from(expected));
    let expected = NODE_RPCS.map(|rpc| rpc.as_str_name().to_owned());
    assert_eq!(of_the_node(&scene), BTreeSet::from(expected));
    let services = [
        Service::ControllerService,
        Service::VolumeAccessibilityConstraints,
    ];
    let services = services.map(i32::from);
    let growth = [i32::from(Expansion::Online)];
    assert_eq!(
        of_the_plugin(&scene),
        (BTreeSet::from(services), BTreeSet::from(growth))
    );
}

/// By what is left out: what else goes with it, of the node and of the controller.
#[test]
fn an_older_driver_lacks_what_it_is_told_to_lack() {
    const GROUP: &str = "DEFER_FS_OPS_WITH_SUPPLEMENTAL_GROUP";
    const POLICY: &str = "DEFER_FS_OPS_WITH_SUPPLEMENTAL_GROUP_CHANGE_POLICY";
    let cases: &[(&str, &[&str], &[&str])] = &[
        (
            "GET_VOLUME_STATS",
            &["GET_VOLUME_STATS", "VOLUME_CONDITION"],
            &[],
        ),
        ("VOLUME_CONDITION", &["VOLUME_CONDITION"], &[]),
        (
            "GET_VOLUME_HEALTH",
            &["GET_VOLUME_HEALTH"],
            &["GET_VOLUME_HEALTH", "LIST_VOLUME_HEALTH"],
        ),
        ("GET_STORAGE_HEALTH", &["GET_STORAGE_HEALTH"], &[]),
        ("EXPAND_VOLUME", &["EXPAND_VOLUME"], &["EXPAND_VOLUME"]),
        (
            "SINGLE_NODE_MULTI_WRITER",
            &["SINGLE_NODE_MULTI_WRITER"],
            &["SINGLE_NODE_MULTI_WRITER"],
        ),
        ("VOLUME_MOUNT_GROUP", &["VOLUME_MOUNT_GROUP"], &[]),
        ("DEFER_FS_OPS", &["DEFER_FS_OPS", GROUP, POLICY], &[]),
        (GROUP, &[GROUP, POLICY], &[]),
        (POLICY, &[POLICY], &[]),
    ];
    let scene = Scene::new();
    let (node, controller) = (of_the_node(&scene), of_the_controller(&scene));
    for (left_out, of_node, of_controller) in cases {
        scene.restart(&["--without", left_out]);
        let without = |all: &BTreeSet<String>, lacking: &[&str]| -> BTreeSet<String> {
            all.iter()
                .filter(|it| !lacking.contains(&it.as_str()))
                .cloned()
                .collect()
        };
        assert_eq!(of_the_node(&scene), without(&node, of_node), "{left_out}");
        assert_eq!(
            of_the_controller(&scene),
            without(&controller, of_controller),
            "{left_out}"
        );
        let grows = !of_controller.contains(&"EXPAND_VOLUME");
        assert_eq!(!of_the_plugin(&scene).1.is_empty(), grows, "{left_out}");
    }
}

#[test]
fn several_capabilities_can_be_left_out() {
    let left_out = [
        "--without",
        "GET_VOLUME_STATS",
        "--without",
        "EXPAND_VOLUME",
    ];
    let scene = Scene::with(&left_out);
    let node = of_the_node(&scene);
    assert!(
        !node.contains("GET_VOLUME_STATS") && !node.contains("EXPAND_VOLUME"),
        "{node:?}"
    );
    let volume = scene.staged("pv", filesystem("ext4"));
    let target = scene.publish(&volume, "pod");
    for message in [
        refused(scene.call(volume.stats(&target)), Code::Unimplemented),
        refused(
            scene.call(volume.grow(volume.capacity * 2)),
            Code::Unimplemented,
        ),
        refused(
            scene.call(volume.expand(&target, volume.capacity)),
            Code::Unimplemented,
        ),
    ] {
        assert!(message.contains("--without"), "{message}");
    }
    scene.put_away(&volume, &[&target]);
}

#[test]
fn an_older_driver_has_none_of_the_newer_access_modes() {
    let scene = Scene::with(&["--without", "SINGLE_NODE_MULTI_WRITER"]);
    for mode in [Mode::SingleNodeSingleWriter, Mode::SingleNodeMultiWriter] {
        let mut request = create_request("pv", filesystem("ext4"));
        let access = request.volume_capabilities[0].access_mode.as_mut();
        access.expect("a mode").set_mode(mode);
        let message = refused(scene.call(request), Code::InvalidArgument);
        assert!(message.contains("SINGLE_NODE_MULTI_WRITER"), "{message}");
    }
    let _ = scene.volume("pv", filesystem("ext4"));
}
