//! What is told of a call that failed, to people and to programs: always which volume.

use std::fs;

use crust_proto::csi::v1::ListVolumesRequest;
use runcrust_tests::csi::{block, create_request};
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::data::Immutable;
use crate::scene::Scene;

/// The reason, and the volume.
#[track_caller]
fn told(status: &Status) -> (String, Option<String>) {
    let info = status.get_details_error_info().expect("an ErrorInfo");
    assert_eq!(info.domain, "crust.dev", "{status}");
    (info.reason, info.metadata.get("volume").cloned())
}

#[test]
fn whatever_is_wrong_the_volume_is_named() {
    let (scene, volume) = Scene::with_volume(block());
    let record = scene
        .data()
        .join("volumes")
        .join(format!("{}.json", volume.id));
    let of = |reason: &str| (reason.to_owned(), Some(volume.id.clone()));

    let shrunk = scene.call(volume.grow(i64::MAX)).expect_err("too large");
    assert_eq!(told(&shrunk), of("CAPACITY_RANGE"));
    let mut nowhere = volume.stage();
    nowhere.staging_target_path.clear();
    let nowhere = scene.call(nowhere).expect_err("a field is missing");
    assert_eq!(told(&nowhere), of("INVALID_FIELD"));
    let nobody = scene
        .call(create_request("", block()))
        .expect_err("without a name");
    assert_eq!(nobody.code(), Code::InvalidArgument);

    let text = fs::read(&record).expect("its record");
    fs::write(&record, "{").expect("its record");
    for status in [
        scene
            .call(volume.stage())
            .expect_err("its record is broken"),
        scene
            .call(volume.validate())
            .expect_err("its record is broken"),
        scene
            .call(create_request("pv", block()))
            .expect_err("its record is broken"),
    ] {
        assert_eq!(told(&status), of("DATA"), "{status}");
        let begins = format!("volume {}: record ", volume.id);
        assert!(status.message().starts_with(&begins), "{status}");
    }
    fs::write(&record, text).expect("its record");

    let image = scene.image(&volume.id);
    let aside = image.with_extension("aside");
    fs::rename(&image, &aside).expect("rename");
    let missing = scene
        .call(volume.stage())
        .expect_err("its image is missing");
    assert_eq!(told(&missing), of("DATA"));
    fs::rename(&aside, &image).expect("rename");

    let mut page = ListVolumesRequest::default();
    "none".clone_into(&mut page.starting_token);
    let page = scene.call(page).expect_err("no such page");
    assert_eq!(told(&page), ("STARTING_TOKEN".to_owned(), None));
}

#[test]
fn a_record_that_cannot_be_kept_is_told_with_its_volume() {
    let (scene, volume) = Scene::with_volume(block());
    let immutable = Immutable::make(&scene.data().join("volumes"));
    let status = scene.call(volume.stage()).expect_err("it can't be kept");
    assert_eq!(told(&status), ("DATA".to_owned(), Some(volume.id.clone())));
    let begins = format!("volume {}: ", volume.id);
    assert!(status.message().starts_with(&begins), "{status}");
    drop(immutable);
    scene.call_ok(volume.stage());
    scene.put_away(&volume, &[]);
}
