//! Tests of edited manifests of volumes that were made.

use super::*;

fn said(spec: &str) -> String {
    format!(
        "
apiVersion: v1
kind: PersistentVolume
metadata: {{name: pvc-uid-1, labels: {{a: b}}}}
spec: {{{spec}}}
status: {{phase: Released}}
"
    )
}

#[test]
fn what_may_change_of_a_volume_is_its_authors_to_say() {
    let mut bench = Bench::provisioned();
    let text = said(
        "persistentVolumeReclaimPolicy: Retain, mountOptions: [ro], accessModes: [ReadWriteOncePod], capacity: {storage: 5Gi}",
    );
    bench.apply(&[&text]);
    bench.rest();
    let check = |bench: &Bench| {
        let volume = bench.document(Kind::PersistentVolume, "pvc-uid-1");
        let spec = &volume["spec"];
        assert_eq!(spec["persistentVolumeReclaimPolicy"], "Retain");
        assert_eq!(spec["mountOptions"], json!(["ro"]));
        assert_eq!(spec["accessModes"], json!(["ReadWriteOncePod"]));
        assert_eq!(spec["capacity"]["storage"], "1Gi", "the driver says");
        assert_eq!(spec["csi"]["volumeHandle"], "handle-1");
        assert_eq!(spec["claimRef"]["uid"], "uid-1");
        assert_eq!(volume["metadata"]["labels"], json!({"a": "b"}));
        assert_eq!(volume["status"]["phase"], "Bound");
    };
    check(&bench);
    // It counts also where the manifest goes: who moves a file loses no data.
    bench.remove(Kind::PersistentVolume, "pvc-uid-1");
    bench.rest();
    check(&bench);
    bench.delete_claim();
    bench.rest();
    assert_eq!(bench.phase(Kind::PersistentVolume, "pvc-uid-1"), "Released");
}

/// A key without a value is as if it weren't there: by its annotations the volume is known as ours.
#[test]
fn what_nobody_has_said_changes_nothing() {
    let mut bench = Bench::provisioned();
    let before = bench.records.clone();
    let text = said("persistentVolumeReclaimPolicy: null, mountOptions: null");
    bench.apply(&[&text.replace("labels: {a: b}", "annotations: null")]);
    bench.rest();
    assert_eq!(bench.records, before);
    let another = "annotations: {pv.kubernetes.io/provisioned-by: another}";
    bench.apply(&[&text.replace("labels: {a: b}", another)]);
    bench.rest();
    assert_eq!(bench.records, before);
}

/// Both come at the same time.
#[test]
fn a_retain_policy_is_seen_before_a_volume_is_deleted() {
    let mut bench = Bench::provisioned();
    bench.delete_claim();
    assert!(matches!(bench.step(), Step::Delete(_)));
    bench.apply(&[&said("persistentVolumeReclaimPolicy: Retain")]);
    let plan = bench.plan();
    assert!(matches!(&plan.steps[..], [Step::Write(_)]), "{plan:?}");
    bench.rest();
    bench.apply(&[&said("persistentVolumeReclaimPolicy: Delete")]);
    assert!(matches!(bench.step(), Step::Delete(_)));
}

#[test]
fn what_cannot_change_of_a_volume_is_told_and_stays() {
    let mut bench = Bench::provisioned();
    let text = said(
        "csi: {driver: csi.example, volumeHandle: another, readOnly: true}, volumeMode: Block, claimRef: {name: other}",
    );
    bench.apply(&[&text]);
    let told = bench.notice();
    assert_eq!(told.reason, "FailedUpdate");
    assert!(
        told.message
            .starts_with("csi, claimRef, volumeMode can't change"),
        "{told:?}"
    );
    let volume = bench.document(Kind::PersistentVolume, "pvc-uid-1");
    assert_eq!(volume["spec"]["csi"]["volumeHandle"], "handle-1");
    assert_eq!(volume["spec"]["csi"].get("readOnly"), None);
    assert_eq!(volume["spec"]["volumeMode"], "Filesystem");
    assert_eq!(volume["spec"]["claimRef"]["name"], "data");
    bench.apply(&[&said("csi: {driver: csi.example, volumeHandle: handle-1}")]);
    bench.rest();
}
