//! Requests about inline volumes that are refused. They leave nothing, and change no existing volume.

use std::path::PathBuf;

use crust_proto::csi::v1::NodePublishVolumeRequest;
use runcrust_tests::POD;
use runcrust_tests::csi::{CsiVolume, block, filesystem};
use tonic::Code;

use super::inline_volume;
use crate::scene::{Scene, read, write};
use crate::{expect_error, expect_error_in};

#[test]
fn invalid_attributes_of_an_inline_volume_are_refused() {
    let scene = Scene::new();
    let target = scene.target(POD, "scratch");
    for (key, value) in [
        ("crust.dev/size", ""),
        ("crust.dev/size", "0"),
        ("crust.dev/size", "-1"),
        ("crust.dev/size", "1.5Gi"),
        ("crust.dev/size", "16Ei"),
        ("crust.dev/defer", "yes"),
        ("crust.dev/fsgroup-change-policy", "Never"),
        ("crust.dev/path", "/etc"),
        ("csi.storage.k8s.io/fstype", "xfs"),
        ("size", "1Gi"),
        ("name", "../other"),
    ] {
        let volume = CsiVolume::inline(POD, "scratch", filesystem("ext4"), &[(key, value)]);
        let error = expect_error(scene.call(volume.publish(&target)), Code::InvalidArgument);
        assert!(error.contains(key) && error.contains(&volume.id), "{error}");
    }
    for capability in [block(), filesystem("nfs")] {
        let volume = CsiVolume::inline(POD, "scratch", capability, &[]);
        expect_error(scene.call(volume.publish(&target)), Code::InvalidArgument);
    }
    assert_eq!(scene.leftovers(), Vec::<PathBuf>::new());
    assert!(!target.exists());
}

type Change = fn(&mut NodePublishVolumeRequest);

#[test]
fn another_publish_of_an_inline_volume_is_refused() {
    let scene = Scene::new();
    let volume = inline_volume("scratch");
    let target = scene.target(POD, "scratch");
    let elsewhere = scene.target(POD, "other");
    scene.call_ok(volume.publish(&target));
    write(&target, "file", "data");
    let with = |key: &str, value: &str| {
        let mut request = volume.publish(&target);
        request
            .volume_context
            .insert(key.to_owned(), value.to_owned());
        request
    };
    let changes: [(&str, Change); 2] = [
        ("read-only", |it| it.readonly = true),
        ("deferred", |it| it.defer_fs_ops = true),
    ];
    let with_fields = changes.map(|(what, change)| {
        let mut request = volume.publish(&target);
        change(&mut request);
        (what, request, Code::AlreadyExists)
    });
    let other_context = [
        ("size", with("crust.dev/size", "8Mi"), Code::AlreadyExists),
        (
            "policy",
            with("crust.dev/fsgroup-change-policy", "Always"),
            Code::AlreadyExists,
        ),
        (
            "target",
            volume.publish(&elsewhere),
            Code::FailedPrecondition,
        ),
    ];
    for (what, request, code) in with_fields.into_iter().chain(other_context) {
        expect_error_in(scene.call(request), code, what);
        assert_eq!(read(&target, "file"), "data", "{what}");
    }
    scene.call_ok(volume.unpublish(&elsewhere));
    assert_eq!(read(&target, "file"), "data", "it was never there");
    scene.call_ok(volume.publish(&target));
    scene.call_ok(volume.unpublish(&target));
    assert_eq!(scene.leftovers(), Vec::<PathBuf>::new());
}
