//! Tests of the creation and the deletion of volumes.

use crust_proto::csi::v1::volume_capability::AccessType;
use crust_proto::csi::v1::volume_capability::access_mode::Mode;

use super::*;

#[test]
fn create_requests_are_those_of_external_provisioner() {
    let text =
        claim_of_size("1500Mi").replace("[ReadWriteOnce]", "[ReadWriteOncePod, ReadOnlyMany]");
    let mut fixture = Fixture::new(&[&text]);
    let ClaimStep::Create(create) = fixture.only_step() else {
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
        .map(|capability| {
            let Some(AccessType::Mount(mount)) = &capability.access_type else {
                panic!("{capability:?}");
            };
            assert_eq!(
                (mount.fs_type.as_str(), mount.mount_flags.as_slice()),
                ("ext4", &["noatime".to_owned()][..])
            );
            capability.access_mode.expect("a mode").mode
        })
        .collect();
    let expected = [Mode::SingleNodeSingleWriter, Mode::MultiNodeReaderOnly];
    assert_eq!(modes, expected.map(i32::from), "KEP-2485");
    assert_eq!(create.started().reason, "Provisioning");
}

#[test]
fn provisioned_volumes_are_those_of_external_provisioner() {
    let mut fixture = Fixture::new(&[&claim_of_size("1Gi")]);
    fixture.create();
    fixture.assert_settled();
    assert_eq!(fixture.take_reasons(), ["ProvisioningSucceeded"]);
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
        fixture.document(Kind::PersistentVolume, "pvc-uid-1"),
        expected
    );
    assert_eq!(fixture.claim()["spec"]["volumeName"], "pvc-uid-1");
    assert_eq!(fixture.claim()["status"]["phase"], "Bound");
}

#[test]
fn an_invalid_response_of_the_driver_is_an_error() {
    let mut fixture = Fixture::new(&[&claim_of_size("1Gi")]);
    let ClaimStep::Create(create) = fixture.only_step() else {
        panic!("no step");
    };
    let small = create
        .volume_record(response("handle-1", GI - 1))
        .unwrap_err();
    let without_id = create
        .volume_record(CreateVolumeResponse::default())
        .unwrap_err();
    assert_eq!(
        without_id,
        ProvisionError::NoVolumeId("csi.example".to_owned())
    );
    let notice = create.failed(&small);
    assert_eq!(notice.reason, "ProvisioningFailed");
    assert!(
        notice.message.contains("StorageClass \"fast\""),
        "{notice:?}"
    );
    assert!(notice.message.contains("1073741823 bytes"), "{notice:?}");
    let larger = create
        .volume_record(response("handle-1", 3 * GI))
        .expect("a volume");
    assert_eq!(larger.patch["spec"]["capacity"]["storage"], "3Gi");
}

#[test]
fn an_unclaimed_volume_is_deleted_once_unused() {
    let mut fixture = Fixture::with_provisioned_volume();
    fixture.apply(&[&pod("web", DATA)]);
    fixture.mount(Mounter::Deferred);
    fixture.delete_claim();
    fixture.assert_settled();
    assert_eq!(
        fixture.phase(Kind::PersistentVolume, "pvc-uid-1"),
        "Bound",
        "a pod uses it"
    );
    fixture.remove(Kind::Pod, "web");
    fixture.assert_settled();
    assert_eq!(
        fixture.phase(Kind::PersistentVolume, "pvc-uid-1"),
        "Released"
    );
    fixture.actual = ActualState::default();
    let ClaimStep::Delete(delete) = fixture.only_step() else {
        panic!("no step");
    };
    assert_eq!(delete.request.volume_id, "handle-1");
    assert_eq!(delete.secret, Some(Name::new("keys", "maker")));
    assert_eq!(delete.failed("it is busy").reason, "VolumeFailedDelete");
    fixture.forget(&delete.succeeded());
    fixture.assert_settled();
    assert_eq!(fixture.records, Records::default());
}

/// If the volume were deleted, moving the file or mounting the manifests' directory late would lose data.
#[test]
fn a_claim_without_a_manifest_keeps_its_volume() {
    let mut fixture = Fixture::with_provisioned_volume();
    fixture.remove(Kind::PersistentVolumeClaim, "data");
    let notice = fixture.only_notice();
    assert_eq!(notice.reason, "ManifestMissing");
    assert_eq!(notice.regarding.name.name, "data");
    assert!(
        notice.message.contains("volume pvc-uid-1 is kept"),
        "{notice:?}"
    );
    assert_eq!(fixture.phase(Kind::PersistentVolume, "pvc-uid-1"), "Bound");
    fixture.apply(&[&claim_of_size("1Gi")]);
    fixture.assert_settled();
    assert_eq!(fixture.claim()["spec"]["volumeName"], "pvc-uid-1");
    assert_eq!(fixture.claim()["status"]["phase"], "Bound");
}

/// A new claim must not get the data of an earlier one.
#[test]
fn a_claim_named_like_a_deleted_one_gets_another_volume() {
    let mut fixture = Fixture::with_provisioned_volume();
    fixture.mount(Mounter::Driver);
    fixture.delete_claim();
    fixture.assert_settled();
    fixture.apply(&[&claim_of_size("1Gi")]);
    let ClaimStep::Create(create) = fixture.only_step() else {
        panic!("no step");
    };
    assert_ne!(create.request.name, "pvc-uid-1");
}

#[test]
fn retained_volumes_and_those_with_a_manifest_are_not_deleted() {
    let keeping = CLASS.replace(
        "provisioner: csi.example\nallow",
        "provisioner: csi.example\nreclaimPolicy: Retain\nallow",
    );
    let mut fixture = Fixture::new(&[&keeping, &claim_of_size("1Gi")]);
    fixture.create();
    fixture.assert_settled();
    fixture.delete_claim();
    fixture.assert_settled();
    assert_eq!(
        fixture.phase(Kind::PersistentVolume, "pvc-uid-1"),
        "Released"
    );
    let spec = "capacity: {storage: 1Gi}\n  persistentVolumeReclaimPolicy: Delete";
    let mut fixture = Fixture::new(&[&volume("pv-1", spec), &claim("volumeName: pv-1")]);
    fixture.assert_settled();
    fixture.delete_claim();
    fixture.assert_settled();
    assert_eq!(fixture.phase(Kind::PersistentVolume, "pv-1"), "Released");
    fixture.remove(Kind::PersistentVolume, "pv-1");
    fixture.assert_settled();
    assert_eq!(fixture.records, Records::default());
}
