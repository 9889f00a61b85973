//! `ValidateVolumeCapabilities`: a request is confirmed as a whole, or refused with a reason.

use crust_proto::csi::v1::volume_capability::access_mode::Mode;
use crust_proto::csi::v1::{ValidateVolumeCapabilitiesRequest, VolumeCapability};
use runcrust_tests::csi::{CsiVolume, block, create_request, filesystem, mount_of};
use tonic::Code;

use crate::expect_error;
use crate::scene::Scene;

const DEFER: &str = "crust.dev/defer";

type Change = fn(&mut ValidateVolumeCapabilitiesRequest);

fn set_mode(request: &mut ValidateVolumeCapabilitiesRequest, mode: Mode) {
    let access = request.volume_capabilities[0].access_mode.as_mut();
    access.expect("a mode").set_mode(mode);
}

fn scene_with_request() -> (Scene, ValidateVolumeCapabilitiesRequest) {
    let scene_with_request = Scene::new();
    let mut request = create_request("pv", filesystem("ext4"));
    request
        .parameters
        .insert(DEFER.to_owned(), "true".to_owned());
    let volume = scene_with_request.create_volume(request);
    let request = volume.validate();
    (scene_with_request, request)
}

#[test]
fn supported_capabilities_are_confirmed() {
    let (scene_with_request, request) = scene_with_request();
    let cases: [(&str, Change); 6] = [
        ("as it was made", |_| {}),
        ("as a block device", |it| {
            it.volume_capabilities = vec![block()];
        }),
        ("as both", |it| it.volume_capabilities.push(block())),
        ("for one pod", |it| {
            set_mode(it, Mode::SingleNodeSingleWriter);
        }),
        ("with its parameters", |it| {
            it.parameters = it.volume_context.clone();
        }),
        ("without its context", |it| it.volume_context.clear()),
    ];
    for (what, change) in cases {
        let mut request = request.clone();
        change(&mut request);
        let answer = scene_with_request.call(request.clone());
        let answer = answer.unwrap_or_else(|status| panic!("{what}: {status}"));
        let confirmed = answer
            .confirmed
            .unwrap_or_else(|| panic!("{what}: {}", answer.message));
        assert_eq!(
            confirmed.volume_capabilities, request.volume_capabilities,
            "{what}"
        );
        assert_eq!(confirmed.volume_context, request.volume_context, "{what}");
        assert_eq!(confirmed.parameters, request.parameters, "{what}");
    }
}

/// Asserts for each capability that it is confirmed, or, with `Some`, refused with a reason that contains the text.
fn assert_confirmed(
    scene_with_request: &Scene,
    volume: &CsiVolume,
    cases: &[(VolumeCapability, Option<&str>)],
) {
    for (capability, expect_error) in cases {
        let mut request = volume.validate();
        request.volume_capabilities = vec![capability.clone()];
        let answer = scene_with_request.call_ok(request);
        let context = format!("{capability:?}: {}", answer.message);
        assert_eq!(
            answer.confirmed.is_none(),
            expect_error.is_some(),
            "{context}"
        );
        assert!(
            answer.message.contains(expect_error.unwrap_or_default()),
            "{context}"
        );
    }
}

#[test]
fn a_file_system_that_is_too_large_is_not_confirmed() {
    let (scene_with_request, volume) = Scene::with_volume(block());
    let cases = [
        (filesystem("xfs"), Some("need")),
        (filesystem("btrfs"), Some("need")),
        (filesystem("ext4"), None),
        (block(), None),
    ];
    assert_confirmed(&scene_with_request, &volume, &cases);
}

#[test]
fn another_file_system_type_is_not_confirmed() {
    let (scene_with_request, volume) = Scene::with_staged(filesystem("ext4"));
    let cases = [
        (filesystem("ext3"), Some("holds ext4")),
        (filesystem("ext4"), None),
        (block(), None),
    ];
    assert_confirmed(&scene_with_request, &volume, &cases);
    let repeated = create_request("pv", filesystem("ext3"));
    let message = expect_error(scene_with_request.call(repeated), Code::AlreadyExists);
    assert!(message.contains("holds ext4"), "{message}");

    // An ext3 can be mounted as ext4, but this does not make it an ext4.
    let mut older = scene_with_request.staged("older", filesystem("ext3"));
    scene_with_request.unpublish_and_unstage(&older, &[]);
    older.capability = filesystem("ext4");
    scene_with_request.call_ok(older.stage());
    assert_confirmed(
        &scene_with_request,
        &older,
        &[(filesystem("ext3"), None), (filesystem("ext4"), None)],
    );
}

#[test]
fn unsupported_capabilities_are_refused_with_a_reason() {
    let (scene_with_request, request) = scene_with_request();
    let cases: [(&str, Change); 8] = [
        ("MULTI_NODE_MULTI_WRITER", |it| {
            set_mode(it, Mode::MultiNodeMultiWriter);
        }),
        ("MULTI_NODE_SINGLE_WRITER", |it| {
            set_mode(it, Mode::MultiNodeSingleWriter);
        }),
        ("MULTI_NODE_READER_ONLY", |it| {
            set_mode(it, Mode::MultiNodeReaderOnly);
        }),
        ("a file system that isn't known", |it| {
            "ntfs".clone_into(&mut mount_of(&mut it.volume_capabilities[0]).fs_type);
        }),
        ("one of several uses", |it| {
            it.volume_capabilities.push(filesystem("ntfs"));
        }),
        ("another context", |it| {
            it.volume_context
                .insert(DEFER.to_owned(), "false".to_owned());
        }),
        ("other parameters", |it| {
            it.parameters.insert(DEFER.to_owned(), "false".to_owned());
        }),
        ("parameters that aren't known", |it| {
            it.parameters.insert("size".to_owned(), "big".to_owned());
        }),
    ];
    for (what, change) in cases {
        let mut request = request.clone();
        change(&mut request);
        let answer = scene_with_request.call(request);
        let answer = answer.unwrap_or_else(|status| panic!("{what}: {status}"));
        assert_eq!(answer.confirmed, None, "{what}");
        assert!(!answer.message.is_empty(), "{what}: no reason");
    }
}
