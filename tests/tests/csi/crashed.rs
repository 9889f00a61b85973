//! The driver is killed right after each thing that it does for a call, and started again; the
//! orchestrator repeats the call. No image has two devices, no data are lost, and nothing is left.
//!
//! All of that takes long: `RUNCRUST_TORTURE` does it, and otherwise a few of each call's moments are
//! taken, others every day.

mod load;
mod rows;

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

/// An orchestrator goes on trying; what a killed driver's mkfs still does has to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// So many moments of the driver are a sample, and so many of the programs that it runs.
const SAMPLE: usize = 4;

/// A volume, and what the pod that has it has written.
struct Life {
    volume: CsiVolume,
    target: PathBuf,
    has_data: bool,
}

/// A call, and what comes before it.
struct Row {
    capability: fn() -> VolumeCapability,
    before: fn(&Scene, &CsiVolume, &PathBuf),
    call: fn(&CsiClient, &Life) -> Result<(), Status>,
    has_data: bool,
    /// Once it has worked: what it has to have come to. What it published is given back here, if not by the driver.
    after: fn(&Scene, &Life),
}

impl Row {
    /// An ext4 that holds data; its end shows all that there is to see.
    const fn of(
        before: fn(&Scene, &CsiVolume, &PathBuf),
        call: fn(&CsiClient, &Life) -> Result<(), Status>,
    ) -> Self {
        Self {
            capability: || filesystem("ext4"),
            before,
            call,
            has_data: true,
            after: |_, _| {},
        }
    }
}

fn begin(row: &Row, scene: &Scene) -> Life {
    let volume = scene.volume("pv", (row.capability)());
    let target = scene.target("pod", "pv");
    if row.has_data {
        scene.call_ok(volume.stage());
        scene.call_ok(volume.publish(&target));
        write(&target, "file", "data");
        scene.take_back(&volume, &[&target]);
    }
    (row.before)(scene, &volume, &target);
    Life {
        volume,
        target,
        has_data: row.has_data,
    }
}

/// The call, of a driver that is killed right after the `moment`th thing that it, or a program that it runs,
/// does for it; all that was done.
fn kill(row: &Row, scene: &Scene, life: &Life, moment: Option<usize>) -> Vec<Step> {
    scene.kill();
    let armed = AtomicBool::new(false);
    let mut made = Vec::new();
    let wanted = |step: &Step| {
        if armed.load(Ordering::SeqCst) {
            made.push(step.clone());
        }
        moment == Some(made.len())
    };
    let served = steps::trace_server(
        &scene.command(&[]),
        |command| scene.spawn_unmanaged(command),
        wanted,
        || {
            scene.wait_until_listening(|| true);
            armed.store(true, Ordering::SeqCst);
            (row.call)(scene.client(), life)
        },
    );
    if !served.killed {
        served.work.expect("nobody has disturbed it");
    }
    made
}

/// What the orchestrator does then, to the volume's end.
fn goes_on(row: &Row, scene: &Scene, life: &Life) {
    let Life { volume, target, .. } = life;
    scene.spawn(scene.command(&[]));
    let mut last = None;
    let done = holds_within(PATIENCE, || {
        let answer = (row.call)(scene.client(), life);
        let devices = scene.devices(&volume.id);
        assert!(devices.len() <= 1, "{devices:?}");
        last = answer.err();
        last.is_none()
    });
    assert!(done, "it fails for ever: {last:?}\n{}", scene.log());
    if scene.ids().is_empty() {
        assert_eq!(scene.leftovers(), Vec::<PathBuf>::new());
        return;
    }
    // A call that comes again after a while, from an orchestrator that was restarted as well.
    (row.call)(scene.client(), life).expect("once more");
    (row.after)(scene, life);
    scene.call_ok(volume.stage());
    let _ = scene.device(&volume.id);
    scene.call_ok(volume.publish(target));
    assert_eq!(mounts_below(target), [target.as_path()], "mounts");
    if (row.capability)() != block() {
        if !life.has_data {
            write(target, "file", "data");
        }
        assert_eq!(read(target, "file"), "data");
        scene.take_back(volume, &[target]);
        scene.restart(&[]);
        scene.call_ok(volume.stage());
        scene.call_ok(volume.publish(target));
        assert_eq!(read(target, "file"), "data", "staged again");
    }
    scene.put_away(volume, &[target]);
}

/// Kills it at the chosen moments; goes on after one that went wrong.
fn at_each_moment(row: &Row) {
    let scene = Scene::deferring();
    let life = begin(row, &scene);
    let steps = kill(row, &scene, &life, None);
    goes_on(row, &scene, &life);
    let mut failed = Vec::new();
    for moment in chosen(&steps) {
        let scene = Scene::deferring();
        let life = begin(row, &scene);
        let made = kill(row, &scene, &life, Some(moment));
        let last = format!("{moment}: {}", made.last().expect("the call"));
        println!("killed right after {last}");
        if catch_unwind(AssertUnwindSafe(|| goes_on(row, &scene, &life))).is_err() {
            failed.push(last);
        }
    }
    let all = steps.len();
    assert!(failed.is_empty(), "of {all} moments: {failed:#?}");
}

/// The moments after some of the steps, or all: 1 is the first.
fn chosen(steps: &[Step]) -> Vec<usize> {
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
    assert!(!own.is_empty(), "a call that does nothing: {steps:?}");
    own.into_iter().chain(sample(false)).collect()
}
