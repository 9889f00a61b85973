//! Tests of volumes that grow.

use crust_proto::csi::v1::ControllerExpandVolumeResponse;
use tonic::Code;

use super::*;

#[test]
fn a_volume_grows_at_the_controller_then_on_the_node() {
    let mut bench = Bench::provisioned();
    bench.reasons();
    bench.apply(&[&wanting("2Gi"), &pod("web", DATA)]);
    let grow = bench.grow();
    assert_eq!(grow.request.volume_id, "handle-1");
    let range = grow.request.capacity_range.expect("a range");
    assert_eq!(range.required_bytes, 2 * GI);
    bench.write(grow.begun());
    let answer = ControllerExpandVolumeResponse {
        capacity_bytes: 2 * GI,
        node_expansion_required: true,
    };
    bench.write_all(grow.done(answer));
    bench.rest();
    let claim = bench.claim();
    assert_eq!(
        claim["status"]["conditions"][0]["type"],
        "FileSystemResizePending"
    );
    assert_eq!(claim["status"]["capacity"]["storage"], "1Gi");
    assert_eq!(claim["status"]["allocatedResources"]["storage"], "2Gi");
    bench.mount(Mounter::Deferred);
    let grow = bench.grow_on_node();
    assert_eq!(
        (grow.size, grow.mounter, grow.pod.as_str()),
        (2 * GI, Mounter::Deferred, "web-uid")
    );
    bench.write(grow.begun());
    let state = &bench.claim()["status"]["allocatedResourceStatuses"]["storage"];
    assert_eq!(state, "NodeResizeInProgress");
    bench.write(grow.done());
    bench.rest();
    let expected =
        json!({"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "2Gi"}, "phase": "Bound"});
    assert_eq!(bench.claim()["status"], expected);
    let volume = bench.document(Kind::PersistentVolume, "pvc-uid-1");
    assert_eq!(volume["spec"]["capacity"]["storage"], "2Gi");
    let reasons = [
        "Resizing",
        "FileSystemResizeRequired",
        "FileSystemResizeSuccessful",
    ];
    assert_eq!(bench.reasons(), reasons);
}

#[test]
fn an_answer_that_was_half_written_is_asked_for_again() {
    let mut bench = Bench::provisioned();
    bench.apply(&[&wanting("2Gi")]);
    let grow = bench.grow();
    let answer = ControllerExpandVolumeResponse {
        capacity_bytes: 2 * GI,
        node_expansion_required: false,
    };
    let writes = grow.done(answer);
    bench.write(writes[0].clone());
    assert_eq!(bench.grow().request, grow.request);
    bench.write_all(writes);
    bench.rest();
    assert_eq!(bench.claim()["status"]["capacity"]["storage"], "2Gi");
}

/// KEP-2857, story 5.
#[test]
fn a_deferred_volume_needs_a_deferring_driver_to_grow() {
    let mut bench = Bench::provisioned();
    bench.mount(Mounter::Deferred);
    bench.apply(&[&wanting("2Gi")]);
    let answer = ControllerExpandVolumeResponse {
        capacity_bytes: 2 * GI,
        node_expansion_required: true,
    };
    let writes = bench.grow().done(answer);
    bench.write_all(writes);
    let all = bench.drivers["csi.example"].clone();
    let mut downgraded = all.clone();
    downgraded.node = [Rpc::ExpandVolume].into_iter().collect();
    bench.drivers.insert("csi.example".to_owned(), downgraded);
    let told = bench.waiting();
    assert_eq!(told.reason, "VolumeResizeFailed");
    assert!(told.message.contains("DEFER_FS_OPS"), "{told:?}");
    let resize = "PersistentVolumeClaimNodeExpansionFailed";
    assert_eq!(bench.claim()["status"]["resizeStatus"], resize);
    bench.mount(Mounter::Driver);
    assert_eq!(bench.grow_on_node().mounter, Mounter::Driver);
    bench.mount(Mounter::Deferred);
    bench.drivers.insert("csi.example".to_owned(), all);
    let grow = bench.grow_on_node();
    bench.write(grow.begun());
    assert_eq!(bench.claim()["status"].get("resizeStatus"), None);
}

#[test]
fn a_growth_that_is_refused_is_told_and_may_be_taken_back() {
    let mut bench = Bench::provisioned();
    bench.apply(&[&wanting("2Gi")]);
    let grow = bench.grow();
    bench.reasons();
    bench.write(grow.begun());
    bench.write(grow.failed(Code::OutOfRange, "too large"));
    assert_eq!(bench.reasons(), ["Resizing", "VolumeResizeFailed"]);
    let state =
        |bench: &Bench| bench.claim()["status"]["allocatedResourceStatuses"]["storage"].clone();
    assert_eq!(state(&bench), "ControllerResizeInfeasible");
    let small = ControllerExpandVolumeResponse {
        capacity_bytes: GI,
        node_expansion_required: false,
    };
    let writes = grow.done(small);
    bench.write_all(writes);
    assert_eq!(
        state(&bench),
        "ControllerResizeInProgress",
        "another call may do it"
    );
    bench.apply(&[&wanting("1Gi")]);
    bench.rest();
    assert_eq!(state(&bench), Value::Null);
}

#[test]
fn who_can_make_a_volume_grow_is_asked() {
    let node: &[Rpc] = &[Rpc::ExpandVolume];
    let controller: &[ControllerRpc] = &[ControllerRpc::ExpandVolume];
    let grown = |controller: &[ControllerRpc], node: &[Rpc], class: &str| {
        let mut bench = Bench::provisioned();
        bench.apply(&[&wanting("2Gi"), class]);
        let abilities = DriverCapabilities {
            controller: controller.iter().copied().collect(),
            node: node.iter().copied().collect(),
        };
        bench.drivers.insert("csi.example".to_owned(), abilities);
        bench.mount(Mounter::Driver);
        bench
    };
    let asked = grown(controller, &[], CLASS).grow().request.capacity_range;
    assert_eq!(asked.expect("a range").required_bytes, 2 * GI);
    // What the controller can't do the node does alone.
    assert_eq!(grown(&[], node, CLASS).grow_on_node().size, 2 * GI);
    let told = grown(&[], &[], CLASS).waiting();
    assert!(
        told.message.contains("lacks the capability EXPAND_VOLUME"),
        "{told:?}"
    );
    let never = CLASS.replace("allowVolumeExpansion: true\n", "");
    let told = grown(controller, node, &never).waiting();
    assert!(
        told.message.contains("storageclass fast doesn't allow it"),
        "{told:?}"
    );
    let mut bench = grown(controller, node, CLASS);
    bench.drivers.clear();
    assert_eq!(bench.waiting().reason, "ExternalExpanding");
}

#[test]
fn a_claim_may_ask_for_more_while_its_volume_is_made() {
    let mut bench = Bench::new(&[&wanting("1Gi")]);
    let Step::Create(create) = bench.step() else {
        panic!("no step");
    };
    bench.apply(&[&wanting("2Gi")]);
    bench.write(create.made(answer("handle-1", GI)).expect("a volume"));
    assert_eq!(bench.grow().request.volume_id, "handle-1");
    assert_eq!(bench.claim()["status"]["phase"], "Bound");
}
