//! The driver is killed right after each step of a call, and started again, and the orchestrator repeats the call. No
//! image may get two devices, no data may be lost, and nothing may be left behind.
//!
//! Testing all steps takes long, so they are only tested with `RUNCRUST_TORTURE`. Without this variable a sample is
//! tested, which changes every day.

mod cases;
mod load;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crust_proto::csi::v1::VolumeCapability;
use runcrust_tests::csi::{CsiClient, CsiVolume, block, filesystem};
use runcrust_tests::holds_within;
use runcrust_tests::host::mounts_below;
use runcrust_tests::random::seed;
use runcrust_tests::steps::{self, Step};
use tonic::Status;

use crate::scene::{Scene, read, write};

/// The longest time that an orchestrator retries. A mkfs of the killed driver has to end first.
const RETRY_TIMEOUT: Duration = Duration::from_secs(60);

/// The number of steps in each of the two samples: of the driver's own steps, and of the steps of programs that it
/// runs.
const SAMPLE: usize = 4;

/// The volume that the killed call is about.
struct VolumeUnderTest {
    volume: CsiVolume,
    target: PathBuf,
    /// Whether a pod has written a file to the volume.
    has_data: bool,
}

/// Makes a call about the volume.
type Call = fn(&CsiClient, &VolumeUnderTest) -> Result<(), Status>;

/// A call that the driver is killed in.
struct CrashCase {
    capability: fn() -> VolumeCapability,
    /// Brings the volume into the state that the call expects.
    before: fn(&Scene, &CsiVolume, &PathBuf),
    call: Call,
    has_data: bool,
    /// Checks the result after the call has succeeded, and unpublishes a deferred volume.
    after: fn(&Scene, &VolumeUnderTest),
}

impl CrashCase {
    /// Returns a case with an ext4 that contains data, and without a check of its own.
    const fn new(before: fn(&Scene, &CsiVolume, &PathBuf), call: Call) -> Self {
        Self {
            capability: || filesystem("ext4"),
            before,
            call,
            has_data: true,
            after: |_, _| {},
        }
    }
}

fn set_up(row: &CrashCase, scene: &Scene) -> VolumeUnderTest {
    let volume = scene.volume("pv", (row.capability)());
    let target = scene.target("pod", "pv");
    if row.has_data {
        scene.call_ok(volume.stage());
        scene.call_ok(volume.publish(&target));
        write(&target, "file", "data");
        scene.unpublish_and_unstage(&volume, &[&target]);
    }
    (row.before)(scene, &volume, &target);
    VolumeUnderTest {
        volume,
        target,
        has_data: row.has_data,
    }
}

/// Makes a call, and kills the driver right after step number `moment`. Steps of the driver and of the programs
/// that it runs count. Returns the steps up to the kill. With `None` the driver is not killed.
fn kill_after_step(
    call: Call,
    scene: &Scene,
    volume_under_test: &VolumeUnderTest,
    moment: Option<usize>,
) -> Vec<Step> {
    scene.kill();
    let armed = AtomicBool::new(false);
    let mut seen = Vec::new();
    let wanted = |step: &Step| {
        if armed.load(Ordering::SeqCst) {
            seen.push(step.clone());
        }
        moment == Some(seen.len())
    };
    let served = steps::trace_server(
        &scene.command(&[]),
        |command| scene.spawn_unmanaged(command),
        wanted,
        || {
            scene.wait_until_listening(|| true);
            armed.store(true, Ordering::SeqCst);
            call(scene.client(), volume_under_test)
        },
    );
    if !served.killed {
        served.work.expect("an undisturbed call");
    }
    seen
}

/// Restarts the driver, and makes a call until it succeeds.
fn restart_and_retry(call: Call, scene: &Scene, volume_under_test: &VolumeUnderTest) {
    let volume = &volume_under_test.volume;
    scene.spawn(scene.command(&[]));
    let mut last = None;
    let succeeded = holds_within(RETRY_TIMEOUT, || {
        let answer = call(scene.client(), volume_under_test);
        let devices = scene.devices(&volume.id);
        assert!(devices.len() <= 1, "{devices:?}");
        last = answer.err();
        last.is_none()
    });
    assert!(
        succeeded,
        "the call keeps failing: {last:?}\n{}",
        scene.log()
    );
}

