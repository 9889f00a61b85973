//! A REQUIRED field that is missing, or a path that isn't one: `INVALID_ARGUMENT`, and the field's name.

use crust_proto::csi::v1::volume_capability::AccessMode;
use crust_proto::csi::v1::{NodePublishVolumeRequest, NodeStageVolumeRequest, VolumeCapability};
use runcrust_tests::csi::{Call, create_request, filesystem};
use tonic::Code;

use crate::refused;
use crate::scene::Scene;

/// A field's name, and how it gets lost.
type Case<C> = (&'static str, fn(&mut C));

/// With each loss the call is refused; without one it isn't.
#[track_caller]
fn each_is_required<C: Call>(scene: &Scene, whole: C, cases: &[Case<C>]) {
    for (field, lose) in cases {
        let mut request = whole.clone();
        lose(&mut request);
        let message = refused(scene.call(request.clone()), Code::InvalidArgument);
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

fn there(capability: &mut Option<VolumeCapability>) -> &mut VolumeCapability {
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
        there(&mut it.volume_capability).access_type = None;
    }),
    ("volume_capability", |it| {
        there(&mut it.volume_capability).access_mode = None;
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
        there(&mut it.volume_capability).access_type = None;
    }),
    ("volume_capability", |it| {
        there(&mut it.volume_capability).access_mode = None;
    }),
];

/// In the order of a volume's life: the request that has all its fields is carried out.
#[test]
fn every_required_field_of_each_call_is_asked_for() {
    let scene = Scene::new();
    each_is_required(
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
    each_is_required(
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
    each_is_required(&scene, volume.stage(), STAGE);
    let target = scene.target("pod", "pv");
    each_is_required(&scene, volume.publish(&target), PUBLISH);
    each_is_required(
        &scene,
        volume.stats(&target),
        &[
            ("volume_id", |it| it.volume_id.clear()),
            ("volume_path", |it| it.volume_path.clear()),
        ],
    );
    each_is_required(
        &scene,
        volume.expand(&target, volume.capacity),
        &[
            ("volume_id", |it| it.volume_id.clear()),
            ("volume_path", |it| it.volume_path.clear()),
        ],
    );
    each_is_required(
        &scene,
        volume.unpublish(&target),
        &[
            ("volume_id", |it| it.volume_id.clear()),
            ("target_path", |it| it.target_path.clear()),
            ("target_path", |it| it.target_path = "mount".to_owned()),
        ],
    );
    each_is_required(
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
    each_is_required(
        &scene,
        volume.grow(volume.capacity * 2),
        &[
            ("volume_id", |it| it.volume_id.clear()),
            ("capacity_range", |it| it.capacity_range = None),
        ],
    );
    each_is_required(
        &scene,
        volume.delete(),
        &[("volume_id", |it| it.volume_id.clear())],
    );
}

/// It is OPTIONAL in the message, and what a plugin with `STAGE_UNSTAGE_VOLUME` says has a row of its
/// own in the specification's table.
#[test]
fn publishing_without_a_staging_path_is_a_precondition() {
    let (scene, volume) = Scene::with_staged(filesystem("ext4"));
    let target = scene.target("pod", "pv");
    let mut request = volume.publish(&target);
    request.staging_target_path.clear();
    let message = refused(scene.call(request), Code::FailedPrecondition);
    assert!(message.contains("staging_target_path"), "{message}");
    assert!(!target.exists());
}
