//! `CreateVolume`: one volume for each name, with the requested properties.

mod names;

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use crust_proto::csi::v1::volume_capability::access_mode::Mode;
use crust_proto::csi::v1::volume_content_source::{SnapshotSource, Type as Source, VolumeSource};
use crust_proto::csi::v1::{CapacityRange, CreateVolumeRequest, VolumeContentSource};
use runcrust_tests::csi::{block, create_request, filesystem, mount_of};
use tonic::Code;

use crate::expect_error_in;
use crate::scene::Scene;

const MIB: i64 = 1 << 20;

fn request() -> CreateVolumeRequest {
    create_request("pv", filesystem("ext4"))
}

const fn range(required_bytes: i64, limit_bytes: i64) -> CapacityRange {
    CapacityRange {
        required_bytes,
        limit_bytes,
    }
}

type Change = fn(&mut CreateVolumeRequest);

fn strings(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    pairs.iter().map(owned).collect()
}

fn set_mode(request: &mut CreateVolumeRequest, mode: i32) {
    let access = request.volume_capabilities[0].access_mode.as_mut();
    access.expect("a mode").mode = mode;
}

#[test]
fn a_volume_has_the_requested_properties() {
    let scene = Scene::new();
    let mut request = request();
    request.capacity_range = Some(range(40 * MIB, 48 * MIB));
    request.parameters = strings(&[
        ("crust.dev/defer", "true"),
        ("crust.dev/fsgroup-change-policy", "OnRootMismatch"),
        ("csi.storage.k8s.io/pvc/name", "data"),
    ]);
    let volume = scene.call_ok(request.clone()).volume;
    let volume = volume.expect("a REQUIRED field");
    assert!((1..=128).contains(&volume.volume_id.len()), "{volume:?}");
    assert!(
        (40 * MIB..=48 * MIB).contains(&volume.capacity_bytes),
        "{volume:?}"
    );
    assert_eq!(volume.content_source, None);
    // The context that node calls receive contains the driver's parameters, and not those of the provisioner.
    request.parameters.remove("csi.storage.k8s.io/pvc/name");
    assert_eq!(volume.volume_context, request.parameters);
    let image = fs::metadata(scene.image(&volume.volume_id)).expect("the image");
    assert_eq!(i64::try_from(image.len()), Ok(volume.capacity_bytes));
    assert_eq!(image.blocks(), 0, "the image is sparse");
    assert_eq!(
        image.permissions().mode() & 0o777,
        0o600,
        "only root may read the data of tenants"
    );
}

#[test]
fn a_name_has_one_volume() {
    let scene = Scene::new();
    let first = scene.call_ok(request());
    assert_eq!(scene.call(request()).expect("the repeated call"), first);
    scene.restart(&[]);
    assert_eq!(scene.call(request()).expect("after a restart"), first);
    let id = first.volume.expect("a REQUIRED field").volume_id;
    assert_eq!(scene.ids(), [id.as_str()]);
    assert_ne!(scene.volume("pv-2", filesystem("ext4")).id, id);
}

#[test]
fn an_existing_name_with_a_fitting_size_is_the_same_volume() {
    let scene = Scene::new();
    let mut request = request();
    request.capacity_range = Some(range(40 * MIB, 0));
    let first = scene.call_ok(request.clone());
    for range in [
        None,
        Some(range(0, 0)),
        Some(range(33 * MIB, 0)),
        Some(range(0, 41 * MIB)),
        Some(range(1, 40 * MIB)),
    ] {
        request.capacity_range = range;
        let answer = scene.call(request.clone());
        assert_eq!(
            answer.unwrap_or_else(|status| panic!("{range:?}: {status}")),
            first
        );
    }
}

#[test]
fn an_existing_name_with_other_parameters_is_refused() {
    let scene = Scene::new();
    let mut first = request();
    first.capacity_range = Some(range(40 * MIB, 0));
    let volume = scene.create_volume(first.clone());
    let others: [(&str, Change); 4] = [
        ("larger", |it| it.capacity_range = Some(range(41 * MIB, 0))),
        ("smaller", |it| it.capacity_range = Some(range(0, 39 * MIB))),
        ("deferred", |it| {
            it.parameters = strings(&[("crust.dev/defer", "true")]);
        }),
        ("with a policy", |it| {
            it.parameters = strings(&[("crust.dev/fsgroup-change-policy", "Always")]);
        }),
    ];
    for (what, change) in others {
        let mut other = first.clone();
        change(&mut other);
        expect_error_in(scene.call(other), Code::AlreadyExists, what);
    }
    let image = fs::metadata(scene.image(&volume.id)).expect("the image");
    assert_eq!(
        i64::try_from(image.len()),
        Ok(volume.capacity),
        "the volume is unchanged"
    );
    assert_eq!(scene.ids(), [volume.id]);
}

