//! Tests of claims and volumes that are deleted.

use std::path::Path;

use super::*;

/// The claim says that it is to go.
fn deleted(text: &str) -> String {
    text.replace(
        "{name: data}",
        "{name: data, deletionTimestamp: '2026-01-01T00:00:00Z'}",
    )
}

impl Bench {
    fn delete_volume(&mut self) {
        let name = Name::new("", "pvc-uid-1");
        assert!(self.records.has_made(&name.name));
        self.write(Write::deleted(Kind::PersistentVolume, &name, NOW));
    }

    #[track_caller]
    fn assert_destroys(&mut self) {
        let step = self.step();
        assert!(matches!(step, Step::Delete(_)), "{step:?}");
    }

    /// Its class's volumes are to be kept.
    fn retaining() -> Self {
        let class = CLASS.replacen("provisioner:", "reclaimPolicy: Retain\nprovisioner:", 1);
        let mut bench = Self::new(&[&class, &wanting("1Gi")]);
        bench.create();
        bench.rest();
        bench
    }
}

#[test]
fn a_deleted_claim_gets_nothing_and_goes_after_its_pods() {
    let fits = volume("pv-1", "capacity: {storage: 1Gi}");
    for spec in [
        "storageClassName: fast",
        "volumeName: pv-1",
        "storageClassName: ''",
    ] {
        let text = claim(spec);
        let mut bench = Bench::new(&[&fits, &deleted(&text), &pod("web", DATA)]);
        bench.rest();
        assert_eq!(bench.claim()["status"]["phase"], "Pending", "{spec}");
        bench.remove(Kind::Pod, "web");
        bench.rest();
        assert!(bench.written.claims.is_empty());
        assert_eq!(bench.records, Records::default());
    }
    // What it has it keeps as long as a pod has it.
    let mut bench = Bench::provisioned();
    bench.apply(&[&deleted(&wanting("1Gi")), &pod("web", DATA)]);
    bench.rest();
    assert_eq!(bench.claim()["status"]["phase"], "Bound");
    bench.remove(Kind::Pod, "web");
    bench.assert_destroys();
}

/// Its record says that it went, and stays until nothing is in doubt.
#[test]
fn a_claim_that_is_written_again_after_it_went_is_another() {
    let mut bench = Bench::provisioned();
    bench.delete_claim();
    bench.unread = Some("unread");
    bench.apply(&[&wanting("1Gi"), &pod("web", DATA)]);
    bench.rest();
    assert_eq!(bench.claim()["spec"].get("volumeName"), None);
    bench.unread = None;
    let plan = bench.settle();
    let [Step::Create(create), Step::Delete(delete)] = &plan.steps[..] else {
        panic!("{plan:?}");
    };
    assert_eq!(delete.volume, "pvc-uid-1");
    assert_ne!(create.request.name, "pvc-uid-1");
}

/// What isn't known may be what somebody wrote to keep it.
#[test]
fn an_unreadable_manifest_stops_deletion_but_not_binding() {
    let unread = "it waits until all manifests can be read: /m/a.yaml: no";
    let mut bench = Bench::new(&[&wanting("1Gi")]);
    bench.unread = Some(unread);
    bench.create();
    bench.rest();
    assert_eq!(bench.claim()["status"]["phase"], "Bound");
    bench.apply(&[&deleted(&wanting("1Gi"))]);
    let told = bench.notice();
    assert_eq!(
        (told.reason, told.message.as_str()),
        ("FailedDelete", unread)
    );
    bench.unread = None;
    bench.assert_destroys();
    bench.unread = Some(unread);
    let told = bench.notice();
    assert_eq!(told.regarding.kind, Kind::PersistentVolume);
    assert_eq!(
        (told.reason, told.message.as_str()),
        ("VolumeFailedDelete", unread)
    );
}

/// An export has a claim's uid.
#[test]
fn a_volume_that_may_be_being_destroyed_is_nobodys_again() {
    let same = wanting("1Gi").replace("{name: data}", "{name: data, uid: same}");
    let mut bench = Bench::new(&[&same]);
    bench.create();
    bench.rest();
    bench.delete_claim();
    bench.assert_destroys();
    let exported = same
        .replace(
            "uid: same}",
            "uid: same, annotations: {pv.kubernetes.io/bind-completed: 'yes'}}",
        )
        .replace("spec: {", "spec: {volumeName: pvc-same, ");
    bench.apply(&[&exported]);
    let plan = bench.settle();
    assert_eq!(plan.waiting[0].reason, "ClaimMisbound");
    assert!(matches!(&plan.steps[..], [Step::Delete(_)]), "{plan:?}");
    assert_eq!(bench.phase(Kind::PersistentVolume, "pvc-same"), "Released");
}

#[test]
fn a_volume_that_is_deleted_goes_after_its_claim_by_its_policy() {
    let mut bench = Bench::provisioned();
    bench.delete_volume();
    let told = bench.notice();
    assert_eq!(told.reason, "VolumeInUse");
    assert!(
        told.message.contains("persistentvolumeclaim default/data"),
        "{told:?}"
    );
    assert_eq!(bench.claim()["status"]["phase"], "Bound");
    bench.delete_claim();
    bench.assert_destroys();
    // Kept by its policy, until it is deleted; then it is its driver's alone.
    let mut bench = Bench::retaining();
    bench.delete_claim();
    bench.rest();
    bench.reasons();
    bench.delete_volume();
    bench.mount(Mounter::Driver);
    bench.rest();
    bench.actual = ActualState::default();
    bench.rest();
    assert_eq!(bench.reasons(), ["VolumeKept"]);
    assert_eq!(bench.records, Records::default());
}

#[test]
fn a_volume_is_not_lost_with_a_driver_that_cannot_destroy_it() {
    let mut bench = Bench::provisioned();
    bench.delete_claim();
    bench
        .drivers
        .insert("csi.example".to_owned(), DriverCapabilities::default());
    let told = bench.waiting();
    assert_eq!(told.reason, "VolumeFailedDelete");
    assert!(told.message.contains("CREATE_DELETE_VOLUME"), "{told:?}");
    assert!(told.message.contains("handle-1"), "{told:?}");
    assert!(bench.records.has_made("pvc-uid-1"));
}

/// Its record is torn, so it isn't known as what there is.
#[test]
fn a_volume_is_not_destroyed_while_a_directory_may_be_its() {
    let staged = layout().staged(&id());
    let published = Path::new("/root-dir/pods/u/volumes/kubernetes.io~csi/pvc-uid-1");
    for path in [staged.as_path(), published] {
        let mut bench = Bench::provisioned();
        bench.delete_claim();
        bench.broken = vec![path.to_owned()];
        let told = bench.notice();
        assert_eq!(told.reason, "VolumeFailedDelete");
        assert!(told.message.starts_with(path.to_str().unwrap()), "{told:?}");
        bench.broken = vec![path.with_file_name("another")];
        bench.assert_destroys();
    }
}
