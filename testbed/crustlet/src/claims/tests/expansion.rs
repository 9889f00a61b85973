//! Tests of the expansion of volumes.

use crust_proto::csi::v1::ControllerExpandVolumeResponse;
use tonic::Code;

use super::*;

#[test]
fn a_volume_is_expanded_by_the_controller_then_on_the_node() {
    let mut fixture = Fixture::provisioned();
    fixture.take_reasons();
    fixture.apply(&[&claim_of_size("2Gi"), &pod("web", DATA)]);
    let grow = fixture.grow();
    assert_eq!(grow.request.volume_id, "handle-1");
    let range = grow.request.capacity_range.expect("a range");
    assert_eq!(range.required_bytes, 2 * GI);
    fixture.write(grow.started());
    let response = ControllerExpandVolumeResponse {
        capacity_bytes: 2 * GI,
        node_expansion_required: true,
    };
    fixture.write_all(grow.succeeded(response));
    fixture.assert_settled();
    let claim = fixture.claim();
    assert_eq!(
        claim["status"]["conditions"][0]["type"],
        "FileSystemResizePending"
    );
    assert_eq!(claim["status"]["capacity"]["storage"], "1Gi");
    assert_eq!(claim["status"]["allocatedResources"]["storage"], "2Gi");
    fixture.mount(Mounter::Deferred);
    let grow = fixture.grow_on_node();
    assert_eq!(
        (grow.size, grow.mounter, grow.pod.as_str()),
        (2 * GI, Mounter::Deferred, "web-uid")
    );
    fixture.write(grow.started());
    let state = &fixture.claim()["status"]["allocatedResourceStatuses"]["storage"];
    assert_eq!(state, "NodeResizeInProgress");
    fixture.write(grow.succeeded());
    fixture.assert_settled();
    let expected =
        json!({"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "2Gi"}, "phase": "Bound"});
    assert_eq!(fixture.claim()["status"], expected);
    let volume = fixture.document(Kind::PersistentVolume, "pvc-uid-1");
    assert_eq!(volume["spec"]["capacity"]["storage"], "2Gi");
    let take_reasons = [
        "Resizing",
        "FileSystemResizeRequired",
        "FileSystemResizeSuccessful",
    ];
    assert_eq!(fixture.take_reasons(), take_reasons);
}

#[test]
fn the_controller_is_called_again_if_only_one_record_was_written() {
    let mut fixture = Fixture::provisioned();
    fixture.apply(&[&claim_of_size("2Gi")]);
    let grow = fixture.grow();
    let response = ControllerExpandVolumeResponse {
        capacity_bytes: 2 * GI,
        node_expansion_required: false,
    };
    let writes = grow.succeeded(response);
    fixture.write(writes[0].clone());
    assert_eq!(fixture.grow().request, grow.request);
    fixture.write_all(writes);
    fixture.assert_settled();
    assert_eq!(fixture.claim()["status"]["capacity"]["storage"], "2Gi");
}

/// KEP-2857, story 5.
#[test]
fn a_deferred_volume_is_expanded_only_by_a_driver_that_defers() {
    let mut fixture = Fixture::provisioned();
    fixture.mount(Mounter::Deferred);
    fixture.apply(&[&claim_of_size("2Gi")]);
    let response = ControllerExpandVolumeResponse {
        capacity_bytes: 2 * GI,
        node_expansion_required: true,
    };
    let writes = fixture.grow().succeeded(response);
    fixture.write_all(writes);
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
    assert_eq!(fixture.grow_on_node().mounter, Mounter::Driver);
    fixture.mount(Mounter::Deferred);
    fixture.drivers.insert("csi.example".to_owned(), all);
    let grow = fixture.grow_on_node();
    fixture.write(grow.started());
    assert_eq!(fixture.claim()["status"].get("resizeStatus"), None);
}

#[test]
fn a_failed_expansion_is_reported_and_the_request_can_be_taken_back() {
    let mut fixture = Fixture::provisioned();
    fixture.apply(&[&claim_of_size("2Gi")]);
    let grow = fixture.grow();
    fixture.take_reasons();
    fixture.write(grow.started());
    fixture.write(grow.failed(Code::OutOfRange, "too large"));
    assert_eq!(fixture.take_reasons(), ["Resizing", "VolumeResizeFailed"]);
    let state = |fixture: &Fixture| {
        fixture.claim()["status"]["allocatedResourceStatuses"]["storage"].clone()
    };
    assert_eq!(state(&fixture), "ControllerResizeInfeasible");
    let small = ControllerExpandVolumeResponse {
        capacity_bytes: GI,
        node_expansion_required: false,
    };
    let writes = grow.succeeded(small);
    fixture.write_all(writes);
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
    let grown = |controller: &[ControllerRpc], node: &[Rpc], class: &str| {
        let mut fixture = Fixture::provisioned();
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
    let asked = grown(controller, &[], CLASS).grow().request.capacity_range;
    assert_eq!(asked.expect("a range").required_bytes, 2 * GI);
    // Without the controller's capability the node does the whole expansion.
    assert_eq!(grown(&[], node, CLASS).grow_on_node().size, 2 * GI);
    let notice = grown(&[], &[], CLASS).only_waiting();
    assert!(
        notice
            .message
            .contains("lacks the capability EXPAND_VOLUME of both"),
        "{notice:?}"
    );
    let never = CLASS.replace("allowVolumeExpansion: true\n", "");
    let notice = grown(controller, node, &never).only_waiting();
    assert!(
        notice
            .message
            .contains("storageclass fast doesn't allow it"),
        "{notice:?}"
    );
    let mut fixture = grown(controller, node, CLASS);
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
    assert_eq!(fixture.grow().request.volume_id, "handle-1");
    assert_eq!(fixture.claim()["status"]["phase"], "Bound");
}
