//! A REQUIRED field that is missing, or a path that isn't one: `INVALID_ARGUMENT`, and the field's name.

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
        assert!(message.contains(field), "{request:?}: {message}");
    }
    scene.call(whole).expect("the request as it should be");
}

#[test]
fn of_create_volume() {
    let scene = Scene::new();
    let request = create_request("pv", filesystem("ext4"));
    each_is_required(
        &scene,
        request,
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
                let mode = &mut it.volume_capabilities[0].access_mode;
                *mode = Some(crust_proto::csi::v1::volume_capability::AccessMode::default());
            }),
        ],
    );
}

#[test]
fn of_delete_volume() {
    let (scene, volume) = Scene::with_volume(filesystem("ext4"));
    each_is_required(
        &scene,
        volume.delete(),
        &[("volume_id", |it| it.volume_id.clear())],
    );
}

#[test]
fn of_validate_volume_capabilities() {
    let (scene, volume) = Scene::with_volume(filesystem("ext4"));
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
}

#[test]
fn of_controller_expand_volume() {
    let (scene, volume) = Scene::with_volume(filesystem("ext4"));
    each_is_required(
        &scene,
        volume.grow(volume.capacity * 2),
        &[
            ("volume_id", |it| it.volume_id.clear()),
            ("capacity_range", |it| it.capacity_range = None),
        ],
    );
}

#[test]
fn of_node_stage_volume() {
    let (scene, volume) = Scene::with_volume(filesystem("ext4"));
    each_is_required(
        &scene,
        volume.stage(),
        &[
            ("volume_id", |it| it.volume_id.clear()),
            ("staging_target_path", |it| it.staging_target_path.clear()),
            ("staging_target_path", |it| {
                it.staging_target_path = "globalmount".to_owned();
            }),
            ("staging_target_path", |it| {
                it.staging_target_path.push_str("/../up");
            }),
            ("volume_capability", |it| it.volume_capability = None),
            ("volume_capability", |it| {
                it.volume_capability
                    .as_mut()
                    .expect("it is there")
                    .access_type = None;
            }),
            ("volume_capability", |it| {
                it.volume_capability
                    .as_mut()
                    .expect("it is there")
                    .access_mode = None;
            }),
        ],
    );
}

#[test]
fn of_node_unstage_volume() {
    let (scene, volume) = Scene::with_staged(filesystem("ext4"));
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
}

#[test]
fn of_node_publish_volume() {
    let (scene, volume) = Scene::with_staged(filesystem("ext4"));
    let target = scene.target("pod", "pv");
    each_is_required(
        &scene,
        volume.publish(&target),
        &[
            ("volume_id", |it| it.volume_id.clear()),
            ("target_path", |it| it.target_path.clear()),
            ("target_path", |it| it.target_path = "mount".to_owned()),
            ("target_path", |it| it.target_path.push_str("/../up")),
            ("staging_target_path", |it| {
                it.staging_target_path = "globalmount".to_owned();
            }),
            ("volume_capability", |it| it.volume_capability = None),
            ("volume_capability", |it| {
                it.volume_capability
                    .as_mut()
                    .expect("it is there")
                    .access_type = None;
            }),
            ("volume_capability", |it| {
                it.volume_capability
                    .as_mut()
                    .expect("it is there")
                    .access_mode = None;
            }),
        ],
    );
}

/// It is OPTIONAL in the message, and what a plugin with `STAGE_UNSTAGE_VOLUME` says has a row of its
/// own in the specification's table.
#[test]
fn of_node_publish_volume_the_staging_path_is_a_precondition() {
    let (scene, volume) = Scene::with_staged(filesystem("ext4"));
    let target = scene.target("pod", "pv");
    let mut request = volume.publish(&target);
    request.staging_target_path.clear();
    let message = refused(scene.call(request), Code::FailedPrecondition);
    assert!(message.contains("staging_target_path"), "{message}");
    assert!(!target.exists());
}

#[test]
fn of_node_unpublish_volume() {
    let (scene, volume) = Scene::with_staged(filesystem("ext4"));
    let target = scene.publish(&volume, "pod");
    each_is_required(
        &scene,
        volume.unpublish(&target),
        &[
            ("volume_id", |it| it.volume_id.clear()),
            ("target_path", |it| it.target_path.clear()),
            ("target_path", |it| it.target_path = "mount".to_owned()),
        ],
    );
}

#[test]
fn of_node_get_volume_stats() {
    let (scene, volume) = Scene::with_staged(filesystem("ext4"));
    let target = scene.publish(&volume, "pod");
    each_is_required(
        &scene,
        volume.stats(&target),
        &[
            ("volume_id", |it| it.volume_id.clear()),
            ("volume_path", |it| it.volume_path.clear()),
        ],
    );
}

#[test]
fn of_node_expand_volume() {
    let (scene, volume) = Scene::with_staged(filesystem("ext4"));
    let target = scene.publish(&volume, "pod");
    each_is_required(
        &scene,
        volume.expand(&target, volume.capacity),
        &[
            ("volume_id", |it| it.volume_id.clear()),
            ("volume_path", |it| it.volume_path.clear()),
        ],
    );
}
