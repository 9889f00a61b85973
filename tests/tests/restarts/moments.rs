//! At which calls crustlet is killed: each of those that change a volume or a pod, before whoever is asked hears of it,
//! and when it is done and nobody was told.
//!
//! All of it is `make torture`'s. Otherwise each moment is tried once: with which delegate, fate and volume changes from
//! day to day.

use std::time::Instant;

use runcrust_tests::csi::Moment;
use runcrust_tests::random::seed;
use runcrust_tests::{Delegate, on_each_delegate};

use crate::row::{Call, Fate, Row};
use crate::scene::Scene;

const FATES: [Fate; 3] = [Fate::Kept, Fate::Deleted, Fate::Forced];

/// What is tried of these calls with this delegate.
fn rows(delegate: Delegate, calls: &[Call]) -> Vec<Row> {
    let mut rows = Vec::new();
    let is_all = std::env::var_os("RUNCRUST_TORTURE").is_some();
    let seed = usize::try_from(seed()).expect("a number of days");
    let moments = calls
        .iter()
        .flat_map(|call| [Moment::Before, Moment::After].map(|moment| (*call, moment)));
    for (at, (call, moment)) in moments.enumerate() {
        let turn = seed + at;
        let is_ours = (turn + at / 2) % 2 == usize::from(delegate == Delegate::Crun);
        for (which, fate) in FATES.into_iter().enumerate() {
            for is_deferred in [true, false] {
                let is_chosen = turn % 3 == which && ((turn / 3) % 2 == 0) == is_deferred;
                if is_all || is_ours && is_chosen {
                    rows.push(Row {
                        call,
                        moment,
                        fate,
                        is_deferred,
                    });
                }
            }
        }
    }
    rows
}

fn try_each(delegate: Delegate, calls: &[Call]) {
    let rows = rows(delegate, calls);
    let scene = Scene::new(delegate);
    let storage = scene.claim("data");
    for (at, row) in rows.iter().enumerate() {
        println!("{row}");
        let begun = Instant::now();
        row.check(&scene, &storage, &format!("pod-{at}"));
        println!("  {:?}", begun.elapsed());
        println!("{row}: nobody is killed");
        row.check_unkilled(&scene, &storage, &format!("pod-on-{at}"));
        println!("  {:?}", begun.elapsed());
        if matches!(row.call, Call::Runtime(_)) && row.moment == Moment::Before {
            println!("{row}: in its midst");
            row.check_midst(&scene, &storage, &format!("pod-in-{at}"));
        }
    }
}

on_each_delegate! {
    fn a_volume_on_its_way_to_a_pod(delegate: Delegate) {
        try_each(delegate, &[Call::NodeStageVolume, Call::NodePublishVolume]);
    }

    fn a_pod_that_begins(delegate: Delegate) {
        try_each(delegate, &[
            Call::Runtime("RunPodSandbox"),
            Call::Runtime("CreateContainer"),
            Call::Runtime("StartContainer"),
        ]);
    }

    fn a_pod_that_is_stopped(delegate: Delegate) {
        try_each(delegate, &[Call::Runtime("StopContainer"), Call::Runtime("StopPodSandbox")]);
    }

    fn a_volume_on_its_way_back(delegate: Delegate) {
        try_each(delegate, &[Call::NodeUnpublishVolume, Call::NodeUnstageVolume]);
    }

    fn a_pod_that_is_removed(delegate: Delegate) {
        try_each(delegate, &[Call::Runtime("RemoveContainer"), Call::Runtime("RemovePodSandbox")]);
    }
}
