//! A missing REQUIRED field or an invalid path is answered with `INVALID_ARGUMENT` and the field's name.

use crust_proto::csi::v1::volume_capability::AccessMode;
use crust_proto::csi::v1::{NodePublishVolumeRequest, NodeStageVolumeRequest, VolumeCapability};
use runcrust_tests::csi::{CsiRequest, create_request, filesystem};
use tonic::Code;

use crate::expect_error;
use crate::scene::Scene;

/// The name of a field, and a function that removes it or makes it invalid.
type Case<C> = (&'static str, fn(&mut C));

/// Asserts that a call is refused in each of the cases, and accepted with the whole request.
#[track_caller]
fn assert_each_is_required<C: CsiRequest>(scene: &Scene, whole: C, cases: &[Case<C>]) {
    for (field, spoil) in cases {
        let mut request = whole.clone();
        spoil(&mut request);
        let message = expect_error(scene.call(request.clone()), Code::InvalidArgument);
        assert!(
            message.contains(field),
            "{}, {field} of {request:?}: {message}",
            C::NAME
        );
    }
    scene
        .call(whole)
        .unwrap_or_else(|status| panic!("{}, a request with all fields: {status}", C::NAME));
}

fn capability_of(capability: &mut Option<VolumeCapability>) -> &mut VolumeCapability {
    capability.as_mut().expect("a capability")
}

const STAGE: &[Case<NodeStageVolumeRequest>] = &[
    ("volume_id", |it| it.volume_id.clear()),
    ("staging_target_path", |it| it.staging_target_path.clear()),
    ("staging_target_path", |it| {
        it.staging_target_path = "globalmount".into();
    }),
    ("staging_target_path", |it| {
        it.staging_target_path.push_str("/../up");
    }),
    ("volume_capability", |it| it.volume_capability = None),
    ("volume_capability", |it| {
        capability_of(&mut it.volume_capability).access_type = None;
    }),
    ("volume_capability", |it| {
        capability_of(&mut it.volume_capability).access_mode = None;
    }),
];

const PUBLISH: &[Case<NodePublishVolumeRequest>] = &[
    ("volume_id", |it| it.volume_id.clear()),
    ("target_path", |it| it.target_path.clear()),
    ("target_path", |it| it.target_path = "mount".into()),
    ("target_path", |it| it.target_path.push_str("/../up")),
    ("staging_target_path", |it| {
        it.staging_target_path = "globalmount".into();
    }),
    ("volume_capability", |it| it.volume_capability = None),
    ("volume_capability", |it| {
        capability_of(&mut it.volume_capability).access_type = None;
    }),
    ("volume_capability", |it| {
        capability_of(&mut it.volume_capability).access_mode = None;
    }),
];

/// The calls are in the order of a volume's life, because the unmodified requests are carried out.
#[test]
fn each_required_field_of_each_call_is_checked() {
    let scene = Scene::new();
    assert_each_is_required(
        &scene,
        create_request("pv", filesystem("ext4")),
        &[
            ("name", |it| it.name.clear()),
            ("volume_capabilities", |it| it.volume_capabilities.clear()),
            ("volume_capabilities", |it| {
                it.volume_capabilities[0].access_type = None;
            }),
            ("volume_capabilities", |it| {
                it.volume_capabilities[0].access_mode = None;
            }),
            ("volume_capabilities", |it| {
                it.volume_capabilities[0].access_mode = Some(AccessMode::default());
            }),
        ],
    );
    let volume = scene.volume("pv", filesystem("ext4"));
    assert_each_is_required(
        &scene,
        volume.validate(),
        &[
            ("volume_id", |it| it.volume_id.clear()),
            ("volume_capabilities", |it| it.volume_capabilities.clear()),
            ("volume_capabilities", |it| {
                it.volume_capabilities[0].access_type = None;
            }),
            ("volume_capabilities", |it| {
                it.volume_capabilities[0].access_mode = None;
            }),
        ],
    );
    assert_each_is_required(&scene, volume.stage(), STAGE);
    let target = scene.target("pod", "pv");
    assert_each_is_required(&scene, volume.publish(&target), PUBLISH);
    assert_each_is_required(
        &scene,
        volume.stats(&target),
        &[
            ("volume_id", |it| it.volume_id.clear()),
            ("volume_path", |it| it.volume_path.clear()),
        ],
    );
    assert_each_is_required(
        &scene,
        volume.expand(&target, volume.capacity),
        &[
            ("volume_id", |it| it.volume_id.clear()),
            ("volume_path", |it| it.volume_path.clear()),
        ],
    );
    assert_each_is_required(
        &scene,
        volume.unpublish(&target),
        &[
            ("volume_id", |it| it.volume_id.clear()),
            ("target_path", |it| it.target_path.clear()),
            ("target_path", |it| it.target_path = "mount".to_owned()),
        ],
    );
    assert_each_is_required(
        &scene,
        volume.unstage(),
        &[
            ("volume_id", |it| it.volume_id.clear()),
            ("staging_target_path", |it| it.staging_target_path.clear()),
            ("staging_target_path", |it| {
                it.staging_target_path = "globalmount".to_owned();
            }),
        ],
    );
    assert_each_is_required(
        &scene,
        volume.grow(volume.capacity * 2),
        &[
            ("volume_id", |it| it.volume_id.clear()),
            ("capacity_range", |it| it.capacity_range = None),
        ],
    );
    assert_each_is_required(
        &scene,
        volume.delete(),
        &[("volume_id", |it| it.volume_id.clear())],
    );
}

/// The field is OPTIONAL in the message. The specification's table of errors has a row for a plugin with
/// `STAGE_UNSTAGE_VOLUME`.
#[test]
fn publishing_without_a_staging_path_is_refused() {
    let (scene, volume) = Scene::with_staged(filesystem("ext4"));
    let target = scene.target("pod", "pv");
    let mut request = volume.publish(&target);
    request.staging_target_path.clear();
    let message = expect_error(scene.call(request), Code::FailedPrecondition);
    assert!(message.contains("staging_target_path"), "{message}");
    assert!(!target.exists());
}
