//! Tests of the deletion of claims and volumes.

use std::path::Path;

use super::*;

/// Marks the claim in a manifest as deleted.
fn mark_deleted(text: &str) -> String {
    text.replace(
        "{name: data}",
        "{name: data, deletionTimestamp: '2026-01-01T00:00:00Z'}",
    )
}

impl Fixture {
    fn delete_volume(&mut self) {
        let name = Name::new("", "pvc-uid-1");
        assert!(self.records.is_provisioned(&name.name));
        self.write(RecordUpdate::deleted(Kind::PersistentVolume, &name, NOW));
    }

    #[track_caller]
    fn assert_deletes(&mut self) {
        let step = self.only_step();
        assert!(matches!(step, ClaimStep::Delete(_)), "{step:?}");
    }

    /// Returns a node with a provisioned volume whose reclaim policy is `Retain`.
    fn with_retain_class() -> Self {
        let class = CLASS.replacen("provisioner:", "reclaimPolicy: Retain\nprovisioner:", 1);
        let mut fixture = Self::new(&[&class, &claim_of_size("1Gi")]);
        fixture.create();
        fixture.assert_settled();
        fixture
    }
}

#[test]
fn a_deleted_claim_stays_for_its_pods_but_gets_no_volume() {
    let fits = volume("pv-1", "capacity: {storage: 1Gi}");
    for spec in [
        "storageClassName: fast",
        "volumeName: pv-1",
        "storageClassName: ''",
    ] {
        let text = claim(spec);
        let mut fixture = Fixture::new(&[&fits, &mark_deleted(&text), &pod("web", DATA)]);
        fixture.assert_settled();
        assert_eq!(fixture.claim()["status"]["phase"], "Pending", "{spec}");
        fixture.remove(Kind::Pod, "web");
        fixture.assert_settled();
        assert!(fixture.manifests.claims.is_empty());
        assert_eq!(fixture.records, Records::default());
    }
    // A deleted claim keeps its volume while a pod uses it.
    let mut fixture = Fixture::with_provisioned_volume();
    fixture.apply(&[&mark_deleted(&claim_of_size("1Gi")), &pod("web", DATA)]);
    fixture.assert_settled();
    assert_eq!(fixture.claim()["status"]["phase"], "Bound");
    fixture.remove(Kind::Pod, "web");
    fixture.assert_deletes();
}

/// The record of the deleted claim stays until all manifests can be read.
#[test]
fn a_claim_that_is_created_again_after_its_deletion_is_new() {
    let mut fixture = Fixture::with_provisioned_volume();
    fixture.delete_claim();
    fixture.unreadable_manifest = Some("unread");
    fixture.apply(&[&claim_of_size("1Gi"), &pod("web", DATA)]);
    fixture.assert_settled();
    assert_eq!(fixture.claim()["spec"].get("volumeName"), None);
    fixture.unreadable_manifest = None;
    let plan = fixture.settle();
    let [ClaimStep::Create(create), ClaimStep::Delete(delete)] = &plan.steps[..] else {
        panic!("{plan:?}");
    };
    assert_eq!(delete.volume, "pvc-uid-1");
    assert_ne!(create.request.name, "pvc-uid-1");
}

/// The manifest that can't be read may say that the volume has to be kept.
#[test]
fn an_unreadable_manifest_stops_deletion_but_not_binding() {
    let unreadable_manifest = "waiting until all manifests can be read: /m/a.yaml: no";
    let mut fixture = Fixture::new(&[&claim_of_size("1Gi")]);
    fixture.unreadable_manifest = Some(unreadable_manifest);
    fixture.create();
    fixture.assert_settled();
    assert_eq!(fixture.claim()["status"]["phase"], "Bound");
    fixture.apply(&[&mark_deleted(&claim_of_size("1Gi"))]);
    let notice = fixture.only_notice();
    assert_eq!(
        (notice.reason, notice.message.as_str()),
        ("FailedDelete", unreadable_manifest)
    );
    fixture.unreadable_manifest = None;
    fixture.assert_deletes();
    fixture.unreadable_manifest = Some(unreadable_manifest);
    let notice = fixture.only_notice();
    assert_eq!(notice.regarding.kind, Kind::PersistentVolume);
    assert_eq!(
        (notice.reason, notice.message.as_str()),
        ("VolumeFailedDelete", unreadable_manifest)
    );
}