#[test]
fn an_invalid_request_creates_nothing() {
    let scene = Scene::new();
    let content = |source| {
        Some(VolumeContentSource {
            r#type: Some(source),
        })
    };
    let snapshot = content(Source::Snapshot(SnapshotSource {
        snapshot_id: "snapshot".to_owned(),
    }));
    let clone = content(Source::Volume(VolumeSource {
        volume_id: "volume".to_owned(),
    }));
    let mut cases: Vec<(String, CreateVolumeRequest)> = Vec::new();
    let mut case = |what: &str, change: &dyn Fn(&mut CreateVolumeRequest)| {
        let mut wrong = request();
        change(&mut wrong);
        cases.push((what.to_owned(), wrong));
    };
    case("required_bytes -1", &|it| {
        it.capacity_range = Some(range(-1, 0));
    });
    case("limit_bytes -1", &|it| {
        it.capacity_range = Some(range(0, -1));
    });
    case("limit below required", &|it| {
        it.capacity_range = Some(range(64 * MIB, 63 * MIB));
    });
    case("a snapshot", &|it| {
        it.volume_content_source.clone_from(&snapshot);
    });
    case("a clone", &|it| it.volume_content_source.clone_from(&clone));
    case("a mutable parameter", &|it| {
        it.mutable_parameters = strings(&[("iops", "5")]);
    });
    for pair in [
        ("size", "big"),
        ("crust.dev/deferred", "true"),
        ("crust.dev/defer", "yes"),
        ("crust.dev/defer", ""),
        ("crust.dev/fsgroup-change-policy", "Never"),
    ] {
        case(&format!("{pair:?}"), &|it| it.parameters = strings(&[pair]));
    }
    for mode in [
        Mode::MultiNodeReaderOnly,
        Mode::MultiNodeSingleWriter,
        Mode::MultiNodeMultiWriter,
    ] {
        case(mode.as_str_name(), &|it| set_mode(it, mode.into()));
    }
    case("an access mode to come", &|it| set_mode(it, 99));
    for fstype in ["ntfs", "ext4 ", "../ext4", "overlay"] {
        case(fstype, &|it| {
            mount_of(&mut it.volume_capabilities[0]).fs_type = fstype.to_owned();
        });
    }
    case("one of several uses", &|it| {
        let mut other = filesystem("ntfs");
        std::mem::swap(&mut it.volume_capabilities[0], &mut other);
        it.volume_capabilities.insert(0, other);
    });
    for (what, wrong) in cases {
        expect_error_in(scene.call(wrong), Code::InvalidArgument, &what);
    }
    assert_eq!(scene.ids(), Vec::<String>::new());
    assert_eq!(scene.leftovers(), Vec::<std::path::PathBuf>::new());
}

#[test]
fn a_size_that_no_volume_can_have_is_out_of_range() {
    let scene = Scene::new();
    for range in [
        range(1, 1),
        range(0, 1),
        range(40 * MIB + 1, 40 * MIB + 2),
        range(i64::MAX, 0),
    ] {
        let mut request = request();
        request.capacity_range = Some(range);
        expect_error_in(scene.call(request), Code::OutOfRange, &format!("{range:?}"));
    }
    let mut xfs = create_request("pv", filesystem("xfs"));
    xfs.capacity_range = Some(range(0, 100 * MIB));
    expect_error_in(scene.call(xfs), Code::OutOfRange, "an xfs of 100 MiB");
    assert_eq!(scene.leftovers(), Vec::<std::path::PathBuf>::new());
}

#[test]
fn without_a_size_the_driver_chooses_one() {
    let scene = Scene::new();
    let mut request = request();
    request.capacity_range = None;
    let volume = scene.create_volume(request);
    assert!(volume.capacity > 0, "{volume:?}");
}

#[test]
fn a_volume_may_be_for_several_uses() {
    let scene = Scene::new();
    let mut request = create_request("pv", block());
    request.volume_capabilities.push(filesystem("ext4"));
    request.capacity_range = None;
    let mut volume = scene.create_volume(request);
    volume.capability = filesystem("ext4");
    scene.call_ok(volume.stage());
    scene.remove_volume(&volume, &[]);
}
