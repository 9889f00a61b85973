//! crustlet is killed at each call that changes a volume or a pod: before the call arrives, and after it was carried
//! out but before the answer arrives.
//!
//! `make torture` runs all combinations. Otherwise each moment is tested once. The delegate, the change of the
//! pod's manifest and the kind of volume are other ones every day.

use std::time::Instant;

use runcrust_tests::csi::Moment;
use runcrust_tests::manifests::{RuntimeClass, StorageClass};
use runcrust_tests::random::seed;
use runcrust_tests::{Delegate, on_each_delegate};

use crate::crash_case::{CrashCase, HeldCall, ManifestChange};
use crate::scene::{ASSISTED, Mounting, Scene, Storage};

const MANIFEST_CHANGES: [ManifestChange; 3] = [
    ManifestChange::Kept,
    ManifestChange::Deleted,
    ManifestChange::Forced,
];

/// Returns the cases of these calls for a delegate: in `make torture` all cases, otherwise the cases of the day.
fn cases(delegate: Delegate, calls: &[HeldCall], mountings: &[Mounting]) -> Vec<CrashCase> {
    let mut cases = Vec::new();
    let seed = usize::try_from(seed()).expect("a number of days");
    let moments = calls
        .iter()
        .flat_map(|call| [Moment::Before, Moment::After].map(|moment| (*call, moment)));
    for (at, (call, moment)) in moments.enumerate() {
        let turn = seed + at;
        // The delegates take turns: the other one is chosen after each round of all changes and kinds of volumes.
        let is_ours = (turn / (MANIFEST_CHANGES.len() * mountings.len()) + at) % 2
            == usize::from(delegate == Delegate::Crun);
        for (which, manifest_change) in MANIFEST_CHANGES.into_iter().enumerate() {
            for (nth, mounting) in mountings.iter().copied().enumerate() {
                let is_chosen = turn % MANIFEST_CHANGES.len() == which
                    && (turn / MANIFEST_CHANGES.len()) % mountings.len() == nth;
                if is_torture() || is_ours && is_chosen {
                    cases.push(CrashCase {
                        call,
                        moment,
                        manifest_change,
                        mounting,
                    });
                }
            }
        }
    }
    cases
}

fn check_each(delegate: Delegate, calls: &[HeldCall]) {
    let scene = Scene::new(delegate);
    let storage = scene.claim("data");
    let cases = cases(delegate, calls, &[Mounting::Deferred, Mounting::Plain]);
    check_cases(&scene, &storage, &cases);
}

fn check_cases(scene: &Scene, storage: &Storage, cases: &[CrashCase]) {
    for (at, case) in cases.iter().enumerate() {
        println!("{case}");
        let start_count = Instant::now();
        let name = |what: &str| format!("{what}-{at}");
        case.check_killed_at(scene, storage, &name("killed"));
        let (is_even, is_torture) = (at % 2 == 0, is_torture());
        if is_even || is_torture {
            case.check_delayed(scene, storage, &name("delayed"));
        }
        if case.is_runtime_call() && (!is_even || is_torture) {
            case.check_killed_during(scene, storage, &name("during"));
        }
        println!("  {:?}", start_count.elapsed());
    }
}

fn is_torture() -> bool {
    std::env::var_os("RUNCRUST_TORTURE").is_some()
}

on_each_delegate! {
    fn mounting_continues_after_the_agent_was_killed(delegate: Delegate) {
        check_each(delegate, &[HeldCall::NodeStageVolume, HeldCall::NodePublishVolume]);
    }

    fn a_pod_start_continues_after_the_agent_was_killed(delegate: Delegate) {
        check_each(delegate, &[
            HeldCall::Runtime("RunPodSandbox"),
            HeldCall::Runtime("CreateContainer"),
            HeldCall::Runtime("StartContainer"),
        ]);
    }

    fn a_pod_stop_continues_after_the_agent_was_killed(delegate: Delegate) {
        check_each(delegate, &[HeldCall::Runtime("StopContainer"), HeldCall::Runtime("StopPodSandbox")]);
    }

    fn unmounting_continues_after_the_agent_was_killed(delegate: Delegate) {
        check_each(delegate, &[HeldCall::NodeUnpublishVolume, HeldCall::NodeUnstageVolume]);
    }

    fn a_pod_removal_continues_after_the_agent_was_killed(delegate: Delegate) {
        check_each(delegate, &[HeldCall::Runtime("RemoveContainer"), HeldCall::Runtime("RemovePodSandbox")]);
    }

    /// These volumes are published to the runtime after the sandbox has been created.
    fn assisted_mounts_continue_after_the_agent_was_killed(delegate: Delegate) {
        let scene = Scene::with(delegate, "sandbox = \"always\"", &[]);
        let socket = scene.ops.crust_socket().to_owned();
        scene.apply("classes", &[
            &StorageClass::new(ASSISTED).allow_runtime_assisted_mount(true),
            &RuntimeClass::new(ASSISTED, "crust").fs_mgmt_socket(&socket),
        ]);
        let storage = scene.claim_with("data", |volume| volume.class(ASSISTED));
        let calls = [
            HeldCall::NodePublishVolume,
            HeldCall::Runtime("RunPodSandbox"),
            HeldCall::Runtime("CreateContainer"),
            HeldCall::Runtime("StartContainer"),
            HeldCall::Runtime("StopPodSandbox"),
            HeldCall::NodeUnpublishVolume,
        ];
        check_cases(&scene, &storage, &cases(delegate, &calls, &[Mounting::Assisted]));
    }
}
