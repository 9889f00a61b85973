//! Errors name the volume, in the message and in the details for programs.

use std::fs;

use crust_proto::csi::v1::ListVolumesRequest;
use runcrust_tests::csi::{block, create_request};
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::data::ImmutableFile;
use crate::scene::Scene;

/// Returns the reason and the volume of an error's `ErrorInfo`.
#[track_caller]
fn error_info(status: &Status) -> (String, Option<String>) {
    let info = status.get_details_error_info().expect("an ErrorInfo");
    assert_eq!(info.domain, "crust.dev", "{status}");
    (info.reason, info.metadata.get("volume").cloned())
}

#[test]
fn every_error_names_the_volume() {
    let (scene, volume) = Scene::with_volume(block());
    let record = scene
        .data()
        .join("volumes")
        .join(format!("{}.json", volume.id));
    let expected = |reason: &str| (reason.to_owned(), Some(volume.id.clone()));

    let too_large = scene.call(volume.grow(i64::MAX)).expect_err("too large");
    assert_eq!(error_info(&too_large), expected("CAPACITY_RANGE"));
    let mut without_path = volume.stage();
    without_path.staging_target_path.clear();
    let without_path = scene.call(without_path).expect_err("a field is missing");
    assert_eq!(error_info(&without_path), expected("INVALID_FIELD"));
    let without_name = scene
        .call(create_request("", block()))
        .expect_err("without a name");
    assert_eq!(without_name.code(), Code::InvalidArgument);

    let text = fs::read(&record).expect("the record");
    fs::write(&record, "{").expect("the record");
    for status in [
        scene
            .call(volume.stage())
            .expect_err("the record is damaged"),
        scene
            .call(volume.validate())
            .expect_err("the record is damaged"),
        scene
            .call(create_request("pv", block()))
            .expect_err("the record is damaged"),
    ] {
        assert_eq!(error_info(&status), expected("DATA"), "{status}");
        let start = format!("volume {}: record ", volume.id);
        assert!(status.message().starts_with(&start), "{status}");
    }
    fs::write(&record, text).expect("the record");

    let image = scene.image(&volume.id);
    let aside = image.with_extension("aside");
    fs::rename(&image, &aside).expect("rename");
    let missing = scene
        .call(volume.stage())
        .expect_err("the image is missing");
    assert_eq!(error_info(&missing), expected("DATA"));
    fs::rename(&aside, &image).expect("rename");

    let mut page = ListVolumesRequest::default();
    "none".clone_into(&mut page.starting_token);
    let page = scene.call(page).expect_err("no such page");
    assert_eq!(error_info(&page), ("STARTING_TOKEN".to_owned(), None));
}

#[test]
fn an_unwritable_record_is_reported_with_its_volume() {
    let (scene, volume) = Scene::with_volume(block());
    let immutable = ImmutableFile::make(&scene.data().join("volumes"));
    let status = scene
        .call(volume.stage())
        .expect_err("the record cannot be written");
    assert_eq!(
        error_info(&status),
        ("DATA".to_owned(), Some(volume.id.clone()))
    );
    let start = format!("volume {}: ", volume.id);
    assert!(status.message().starts_with(&start), "{status}");
    drop(immutable);
    scene.call_ok(volume.stage());
    scene.remove_volume(&volume, &[]);
}
