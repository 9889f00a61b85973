//! Tests of the choice of a claim's volume.

use super::*;

#[test]
fn a_claim_gets_the_smallest_volume_that_fits() {
    let large = volume("a-large", "capacity: {storage: 5Gi}");
    let small = volume("small", "capacity: {storage: 2Gi}");
    let smaller = volume("smaller", "capacity: {storage: 1Gi}");
    let classy = volume(
        "classy",
        "capacity: {storage: 2Gi}\n  storageClassName: fast",
    );
    let block = volume("block", "capacity: {storage: 2Gi}\n  volumeMode: Block");
    let held = volume(
        "held",
        "capacity: {storage: 2Gi}\n  claimRef: {name: other, namespace: default}",
    );
    let narrow = volume("narrow", "capacity: {storage: 2Gi}").replace("ReadWriteOnce, ", "");
    let wanted = claim("storageClassName: '', resources: {requests: {storage: 1500Mi}}");
    let all = [&large, &small, &smaller, &classy, &block, &held, &narrow];
    let mut bench = Bench::new(&all.map(String::as_str));
    bench.apply(&[&wanted]);
    bench.rest();
    let claim = bench.claim();
    assert_eq!(claim["spec"]["volumeName"], "small");
    assert_eq!(claim["status"]["phase"], "Bound");
    assert_eq!(claim["status"]["capacity"]["storage"], "2Gi");
    let modes = json!(["ReadWriteOnce", "ReadOnlyMany"]);
    assert_eq!(claim["status"]["accessModes"], modes, "the volume's");
    let uid = &claim["metadata"]["uid"];
    let bound = bench.document(Kind::PersistentVolume, "small");
    assert_eq!(&bound["spec"]["claimRef"]["uid"], uid);
    assert_eq!(bound["status"]["phase"], "Bound");
    assert_eq!(bench.phase(Kind::PersistentVolume, "a-large"), "Available");
}

#[test]
fn a_volume_that_names_a_claim_is_its() {
    let small = volume("a-small", "capacity: {storage: 1Gi}");
    let meant = volume(
        "meant",
        "capacity: {storage: 9Gi}\n  claimRef: {name: data, namespace: default}",
    );
    let mut bench = Bench::new(&[&small, &meant, &claim("storageClassName: ''")]);
    bench.rest();
    assert_eq!(bench.claim()["spec"]["volumeName"], "meant");
    let narrow = meant.replace("ReadWriteOnce, ", "");
    let mut bench = Bench::new(&[&small, &narrow, &claim("storageClassName: ''")]);
    let told = bench.waiting();
    assert_eq!(told.reason, "VolumeMismatch");
    assert!(
        told.message.ends_with("\"meant\": incompatible accessMode"),
        "{told:?}"
    );
}

#[test]
fn a_volume_is_one_claims() {
    let one = volume("pv-1", "capacity: {storage: 1Gi}");
    let by_name = claim("volumeName: pv-1");
    let other = by_name.replace("name: data", "name: other");
    for (first, second) in [(&by_name, &other), (&claim("storageClassName: ''"), &other)] {
        let mut bench = Bench::new(&[&one, first, second]);
        let told = bench.waiting();
        assert_eq!(told.regarding.name.name, "other");
        assert_eq!(told.reason, "FailedBinding");
        assert_eq!(bench.phase(Kind::PersistentVolumeClaim, "data"), "Bound");
        assert_eq!(bench.phase(Kind::PersistentVolumeClaim, "other"), "Pending");
    }
}

#[test]
fn a_claim_that_has_to_wait_says_for_what() {
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
        ("storageClassName: by-hand", "FailedBinding", "makes none"),
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
            "hint: volumeName",
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
            "\"lots\" is no amount",
        ),
    ];
    for (spec, reason, message) in cases {
        let told = Bench::new(&[&claim(spec)]).waiting();
        assert_eq!(told.reason, reason, "{spec}: {told:?}");
        assert!(told.message.contains(message), "{spec}: {told:?}");
    }
    let mut bench = Bench::new(&[&claim("storageClassName: fast")]);
    bench
        .drivers
        .insert("csi.example".to_owned(), DriverCapabilities::default());
    let told = bench.waiting();
    assert!(told.message.contains("CREATE_DELETE_VOLUME"), "{told:?}");
}

