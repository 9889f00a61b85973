//! The plugin's identity and capabilities, and those of the older plugins that it can imitate.

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

use crate::expect_error;
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

pub(crate) fn controller_capabilities(csi: &Csi) -> BTreeSet<String> {
    use controller_service_capability::Type::Rpc;
    let answer = csi.call(ControllerGetCapabilitiesRequest {});
    let answer = answer.expect("ControllerGetCapabilities").capabilities;
    let names = answer.iter().map(|capability| {
        let Some(Rpc(rpc)) = &capability.r#type else {
            panic!("{capability:?} has no type");
        };
        rpc.r#type().as_str_name().to_owned()
    });
    names.collect()
}

pub(crate) fn node_capabilities(csi: &Csi) -> BTreeSet<String> {
    use node_service_capability::Type::Rpc;
    let answer = csi.call(NodeGetCapabilitiesRequest {});
    let answer = answer.expect("NodeGetCapabilities").capabilities;
    let names = answer.iter().map(|capability| {
        let Some(Rpc(rpc)) = &capability.r#type else {
            panic!("{capability:?} has no type");
        };
        rpc.r#type().as_str_name().to_owned()
    });
    names.collect()
}

/// Returns the types of the plugin's services and of its volume expansion, as numbers.
pub(crate) fn plugin_capabilities(csi: &Csi) -> (BTreeSet<i32>, BTreeSet<i32>) {
    let answer = csi.call(GetPluginCapabilitiesRequest {});
    let (mut services, mut growth) = (BTreeSet::new(), BTreeSet::new());
    for capability in answer.expect("GetPluginCapabilities").capabilities {
        match capability.r#type.expect("a type") {
            PluginType::Service(service) => services.insert(service.r#type),
            PluginType::VolumeExpansion(expansion) => growth.insert(expansion.r#type),
        };
    }
    (services, growth)
}

#[test]
fn the_plugin_reports_its_name_and_topology() {
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
    let topology = node.accessible_topology.expect("a topology");
    assert_eq!(topology.segments.len(), 1, "{topology:?}");
    let made = scene.call(create_request("pv", filesystem("ext4")));
    let made = made.expect("CreateVolume").volume.expect("a volume");
    assert_eq!(made.accessible_topology, [topology]);
}

#[test]
fn driver_and_node_have_the_configured_names() {
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
fn all_capabilities_are_reported() {
    let scene = Scene::new();
    let expected = CONTROLLER.map(|rpc| rpc.as_str_name().to_owned());
    assert_eq!(controller_capabilities(&scene), BTreeSet::from(expected));
    let expected = NODE_RPCS.map(|rpc| rpc.as_str_name().to_owned());
    assert_eq!(node_capabilities(&scene), BTreeSet::from(expected));
    let services = [
        Service::ControllerService,
        Service::VolumeAccessibilityConstraints,
    ];
    let services = services.map(i32::from);
    let growth = [i32::from(Expansion::Online)];
    assert_eq!(
        plugin_capabilities(&scene),
        (BTreeSet::from(services), BTreeSet::from(growth))
    );
}

/// Each case: the capability that is left out, and the capabilities that the node and the controller then lack.
#[test]
fn capabilities_can_be_left_out() {
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
    let (node, controller) = (node_capabilities(&scene), controller_capabilities(&scene));
    for (left_out, missing_on_node, missing_on_controller) in cases {
        scene.restart(&["--without", left_out]);
        let without = |all: &BTreeSet<String>, missing: &[&str]| -> BTreeSet<String> {
            all.iter()
                .filter(|it| !missing.contains(&it.as_str()))
                .cloned()
                .collect()
        };
        assert_eq!(
            node_capabilities(&scene),
            without(&node, missing_on_node),
            "{left_out}"
        );
        assert_eq!(
            controller_capabilities(&scene),
            without(&controller, missing_on_controller),
            "{left_out}"
        );
        let grows = !missing_on_controller.contains(&"EXPAND_VOLUME");
        assert_eq!(
            !plugin_capabilities(&scene).1.is_empty(),
            grows,
            "{left_out}"
        );
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
    let node = node_capabilities(&scene);
    assert!(
        !node.contains("GET_VOLUME_STATS") && !node.contains("EXPAND_VOLUME"),
        "{node:?}"
    );
    let volume = scene.staged("pv", filesystem("ext4"));
    let target = scene.publish(&volume, "pod");
    for message in [
        expect_error(scene.call(volume.stats(&target)), Code::Unimplemented),
        expect_error(
            scene.call(volume.grow(volume.capacity * 2)),
            Code::Unimplemented,
        ),
        expect_error(
            scene.call(volume.expand(&target, volume.capacity)),
            Code::Unimplemented,
        ),
    ] {
        assert!(message.contains("--without"), "{message}");
    }
    scene.remove_volume(&volume, &[&target]);
}

#[test]
fn an_older_driver_refuses_newer_access_modes() {
    let scene = Scene::with(&["--without", "SINGLE_NODE_MULTI_WRITER"]);
    for mode in [Mode::SingleNodeSingleWriter, Mode::SingleNodeMultiWriter] {
        let mut request = create_request("pv", filesystem("ext4"));
        let access = request.volume_capabilities[0].access_mode.as_mut();
        access.expect("a mode").set_mode(mode);
        let message = expect_error(scene.call(request), Code::InvalidArgument);
        assert!(message.contains("SINGLE_NODE_MULTI_WRITER"), "{message}");
    }
    let _ = scene.volume("pv", filesystem("ext4"));
}
