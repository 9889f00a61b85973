//! Tests of volumes that are made and deleted.

use crust_proto::csi::v1::volume_capability::AccessType;
use crust_proto::csi::v1::volume_capability::access_mode::Mode;

use super::*;

#[test]
fn create_requests_match_external_provisioners() {
    let text = wanting("1500Mi").replace("[ReadWriteOnce]", "[ReadWriteOncePod, ReadOnlyMany]");
    let mut bench = Bench::new(&[&text]);
    let Step::Create(create) = bench.step() else {
        panic!("no step");
    };
    let request = &create.request;
    assert_eq!(request.name, "pvc-uid-1");
    let range = request.capacity_range.expect("a range");
    assert_eq!((range.required_bytes, range.limit_bytes), (1500 << 20, 0));
    let parameters = [("type".to_owned(), "fast".to_owned())];
    assert_eq!(request.parameters, parameters.into());
    assert_eq!(create.secret, Some(Name::new("keys", "maker")));
    let capabilities = request.volume_capabilities.iter();
    let modes: Vec<i32> = capabilities
        .map(|it| {
            let Some(AccessType::Mount(mount)) = &it.access_type else {
                panic!("{it:?}");
            };
            assert_eq!(
                (mount.fs_type.as_str(), mount.mount_flags.as_slice()),
                ("ext4", &["noatime".to_owned()][..])
            );
            it.access_mode.expect("a mode").mode
        })
        .collect();
    let expected = [Mode::SingleNodeSingleWriter, Mode::MultiNodeReaderOnly];
    assert_eq!(modes, expected.map(i32::from), "KEP-2485");
    assert_eq!(create.begun().reason, "Provisioning");
}

#[test]
fn a_volume_that_was_made_is_as_external_provisioner_writes_it() {
    let mut bench = Bench::new(&[&wanting("1Gi")]);
    bench.create();
    bench.rest();
    assert_eq!(bench.reasons(), ["ProvisioningSucceeded"]);
    let expected = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": "pvc-uid-1",
            "annotations": {
                "pv.kubernetes.io/provisioned-by": "csi.example",
                "volume.kubernetes.io/provisioner-deletion-secret-namespace": "keys",
                "volume.kubernetes.io/provisioner-deletion-secret-name": "maker",
            },
            "uid": "uid-2", "creationTimestamp": super::NOW,
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "1Gi"},
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": "default",
                "name": "data",
                "uid": "uid-1",
            },
            "csi": {
                "driver": "csi.example",
                "volumeHandle": "handle-1",
                "fsType": "ext4",
                "volumeAttributes": {"k": "v"},
                "nodeExpandSecretRef": {"name": "grower", "namespace": "keys"},
            },
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": "fast",
            "volumeMode": "Filesystem",
            "mountOptions": ["noatime"],
        },
        "status": {"phase": "Bound"},
    });
    assert_eq!(
        bench.document(Kind::PersistentVolume, "pvc-uid-1"),
        expected
    );
    assert_eq!(bench.claim()["spec"]["volumeName"], "pvc-uid-1");
    assert_eq!(bench.claim()["status"]["phase"], "Bound");
}

#[test]
fn an_answer_that_is_none_is_told() {
    let mut bench = Bench::new(&[&wanting("1Gi")]);
    let Step::Create(create) = bench.step() else {
        panic!("no step");
    };
    let small = create.made(answer("handle-1", GI - 1)).unwrap_err();
    let nameless = create.made(CreateVolumeResponse::default()).unwrap_err();
    assert_eq!(
        nameless,
        Unprovisionable::Nameless("csi.example".to_owned())
    );
    let told = create.failed(&small);
    assert_eq!(told.reason, "ProvisioningFailed");
    assert!(told.message.contains("StorageClass \"fast\""), "{told:?}");
    assert!(told.message.contains("1073741823 bytes"), "{told:?}");
    let larger = create.made(answer("handle-1", 3 * GI)).expect("a volume");
    assert_eq!(larger.patch["spec"]["capacity"]["storage"], "3Gi");
}

#[test]
fn an_unclaimed_volume_is_deleted_once_unused() {
    let mut bench = Bench::provisioned();
    bench.apply(&[&pod("web", DATA)]);
    bench.mount(Mounter::Deferred);
    bench.delete_claim();
    bench.rest();
    assert_eq!(
        bench.phase(Kind::PersistentVolume, "pvc-uid-1"),
        "Bound",
        "a pod has it"
    );
    bench.remove(Kind::Pod, "web");
    bench.rest();
    assert_eq!(bench.phase(Kind::PersistentVolume, "pvc-uid-1"), "Released");
    bench.actual = ActualState::default();
    let Step::Delete(delete) = bench.step() else {
        panic!("no step");
    };
    assert_eq!(delete.request.volume_id, "handle-1");
    assert_eq!(delete.secret, Some(Name::new("keys", "maker")));
    assert_eq!(delete.failed("it is busy").reason, "VolumeFailedDelete");
    bench.forget(&delete.done());
    bench.rest();
    assert_eq!(bench.records, Records::default());
}

/// Whoever moves a file, or mounts a directory late, loses no data.
#[test]
fn a_claim_whose_manifest_is_away_keeps_its_volume() {
    let mut bench = Bench::provisioned();
    bench.remove(Kind::PersistentVolumeClaim, "data");
    let told = bench.notice();
    assert_eq!(told.reason, "ManifestMissing");
    assert_eq!(told.regarding.name.name, "data");
    assert!(
        told.message.contains("volume pvc-uid-1 is kept"),
        "{told:?}"
    );
    assert_eq!(bench.phase(Kind::PersistentVolume, "pvc-uid-1"), "Bound");
    bench.apply(&[&wanting("1Gi")]);
    bench.rest();
    assert_eq!(bench.claim()["spec"]["volumeName"], "pvc-uid-1");
    assert_eq!(bench.claim()["status"]["phase"], "Bound");
}

/// It has its own data: no claim finds another's.
#[test]
fn a_claim_by_the_name_of_one_that_was_gets_another_volume() {
    let mut bench = Bench::provisioned();
    bench.mount(Mounter::Driver);
    bench.delete_claim();
    bench.rest();
    bench.apply(&[&wanting("1Gi")]);
    let Step::Create(create) = bench.step() else {
        panic!("no step");
    };
    assert_ne!(create.request.name, "pvc-uid-1");
}

#[test]
fn what_is_to_be_kept_or_was_not_made_here_is_not_destroyed() {
    let keeping = CLASS.replace(
        "provisioner: csi.example\nallow",
        "provisioner: csi.example\nreclaimPolicy: Retain\nallow",
    );
    let mut bench = Bench::new(&[&keeping, &wanting("1Gi")]);
    bench.create();
    bench.rest();
    bench.delete_claim();
    bench.rest();
    assert_eq!(bench.phase(Kind::PersistentVolume, "pvc-uid-1"), "Released");
    let spec = "capacity: {storage: 1Gi}\n  persistentVolumeReclaimPolicy: Delete";
    let mut bench = Bench::new(&[&volume("pv-1", spec), &claim("volumeName: pv-1")]);
    bench.rest();
    bench.delete_claim();
    bench.rest();
    assert_eq!(bench.phase(Kind::PersistentVolume, "pv-1"), "Released");
    bench.remove(Kind::PersistentVolume, "pv-1");
    bench.rest();
    assert_eq!(bench.records, Records::default());
}
