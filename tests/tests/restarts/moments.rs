//! At which calls crustlet is killed: each of those that change a volume or a pod, before whoever is asked hears of it,
//! and when it is done and nobody was told.
//!
//! All of it is `make torture`'s. Otherwise each moment is tried once: with which delegate, fate and volume changes
//! from day to day.

use std::time::Instant;

use runcrust_tests::csi::Moment;
use runcrust_tests::manifests::{RuntimeClass, StorageClass};
use runcrust_tests::random::seed;
use runcrust_tests::{Delegate, on_each_delegate};

use crate::row::{Call, Fate, Row};
use crate::scene::{How, Scene, Storage, TOLD};

const FATES: [Fate; 3] = [Fate::Kept, Fate::Deleted, Fate::Forced];

/// What is tried of these calls with this delegate.
fn rows(delegate: Delegate, calls: &[Call], hows: &[How]) -> Vec<Row> {
    let mut rows = Vec::new();
    let seed = usize::try_from(seed()).expect("a number of days");
    let moments = calls
        .iter()
        .flat_map(|call| [Moment::Before, Moment::After].map(|moment| (*call, moment)));
    for (at, (call, moment)) in moments.enumerate() {
        let turn = seed + at;
        // The other delegate has it when all fates and volumes have had their day.
        let is_ours =
            (turn / (FATES.len() * hows.len()) + at) % 2 == usize::from(delegate == Delegate::Crun);
        for (which, fate) in FATES.into_iter().enumerate() {
            for (nth, how) in hows.iter().copied().enumerate() {
                let is_chosen =
                    turn % FATES.len() == which && (turn / FATES.len()) % hows.len() == nth;
                if is_all() || is_ours && is_chosen {
                    rows.push(Row {
                        call,
                        moment,
                        fate,
                        how,
                    });
                }
            }
        }
    }
    rows
}

fn try_each(delegate: Delegate, calls: &[Call]) {
    let scene = Scene::new(delegate);
    let storage = scene.claim("data");
    let rows = rows(delegate, calls, &[How::Deferred, How::Plain]);
    try_rows(&scene, &storage, &rows);
}

fn try_rows(scene: &Scene, storage: &Storage, rows: &[Row]) {
    for (at, row) in rows.iter().enumerate() {
        println!("{row}");
        let begun = Instant::now();
        let name = |what: &str| format!("{what}-{at}");
        row.check(scene, storage, &name("killed"));
        let (is_even, is_all) = (at % 2 == 0, is_all());
        if is_even || is_all {
            row.check_unkilled(scene, storage, &name("on"));
        }
        if row.is_the_runtimes() && (!is_even || is_all) {
            row.check_midst(scene, storage, &name("midst"));
        }
        println!("  {:?}", begun.elapsed());
    }
}

fn is_all() -> bool {
    std::env::var_os("RUNCRUST_TORTURE").is_some()
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

    /// The runtime handler is told of them after the sandbox is there.
    fn volumes_that_the_runtime_is_told_of(delegate: Delegate) {
        let scene = Scene::with(delegate, "sandbox = \"always\"", &[]);
        let socket = scene.ops.crust_socket().to_owned();
        scene.apply("classes", &[
            &StorageClass::new(TOLD).allow_runtime_assisted_mount(true),
            &RuntimeClass::new(TOLD, "crust").fs_mgmt_socket(&socket),
        ]);
        let storage = scene.claim_of("data", |volume| volume.class(TOLD));
        let calls = [
            Call::NodePublishVolume,
            Call::Runtime("RunPodSandbox"),
            Call::Runtime("CreateContainer"),
            Call::Runtime("StartContainer"),
            Call::Runtime("StopPodSandbox"),
            Call::NodeUnpublishVolume,
        ];
        try_rows(&scene, &storage, &rows(delegate, &calls, &[How::Told]));
    }
}