/// The manifest comes from an export, which has the claim's UID.
#[test]
fn a_released_volume_is_not_bound_again() {
    let same = claim_of_size("1Gi").replace("{name: data}", "{name: data, uid: same}");
    let mut fixture = Fixture::new(&[&same]);
    fixture.create();
    fixture.assert_settled();
    fixture.delete_claim();
    fixture.assert_deletes();
    let exported = same
        .replace(
            "uid: same}",
            "uid: same, annotations: {pv.kubernetes.io/bind-completed: 'yes'}}",
        )
        .replace("spec: {", "spec: {volumeName: pvc-same, ");
    fixture.apply(&[&exported]);
    let plan = fixture.settle();
    assert_eq!(plan.waiting[0].reason, "ClaimMisbound");
    assert!(
        matches!(&plan.steps[..], [ClaimStep::Delete(_)]),
        "{plan:?}"
    );
    assert_eq!(
        fixture.phase(Kind::PersistentVolume, "pvc-same"),
        "Released"
    );
}

#[test]
fn a_deleted_volume_is_reclaimed_by_its_policy_after_its_claim() {
    let mut fixture = Fixture::with_provisioned_volume();
    fixture.delete_volume();
    let notice = fixture.only_notice();
    assert_eq!(notice.reason, "VolumeInUse");
    assert!(
        notice
            .message
            .contains("persistentvolumeclaim default/data"),
        "{notice:?}"
    );
    assert_eq!(fixture.claim()["status"]["phase"], "Bound");
    fixture.delete_claim();
    fixture.assert_deletes();
    // With the policy `Retain`, a deleted volume's record is removed, and the driver keeps its data.
    let mut fixture = Fixture::with_retain_class();
    fixture.delete_claim();
    fixture.assert_settled();
    fixture.take_reasons();
    fixture.delete_volume();
    fixture.mount(Mounter::Driver);
    fixture.assert_settled();
    fixture.actual = ActualState::default();
    fixture.assert_settled();
    assert_eq!(fixture.take_reasons(), ["VolumeKept"]);
    assert_eq!(fixture.records, Records::default());
}

#[test]
fn a_volume_is_kept_while_its_driver_cannot_delete_it() {
    let mut fixture = Fixture::with_provisioned_volume();
    fixture.delete_claim();
    fixture
        .drivers
        .insert("csi.example".to_owned(), DriverCapabilities::default());
    let notice = fixture.only_waiting();
    assert_eq!(notice.reason, "VolumeFailedDelete");
    assert!(
        notice.message.contains("CREATE_DELETE_VOLUME"),
        "{notice:?}"
    );
    assert!(notice.message.contains("handle-1"), "{notice:?}");
    assert!(fixture.records.is_provisioned("pvc-uid-1"));
}

/// The record in the directory can't be read, so the volume isn't part of the actual state.
#[test]
fn a_volume_is_kept_while_its_directory_is_unreadable() {
    let staged = layout().staged(&id());
    let published = Path::new("/root-dir/pods/u/volumes/kubernetes.io~csi/pvc-uid-1");
    for path in [staged.as_path(), published] {
        let mut fixture = Fixture::with_provisioned_volume();
        fixture.delete_claim();
        fixture.unreadable_directories = vec![path.to_owned()];
        let notice = fixture.only_notice();
        assert_eq!(notice.reason, "VolumeFailedDelete");
        assert!(
            notice.message.starts_with(path.to_str().unwrap()),
            "{notice:?}"
        );
        fixture.unreadable_directories = vec![path.with_file_name("another")];
        fixture.assert_deletes();
    }
}