/// Restarts the driver, repeats the call until it succeeds, and uses and removes the volume.
fn recover(row: &CrashCase, scene: &Scene, volume_under_test: &VolumeUnderTest) {
    let VolumeUnderTest { volume, target, .. } = volume_under_test;
    restart_and_retry(row.call, scene, volume_under_test);
    if scene.ids().is_empty() {
        assert_eq!(scene.leftovers(), Vec::<PathBuf>::new());
        return;
    }
    // An orchestrator that was restarted as well repeats the call later.
    (row.call)(scene.client(), volume_under_test).expect("the repeated call");
    (row.after)(scene, volume_under_test);
    scene.call_ok(volume.stage());
    let _ = scene.device(&volume.id);
    scene.call_ok(volume.publish(target));
    assert_eq!(mounts_below(target), [target.as_path()], "mounts");
    if (row.capability)() != block() {
        if !volume_under_test.has_data {
            write(target, "file", "data");
        }
        assert_eq!(read(target, "file"), "data");
        scene.unpublish_and_unstage(volume, &[target]);
        scene.restart(&[]);
        scene.call_ok(volume.stage());
        scene.call_ok(volume.publish(target));
        assert_eq!(read(target, "file"), "data", "staged again");
    }
    scene.remove_volume(volume, &[target]);
}

/// Kills the driver after each chosen step of the row's call, for a volume of a claim.
fn kill_at_each_step(row: &CrashCase) {
    kill_and_recover(
        row.call,
        &|scene| set_up(row, scene),
        &|scene, volume_under_test| recover(row, scene, volume_under_test),
    );
}

/// Kills the driver after each chosen step of a call, and recovers. Goes on after a failure, and reports all failures
/// at the end.
fn kill_and_recover(
    call: Call,
    set_up: &dyn Fn(&Scene) -> VolumeUnderTest,
    recover: &dyn Fn(&Scene, &VolumeUnderTest),
) {
    let scene = Scene::with_crust_ops();
    let volume_under_test = set_up(&scene);
    let steps = kill_after_step(call, &scene, &volume_under_test, None);
    recover(&scene, &volume_under_test);
    let mut failed = Vec::new();
    for moment in chosen_steps(&steps) {
        let scene = Scene::with_crust_ops();
        let volume_under_test = set_up(&scene);
        let seen = kill_after_step(call, &scene, &volume_under_test, Some(moment));
        let last = format!("{moment}: {}", seen.last().expect("a step"));
        println!("killed right after {last}");
        if catch_unwind(AssertUnwindSafe(|| {
            recover(&scene, &volume_under_test);
        }))
        .is_err()
        {
            failed.push(last);
        }
    }
    let all = steps.len();
    assert!(
        failed.is_empty(),
        "failed after these of {all} steps: {failed:#?}"
    );
}

/// Returns the numbers of the steps to kill the driver after, starting with 1: all of them, or a sample.
fn chosen_steps(steps: &[Step]) -> Vec<usize> {
    let numbered = || steps.iter().zip(1_usize..);
    if std::env::var_os("RUNCRUST_TORTURE").is_some() {
        return numbered().map(|(_, moment)| moment).collect();
    }
    let seed = seed();
    let sample = |of_the_driver: bool| {
        let is_one = |(step, _): &(&Step, usize)| (step.program == "crust-csi") == of_the_driver;
        let moments: Vec<usize> = numbered()
            .filter(is_one)
            .map(|(_, moment)| moment)
            .collect();
        let stride = moments.len().div_ceil(SAMPLE).max(1);
        let first = usize::try_from(seed % stride as u64).expect("below a usize");
        moments.into_iter().skip(first).step_by(stride)
    };
    let own: Vec<usize> = sample(true).collect();
    assert!(!own.is_empty(), "no step of the driver: {steps:?}");
    own.into_iter().chain(sample(false)).collect()
}
