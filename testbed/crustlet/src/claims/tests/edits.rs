//! Tests of manifests that change provisioned volumes.

use super::*;

fn edited_volume(spec: &str) -> String {
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
fn a_manifest_changes_the_mutable_fields_of_a_volume() {
    let mut fixture = Fixture::with_provisioned_volume();
    let text = edited_volume(
        "persistentVolumeReclaimPolicy: Retain, mountOptions: [ro], accessModes: [ReadWriteOncePod], capacity: {storage: 5Gi}",
    );
    fixture.apply(&[&text]);
    fixture.assert_settled();
    let check = |fixture: &Fixture| {
        let volume = fixture.document(Kind::PersistentVolume, "pvc-uid-1");
        let spec = &volume["spec"];
        assert_eq!(spec["persistentVolumeReclaimPolicy"], "Retain");
        assert_eq!(spec["mountOptions"], json!(["ro"]));
        assert_eq!(spec["accessModes"], json!(["ReadWriteOncePod"]));
        assert_eq!(
            spec["capacity"]["storage"], "1Gi",
            "the size is the driver's"
        );
        assert_eq!(spec["csi"]["volumeHandle"], "handle-1");
        assert_eq!(spec["claimRef"]["uid"], "uid-1");
        assert_eq!(volume["metadata"]["labels"], json!({"a": "b"}));
        assert_eq!(volume["status"]["phase"], "Bound");
    };
    check(&fixture);
    // Removing the manifest does not revert the changes. A manifest that is moved is removed for a moment, and a volume
    // must not lose its `Retain` then.
    fixture.remove(Kind::PersistentVolume, "pvc-uid-1");
    fixture.assert_settled();
    check(&fixture);
    fixture.delete_claim();
    fixture.assert_settled();
    assert_eq!(
        fixture.phase(Kind::PersistentVolume, "pvc-uid-1"),
        "Released"
    );
}

/// Null annotations must not remove the annotation that marks the volume as provisioned.
#[test]
fn null_fields_and_the_provisioner_annotation_change_nothing() {
    let mut fixture = Fixture::with_provisioned_volume();
    let before = fixture.records.clone();
    let text = edited_volume("persistentVolumeReclaimPolicy: null, mountOptions: null");
    fixture.apply(&[&text.replace("labels: {a: b}", "annotations: null")]);
    fixture.assert_settled();
    assert_eq!(fixture.records, before);
    let another = "annotations: {pv.kubernetes.io/provisioned-by: another}";
    fixture.apply(&[&text.replace("labels: {a: b}", another)]);
    fixture.assert_settled();
    assert_eq!(fixture.records, before);
}

/// The claim is deleted at the same time as the policy is changed.
#[test]
fn a_changed_reclaim_policy_applies_before_a_volume_is_deleted() {
    let mut fixture = Fixture::with_provisioned_volume();
    fixture.delete_claim();
    assert!(matches!(fixture.only_step(), ClaimStep::Delete(_)));
    fixture.apply(&[&edited_volume("persistentVolumeReclaimPolicy: Retain")]);
    let plan = fixture.plan();
    assert!(
        matches!(&plan.steps[..], [ClaimStep::Update(_)]),
        "{plan:?}"
    );
    fixture.assert_settled();
    fixture.apply(&[&edited_volume("persistentVolumeReclaimPolicy: Delete")]);
    assert!(matches!(fixture.only_step(), ClaimStep::Delete(_)));
}

#[test]
fn immutable_fields_of_a_volume_stay_and_an_event_names_them() {
    let mut fixture = Fixture::with_provisioned_volume();
    let text = edited_volume(
        "csi: {driver: csi.example, volumeHandle: another, readOnly: true}, volumeMode: Block, claimRef: {name: other}",
    );
    fixture.apply(&[&text]);
    let notice = fixture.only_notice();
    assert_eq!(notice.reason, "FailedUpdate");
    assert!(
        notice
            .message
            .starts_with("csi, claimRef, volumeMode can't change"),
        "{notice:?}"
    );
    let volume = fixture.document(Kind::PersistentVolume, "pvc-uid-1");
    assert_eq!(volume["spec"]["csi"]["volumeHandle"], "handle-1");
    assert_eq!(volume["spec"]["csi"].get("readOnly"), None);
    assert_eq!(volume["spec"]["volumeMode"], "Filesystem");
    assert_eq!(volume["spec"]["claimRef"]["name"], "data");
    fixture.apply(&[&edited_volume(
        "csi: {driver: csi.example, volumeHandle: handle-1}",
    )]);
    fixture.assert_settled();
}