/// A volume that would fit, or the claim itself, may yet come.
#[test]
fn nothing_is_done_before_all_is_known() {
    let mut bench = Bench::new(&[&wanting("1Gi"), &pod("web", DATA)]);
    bench.is_known = false;
    assert_eq!(bench.plan(), Plan::default());
    bench.unread = Some("/m/a.yaml: no");
    let told = bench.notice();
    assert_eq!(
        (told.reason, told.message.as_str()),
        ("FailedBinding", "/m/a.yaml: no")
    );
    let mut bench = Bench::provisioned();
    bench.remove(Kind::PersistentVolumeClaim, "data");
    bench.is_known = false;
    assert_eq!(bench.plan(), Plan::default());
}

#[test]
fn a_class_may_wait_for_a_pod() {
    let mut bench = Bench::new(&[&claim("storageClassName: late")]);
    assert_eq!(bench.waiting().reason, "WaitForFirstConsumer");
    bench.apply(&[&pod("web", DATA)]);
    let step = bench.step();
    assert!(matches!(step, Step::Create(_)), "{step:?}");
}

#[test]
fn a_claim_whose_volume_is_gone_is_lost() {
    let one = volume("pv-1", "capacity: {storage: 1Gi}");
    let mut bench = Bench::new(&[&one, &claim("volumeName: pv-1")]);
    bench.rest();
    bench.remove(Kind::PersistentVolume, "pv-1");
    assert_eq!(bench.waiting().reason, "ClaimLost");
    assert_eq!(bench.claim()["status"]["phase"], "Lost");
    let other = claim("storageClassName: ''").replace("name: data", "name: a-first");
    bench.apply(&[&other]);
    assert_eq!(bench.settle().waiting.len(), 2);
    bench.apply(&[&one]);
    assert_eq!(bench.waiting().regarding.name.name, "a-first");
    assert_eq!(bench.claim()["status"]["phase"], "Bound");
}

#[test]
fn a_pods_own_claim_comes_and_goes_with_it() {
    let template = "{metadata: {labels: {a: b}}, spec: {storageClassName: late, accessModes: [ReadWriteOncePod]}}";
    let own = format!("ephemeral: {{volumeClaimTemplate: {template}}}");
    let mut bench = Bench::new(&[&pod("web", &own)]);
    bench.create();
    bench.rest();
    let claim = bench.document(Kind::PersistentVolumeClaim, "web-v");
    let owner = json!([{
        "apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "web-uid",
        "controller": true, "blockOwnerDeletion": true,
    }]);
    assert_eq!(claim["metadata"]["ownerReferences"], owner);
    assert_eq!(claim["metadata"]["labels"], json!({"a": "b"}));
    assert_eq!(claim["status"]["phase"], "Bound");
    bench.remove(Kind::Pod, "web");
    let step = bench.step();
    assert!(matches!(step, Step::Delete(_)), "{step:?}");
    // One of its name that somebody else wrote stays his.
    let other = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: web-v}\nspec: {storageClassName: late}";
    let mut bench = Bench::new(&[&pod("web", &own), other]);
    bench.settle();
    let claim = bench.document(Kind::PersistentVolumeClaim, "web-v");
    assert_eq!(claim["metadata"].get("ownerReferences"), None);
}

#[test]
fn a_claim_that_a_pod_cannot_bring_is_the_pods_problem() {
    let long = "w".repeat(253);
    let own = "ephemeral: {volumeClaimTemplate: {spec: {storageClassName: late}}}";
    let named = pod(&long, own).replace(&format!(", uid: {long}-uid"), "");
    for (pod, told) in [
        (named, "is no claim's name"),
        (pod("web", "ephemeral: {}"), "no volumeClaimTemplate"),
    ] {
        let notice = Bench::new(&[&pod]).waiting();
        assert_eq!(notice.regarding.kind, Kind::Pod);
        assert!(notice.message.contains(told), "{notice:?}");
    }
}
