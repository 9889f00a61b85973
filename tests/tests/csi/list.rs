//! `ListVolumes`: all volumes, page by page, while volumes are created and deleted.

use std::collections::BTreeSet;

use crust_proto::csi::v1::{ListVolumesRequest, ListVolumesResponse};
use runcrust_tests::csi::{CsiVolume, filesystem};
use tonic::Code;

use crate::scene::Scene;
use crate::{expect_error, expect_error_in};

fn volumes(scene: &Scene, count: usize) -> Vec<CsiVolume> {
    let names = (0..count).map(|index| format!("pv-{index}"));
    names
        .map(|name| scene.volume(&name, filesystem("ext4")))
        .collect()
}

#[track_caller]
fn page(scene: &Scene, max_entries: i32, starting_token: &str) -> ListVolumesResponse {
    let request = ListVolumesRequest {
        max_entries,
        starting_token: starting_token.to_owned(),
    };
    scene.call_ok(request)
}

fn ids(page: &ListVolumesResponse) -> Vec<String> {
    let volumes = page.entries.iter().map(|entry| entry.volume.as_ref());
    volumes
        .map(|volume| volume.expect("a REQUIRED field").volume_id.clone())
        .collect()
}

#[test]
fn the_list_is_empty_at_first() {
    let scene = Scene::new();
    assert_eq!(page(&scene, 0, ""), ListVolumesResponse::default());
    assert_eq!(page(&scene, 5, ""), ListVolumesResponse::default());
}

#[test]
fn volumes_are_listed_as_they_were_created() {
    let scene = Scene::new();
    let request = runcrust_tests::csi::create_request("pv", filesystem("ext4"));
    let created = scene.call_ok(request);
    let listed = page(&scene, 0, "");
    assert_eq!(listed.next_token, "");
    assert_eq!(listed.entries.len(), 1);
    assert_eq!(listed.entries[0].volume, created.volume);
    let made = volumes(&scene, 5);
    assert_eq!(scene.ids().len(), 6);
    scene.call_ok(made[2].delete());
    let left = scene.ids();
    assert!(left.len() == 5 && !left.contains(&made[2].id), "{left:?}");
}

#[test]
fn pages_have_each_volume_once() {
    let scene = Scene::new();
    let made: BTreeSet<String> = volumes(&scene, 5).into_iter().map(|it| it.id).collect();
    for size in 1..=6 {
        let mut listed = Vec::new();
        let mut token = String::new();
        loop {
            let page = page(&scene, size, &token);
            assert!(page.entries.len() <= usize::try_from(size).expect("a small number"));
            listed.extend(ids(&page));
            token = page.next_token;
            if token.is_empty() {
                break;
            }
            assert!(listed.len() < 5, "a token on the last page");
        }
        assert_eq!(listed.len(), 5, "pages of {size}: {listed:?}");
        assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), made);
    }
    scene.restart(&[]);
    let first = page(&scene, 2, "");
    scene.restart(&[]);
    assert_eq!(
        ids(&page(&scene, 0, &first.next_token)).len(),
        3,
        "a token outlives the driver"
    );
}

/// csi-sanity: "pagination should detect volumes added between pages and accept tokens when the last
/// volume from a page is deleted".
#[test]
fn volumes_deleted_between_pages_do_not_hide_others() {
    let scene = Scene::new();
    let made = volumes(&scene, 6);
    let delete = |id: &str| {
        let volume = made
            .iter()
            .find(|it| it.id == id)
            .expect("one of the volumes");
        scene.call_ok(volume.delete());
    };
    let all = scene.ids();
    let first = page(&scene, 2, "");
    assert_eq!(ids(&first), all[..2]);
    // The last volume of the first page and the first volume of the next page are deleted.
    delete(&all[1]);
    delete(&all[2]);
    let second = page(&scene, 2, &first.next_token);
    assert_eq!(ids(&second), all[3..5]);
    let _ = scene.volume("one more", filesystem("ext4"));
    let rest = ids(&page(&scene, 0, &second.next_token));
    assert!(rest.contains(&all[5]), "{rest:?}");
    for id in [&all[0], &all[3], &all[4], &all[5]] {
        delete(id);
    }
    let after = page(&scene, 2, &second.next_token);
    assert!(
        ids(&after).len() <= 1,
        "only the new volume is left: {after:?}"
    );
}

#[test]
fn a_bad_token_is_aborted_and_a_negative_maximum_refused() {
    let scene = Scene::new();
    let _ = volumes(&scene, 2);
    for token in ["invalid-token", "1", "../lock", "\n", "crust-"] {
        let request = ListVolumesRequest {
            max_entries: 1,
            starting_token: token.to_owned(),
        };
        expect_error_in(scene.call(request), Code::Aborted, token);
    }
    let request = ListVolumesRequest {
        max_entries: -1,
        starting_token: String::new(),
    };
    let message = expect_error(scene.call(request), Code::InvalidArgument);
    assert!(message.contains("max_entries"), "{message}");
}
