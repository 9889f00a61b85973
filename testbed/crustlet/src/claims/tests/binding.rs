//! Tests of the choice of a claim's volume.

use super::*;

#[test]
fn a_claim_gets_the_smallest_volume_that_fits() {
    let large = volume("a-large", "capacity: {storage: 5Gi}");
    let small = volume("small", "capacity: {storage: 2Gi}");
    let smaller = volume("smaller", "capacity: {storage: 1Gi}");
    let with_class = volume(
        "with-class",
        "capacity: {storage: 2Gi}\n  storageClassName: fast",
    );
    let block = volume("block", "capacity: {storage: 2Gi}\n  volumeMode: Block");
    let claimed = volume(
        "claimed",
        "capacity: {storage: 2Gi}\n  claimRef: {name: other, namespace: default}",
    );
    let narrow = volume("narrow", "capacity: {storage: 2Gi}").replace("ReadWriteOnce, ", "");
    let text = claim("storageClassName: '', resources: {requests: {storage: 1500Mi}}");
    let all = [
        &large,
        &small,
        &smaller,
        &with_class,
        &block,
        &claimed,
        &narrow,
    ];
    let mut fixture = Fixture::new(&all.map(String::as_str));
    fixture.apply(&[&text]);
    fixture.assert_settled();
    let claim = fixture.claim();
    assert_eq!(claim["spec"]["volumeName"], "small");
    assert_eq!(claim["status"]["phase"], "Bound");
    assert_eq!(claim["status"]["capacity"]["storage"], "2Gi");
    let modes = json!(["ReadWriteOnce", "ReadOnlyMany"]);
    assert_eq!(claim["status"]["accessModes"], modes, "the volume's");
    let uid = &claim["metadata"]["uid"];
    let bound = fixture.document(Kind::PersistentVolume, "small");
    assert_eq!(&bound["spec"]["claimRef"]["uid"], uid);
    assert_eq!(bound["status"]["phase"], "Bound");
    assert_eq!(
        fixture.phase(Kind::PersistentVolume, "a-large"),
        "Available"
    );
}

#[test]
fn a_volume_that_refers_to_a_claim_is_bound_to_it() {
    let small = volume("a-small", "capacity: {storage: 1Gi}");
    let prebound = volume(
        "prebound",
        "capacity: {storage: 9Gi}\n  claimRef: {name: data, namespace: default}",
    );
    let mut fixture = Fixture::new(&[&small, &prebound, &claim("storageClassName: ''")]);
    fixture.assert_settled();
    assert_eq!(fixture.claim()["spec"]["volumeName"], "prebound");
    let narrow = prebound.replace("ReadWriteOnce, ", "");
    let mut fixture = Fixture::new(&[&small, &narrow, &claim("storageClassName: ''")]);
    let notice = fixture.only_waiting();
    assert_eq!(notice.reason, "VolumeMismatch");
    assert!(
        notice
            .message
            .ends_with("\"prebound\": incompatible accessMode"),
        "{notice:?}"
    );
}

#[test]
fn a_volume_is_bound_to_only_one_claim() {
    let volume = volume("pv-1", "capacity: {storage: 1Gi}");
    let by_name = claim("volumeName: pv-1");
    let other_claim = by_name.replace("name: data", "name: other");
    for first_claim in [&by_name, &claim("storageClassName: ''")] {
        let mut fixture = Fixture::new(&[&volume, first_claim, &other_claim]);
        let notice = fixture.only_waiting();
        assert_eq!(notice.regarding.name.name, "other");
        assert_eq!(notice.reason, "FailedBinding");
        assert_eq!(fixture.phase(Kind::PersistentVolumeClaim, "data"), "Bound");
        assert_eq!(
            fixture.phase(Kind::PersistentVolumeClaim, "other"),
            "Pending"
        );
    }
}

#[test]
fn an_event_says_what_a_claim_waits_for() {
    let cases = [
        (
            "storageClassName: ''",
            "FailedBinding",
            "no storage class is set",
        ),
        (
            "storageClassName: gone",
            "ProvisioningFailed",
            "\"gone\" not found",
        ),
        ("storageClassName: by-hand", "FailedBinding", "create any"),
        (
            "storageClassName: elsewhere",
            "ExternalProvisioning",
            "'other.example'",
        ),
        (
            "storageClassName: late",
            "WaitForFirstConsumer",
            "first consumer",
        ),
        ("volumeName: gone", "FailedBinding", "\"gone\" not found"),
        (
            "storageClassName: fast, selector: {}",
            "FailedBinding",
            "hint: set volumeName",
        ),
        (
            "storageClassName: fast, volumeMode: Block",
            "ProvisioningFailed",
            "Block",
        ),
        (
            "storageClassName: fast, dataSource: {kind: VolumeSnapshot, name: s}",
            "ProvisioningFailed",
            "empty volumes",
        ),
        (
            "storageClassName: fast, resources: {requests: {storage: lots}}",
            "FailedBinding",
            "\"lots\" is not a valid quantity",
        ),
    ];
    for (spec, reason, message) in cases {
        let notice = Fixture::new(&[&claim(spec)]).only_waiting();
        assert_eq!(notice.reason, reason, "{spec}: {notice:?}");
        assert!(notice.message.contains(message), "{spec}: {notice:?}");
    }
    let mut fixture = Fixture::new(&[&claim("storageClassName: fast")]);
    fixture
        .drivers
        .insert("csi.example".to_owned(), DriverCapabilities::default());
    let notice = fixture.only_waiting();
    assert!(
        notice.message.contains("CREATE_DELETE_VOLUME"),
        "{notice:?}"
    );
}

