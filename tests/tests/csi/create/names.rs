//! `CreateVolume`: valid names, and the topology.

use crust_proto::csi::v1::{NodeGetInfoRequest, Topology, TopologyRequirement};
use runcrust_tests::csi::{create_request, filesystem};
use tonic::Code;

use crate::scene::Scene;
use crate::{expect_error, expect_error_in};

#[test]
fn long_names_and_control_characters_are_refused() {
    let scene = Scene::new();
    let longest = "n".repeat(128);
    let wide = "ä".repeat(64);
    let allowed = [
        "pvc-1",
        "../../x",
        "a/b",
        " ",
        ".",
        "tab\tnew\nline\r",
        "🦀",
        &longest,
        &wide,
    ];
    for name in allowed {
        let _ = scene.volume(name, filesystem("ext4"));
    }
    assert_eq!(
        scene.ids().len(),
        allowed.len(),
        "each has a volume of its own"
    );
    let too_long = "n".repeat(129);
    let too_wide = "ä".repeat(65);
    for name in [
        "a\0b",
        "\u{1}",
        "\u{b}",
        "\u{1b}[2J",
        "\u{7f}",
        "\u{85}",
        &too_long,
        &too_wide,
    ] {
        let message = expect_error(
            scene.call(create_request(name, filesystem("ext4"))),
            Code::InvalidArgument,
        );
        assert!(message.contains("name"), "{name:?}: {message}");
    }
    assert_eq!(scene.ids().len(), allowed.len());
}

#[test]
fn a_volume_for_another_node_is_refused() {
    let scene = Scene::new();
    let this_node = scene.call_ok(NodeGetInfoRequest {}).accessible_topology;
    let this_node = this_node.expect("a topology");
    let mut other_node = this_node.clone();
    for segment in other_node.segments.values_mut() {
        "another".clone_into(segment);
    }
    let created = |name: &str, requisite: &[&Topology], preferred: &[&Topology]| {
        let owned = |topologies: &[&Topology]| topologies.iter().copied().cloned().collect();
        let mut request = create_request(name, filesystem("ext4"));
        request.accessibility_requirements = Some(TopologyRequirement {
            requisite: owned(requisite),
            preferred: owned(preferred),
        });
        scene.call(request)
    };
    created("a", &[&this_node], &[&this_node]).expect("here");
    created("b", &[&other_node, &this_node], &[&other_node]).expect("required here or there");
    created("c", &[], &[&other_node]).expect("only preferred");
    expect_error_in(
        created("d", &[&other_node], &[]),
        Code::ResourceExhausted,
        "elsewhere",
    );
    assert_eq!(scene.ids().len(), 3);
}
