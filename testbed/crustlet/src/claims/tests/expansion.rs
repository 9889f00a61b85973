//! Tests of the expansion of volumes.

use crust_proto::csi::v1::ControllerExpandVolumeResponse;
use tonic::Code;

use super::*;

#[test]
fn a_volume_is_expanded_by_the_controller_then_on_the_node() {
    let mut fixture = Fixture::with_provisioned_volume();
    fixture.take_reasons();
    fixture.apply(&[&claim_of_size("2Gi"), &pod("web", DATA)]);
    let call = fixture.controller_expand();
    assert_eq!(call.request.volume_id, "handle-1");
    let range = call.request.capacity_range.expect("a range");
    assert_eq!(range.required_bytes, 2 * GI);
    fixture.write(call.started());
    let response = ControllerExpandVolumeResponse {
        capacity_bytes: 2 * GI,
        node_expansion_required: true,
    };
    fixture.write_all(call.succeeded(response));
    fixture.assert_settled();
    let claim = fixture.claim();
    assert_eq!(
        claim["status"]["conditions"][0]["type"],
        "FileSystemResizePending"
    );
    assert_eq!(claim["status"]["capacity"]["storage"], "1Gi");
    assert_eq!(claim["status"]["allocatedResources"]["storage"], "2Gi");
    fixture.mount(Mounter::Deferred);
    let call = fixture.node_expand();
    assert_eq!(
        (call.size, call.mounter, call.pod.as_str()),
        (2 * GI, Mounter::Deferred, "web-uid")
    );
    fixture.write(call.started());
    let state = &fixture.claim()["status"]["allocatedResourceStatuses"]["storage"];
    assert_eq!(state, "NodeResizeInProgress");
    fixture.write(call.succeeded());
    fixture.assert_settled();
    let expected =
        json!({"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "2Gi"}, "phase": "Bound"});
    assert_eq!(fixture.claim()["status"], expected);
    let volume = fixture.document(Kind::PersistentVolume, "pvc-uid-1");
    assert_eq!(volume["spec"]["capacity"]["storage"], "2Gi");
    let expected = [
        "Resizing",
        "FileSystemResizeRequired",
        "FileSystemResizeSuccessful",
    ];
    assert_eq!(fixture.take_reasons(), expected);
}

#[test]
fn a_half_recorded_expansion_is_repeated() {
    let mut fixture = Fixture::with_provisioned_volume();
    fixture.apply(&[&claim_of_size("2Gi")]);
    let call = fixture.controller_expand();
    let response = ControllerExpandVolumeResponse {
        capacity_bytes: 2 * GI,
        node_expansion_required: false,
    };
    let updates = call.succeeded(response);
    fixture.write(updates[0].clone());
    assert_eq!(fixture.controller_expand().request, call.request);
    fixture.write_all(updates);
    fixture.assert_settled();
    assert_eq!(fixture.claim()["status"]["capacity"]["storage"], "2Gi");
}

/// KEP-2857, story 5.
#[test]
fn a_deferred_volume_is_expanded_only_by_a_driver_that_defers() {
    let mut fixture = Fixture::with_provisioned_volume();
    fixture.mount(Mounter::Deferred);
    fixture.apply(&[&claim_of_size("2Gi")]);
    let response = ControllerExpandVolumeResponse {
        capacity_bytes: 2 * GI,
        node_expansion_required: true,
    };
    let updates = fixture.controller_expand().succeeded(response);
    fixture.write_all(updates);
    let all = fixture.drivers["csi.example"].clone();
    let mut downgraded = all.clone();
    downgraded.node = [Rpc::ExpandVolume].into_iter().collect();
    fixture.drivers.insert("csi.example".to_owned(), downgraded);
    let notice = fixture.only_waiting();
    assert_eq!(notice.reason, "VolumeResizeFailed");
    assert!(notice.message.contains("DEFER_FS_OPS"), "{notice:?}");
    let resize = "PersistentVolumeClaimNodeExpansionFailed";
    assert_eq!(fixture.claim()["status"]["resizeStatus"], resize);
    fixture.mount(Mounter::Driver);
    assert_eq!(fixture.node_expand().mounter, Mounter::Driver);
    fixture.mount(Mounter::Deferred);
    fixture.drivers.insert("csi.example".to_owned(), all);
    let call = fixture.node_expand();
    fixture.write(call.started());
    assert_eq!(fixture.claim()["status"].get("resizeStatus"), None);
}

#[test]
fn a_failed_expansion_is_reported_and_can_be_taken_back() {
    let mut fixture = Fixture::with_provisioned_volume();
    fixture.apply(&[&claim_of_size("2Gi")]);
    let call = fixture.controller_expand();
    fixture.take_reasons();
    fixture.write(call.started());
    fixture.write(call.failed(Code::OutOfRange, "too large"));
    assert_eq!(fixture.take_reasons(), ["Resizing", "VolumeResizeFailed"]);
    let state = |fixture: &Fixture| {
        fixture.claim()["status"]["allocatedResourceStatuses"]["storage"].clone()
    };
    assert_eq!(state(&fixture), "ControllerResizeInfeasible");
    let small = ControllerExpandVolumeResponse {
        capacity_bytes: GI,
        node_expansion_required: false,
    };
    let updates = call.succeeded(small);
    fixture.write_all(updates);
    assert_eq!(
        state(&fixture),
        "ControllerResizeInProgress",
        "a retry may succeed"
    );
    fixture.apply(&[&claim_of_size("1Gi")]);
    fixture.assert_settled();
    assert_eq!(state(&fixture), Value::Null);
}

#[test]
fn the_service_with_the_capability_expands_the_volume() {
    let node: &[Rpc] = &[Rpc::ExpandVolume];
    let controller: &[ControllerRpc] = &[ControllerRpc::ExpandVolume];
    let with_larger_claim = |controller: &[ControllerRpc], node: &[Rpc], class: &str| {
        let mut fixture = Fixture::with_provisioned_volume();
        fixture.apply(&[&claim_of_size("2Gi"), class]);
        let capabilities = DriverCapabilities {
            controller: controller.iter().copied().collect(),
            node: node.iter().copied().collect(),
        };
        fixture
            .drivers
            .insert("csi.example".to_owned(), capabilities);
        fixture.mount(Mounter::Driver);
        fixture
    };
    let range = with_larger_claim(controller, &[], CLASS)
        .controller_expand()
        .request
        .capacity_range;
    assert_eq!(range.expect("a range").required_bytes, 2 * GI);
    // Without the controller's capability the node does the whole expansion.
    assert_eq!(
        with_larger_claim(&[], node, CLASS).node_expand().size,
        2 * GI
    );
    let notice = with_larger_claim(&[], &[], CLASS).only_waiting();
    assert!(
        notice
            .message
            .contains("lacks the capability EXPAND_VOLUME of both"),
        "{notice:?}"
    );
    let never = CLASS.replace("allowVolumeExpansion: true\n", "");
    let notice = with_larger_claim(controller, node, &never).only_waiting();
    assert!(
        notice
            .message
            .contains("storageclass fast doesn't allow it"),
        "{notice:?}"
    );
    let mut fixture = with_larger_claim(controller, node, CLASS);
    fixture.drivers.clear();
    assert_eq!(fixture.only_waiting().reason, "ExternalExpanding");
}

#[test]
fn a_claim_may_request_more_while_its_volume_is_created() {
    let mut fixture = Fixture::new(&[&claim_of_size("1Gi")]);
    let ClaimStep::Create(create) = fixture.only_step() else {
        panic!("no step");
    };
    fixture.apply(&[&claim_of_size("2Gi")]);
    fixture.write(
        create
            .volume_record(response("handle-1", GI))
            .expect("a volume"),
    );
    assert_eq!(fixture.controller_expand().request.volume_id, "handle-1");
    assert_eq!(fixture.claim()["status"]["phase"], "Bound");
}