/// A manifest that hasn't been read yet may have a matching volume, or the claim itself.
#[test]
fn nothing_is_planned_before_all_manifests_were_read() {
    let mut fixture = Fixture::new(&[&claim_of_size("1Gi"), &pod("web", DATA)]);
    fixture.is_complete = false;
    assert_eq!(fixture.plan(), Plan::default());
    fixture.unreadable_manifest = Some("/m/a.yaml: no");
    let notice = fixture.only_notice();
    assert_eq!(
        (notice.reason, notice.message.as_str()),
        ("FailedBinding", "/m/a.yaml: no")
    );
    let mut fixture = Fixture::with_provisioned_volume();
    fixture.remove(Kind::PersistentVolumeClaim, "data");
    fixture.is_complete = false;
    assert_eq!(fixture.plan(), Plan::default());
}

#[test]
fn a_storage_class_may_wait_for_the_first_consumer() {
    let mut fixture = Fixture::new(&[&claim("storageClassName: late")]);
    assert_eq!(fixture.only_waiting().reason, "WaitForFirstConsumer");
    fixture.apply(&[&pod("web", DATA)]);
    let step = fixture.only_step();
    assert!(matches!(step, ClaimStep::Create(_)), "{step:?}");
}

#[test]
fn a_claim_whose_volume_is_gone_is_lost() {
    let volume = volume("pv-1", "capacity: {storage: 1Gi}");
    let mut fixture = Fixture::new(&[&volume, &claim("volumeName: pv-1")]);
    fixture.assert_settled();
    fixture.remove(Kind::PersistentVolume, "pv-1");
    assert_eq!(fixture.only_waiting().reason, "ClaimLost");
    assert_eq!(fixture.claim()["status"]["phase"], "Lost");
    let other_claim = claim("storageClassName: ''").replace("name: data", "name: a-first");
    fixture.apply(&[&other_claim]);
    assert_eq!(fixture.settle().waiting.len(), 2);
    fixture.apply(&[&volume]);
    assert_eq!(fixture.only_waiting().regarding.name.name, "a-first");
    assert_eq!(fixture.claim()["status"]["phase"], "Bound");
}

#[test]
fn an_ephemeral_claim_is_created_and_deleted_with_its_pod() {
    let template = "{metadata: {labels: {a: b}}, spec: {storageClassName: late, accessModes: [ReadWriteOncePod]}}";
    let ephemeral = format!("ephemeral: {{volumeClaimTemplate: {template}}}");
    let mut fixture = Fixture::new(&[&pod("web", &ephemeral)]);
    fixture.create();
    fixture.assert_settled();
    let claim = fixture.document(Kind::PersistentVolumeClaim, "web-v");
    let owner = json!([{
        "apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "web-uid",
        "controller": true, "blockOwnerDeletion": true,
    }]);
    assert_eq!(claim["metadata"]["ownerReferences"], owner);
    assert_eq!(claim["metadata"]["labels"], json!({"a": "b"}));
    assert_eq!(claim["status"]["phase"], "Bound");
    fixture.remove(Kind::Pod, "web");
    let step = fixture.only_step();
    assert!(matches!(step, ClaimStep::Delete(_)), "{step:?}");
    // An existing claim with the same name isn't changed.
    let other = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: web-v}\nspec: {storageClassName: late}";
    let mut fixture = Fixture::new(&[&pod("web", &ephemeral), other]);
    fixture.settle();
    let claim = fixture.document(Kind::PersistentVolumeClaim, "web-v");
    assert_eq!(claim["metadata"].get("ownerReferences"), None);
}

#[test]
fn an_invalid_ephemeral_claim_is_an_event_of_its_pod() {
    let long = "w".repeat(253);
    let ephemeral = "ephemeral: {volumeClaimTemplate: {spec: {storageClassName: late}}}";
    let long_name = pod(&long, ephemeral).replace(&format!(", uid: {long}-uid"), "");
    for (pod, expected) in [
        (long_name, "is not a valid claim name"),
        (
            pod("web", "ephemeral: {}"),
            "volumeClaimTemplate is missing",
        ),
    ] {
        let notice = Fixture::new(&[&pod]).only_waiting();
        assert_eq!(notice.regarding.kind, Kind::Pod);
        assert!(notice.message.contains(expected), "{notice:?}");
    }
}
