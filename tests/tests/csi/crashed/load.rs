//! Several orchestrators retry their calls while the driver is killed repeatedly.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::ScopedJoinHandle;

use runcrust_tests::csi::{CsiClient, CsiRequest, CsiVolume, block, filesystem};
use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::random::{Random, seed};
use runcrust_tests::{holds_within, wait_until};
use tonic::Code;

use crate::scene::{Scene, read, write};

const VOLUMES: usize = 6;

/// Returns the number of times that the driver is killed: the value of `RUNCRUST_TORTURE`, or 20.
fn kills() -> usize {
    std::env::var("RUNCRUST_TORTURE").map_or(20, |times| {
        times.parse().expect("RUNCRUST_TORTURE is a number")
    })
}

/// The orchestrator of one volume.
struct Orchestrator<'s> {
    client: CsiClient,
    volume: CsiVolume,
    target: PathBuf,
    /// Number of successful calls of all orchestrators.
    done: &'s AtomicUsize,
}

impl Orchestrator<'_> {
    /// Repeats a call until it succeeds. Panics if it fails, except because the driver has ended or because another
    /// call for the volume is in progress.
    fn until_done<C: CsiRequest>(&self, call: &C) {
        let mut last = None;
        let done = holds_within(WAIT_TIMEOUT, || {
            let Err(status) = self.client.call(call.clone()) else {
                return true;
            };
            let is_the_end = matches!(status.code(), Code::Unavailable | Code::Aborted);
            assert!(is_the_end, "{call:?}: {status}");
            last = Some(status);
            false
        });
        assert!(done, "{call:?}: {last:?}");
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    /// Runs one pod after the other. Each one finds the data of the one before.
    fn work(&self, is_over: &AtomicBool) {
        let mut written = None;
        for pod in 0_usize.. {
            self.until_done(&self.volume.stage());
            self.until_done(&self.volume.publish(&self.target));
            if self.volume.capability != block() {
                if let Some(before) = written {
                    assert_eq!(read(&self.target, "file"), format!("{before}"));
                }
                write(&self.target, "file", &pod.to_string());
                written = Some(pod);
            }
            self.until_done(&self.volume.unpublish(&self.target));
            self.until_done(&self.volume.unstage());
            if is_over.load(Ordering::Relaxed) {
                break;
            }
        }
        self.until_done(&self.volume.delete());
    }
}

#[test]
fn a_driver_killed_under_load_loses_no_data() {
    let scene = Scene::new();
    let (done, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let orchestrator = |index: usize| {
        let name = format!("pv-{index}");
        let capability = match index {
            0 => block(),
            1 => filesystem("xfs"),
            _ => filesystem("ext4"),
        };
        Orchestrator {
            volume: scene.volume(&name, capability),
            target: scene.target("pod", &name),
            client: CsiClient::new(scene.socket()),
            done: &done,
        }
    };
    let orchestrators: Vec<_> = (0..VOLUMES).map(orchestrator).collect();
    let ids: Vec<String> = orchestrators
        .iter()
        .map(|it| it.volume.id.clone())
        .collect();
    let mut random = Random::new(seed());
    // Asserted after the threads have ended.
    let mut several = Vec::new();
    std::thread::scope(|scope| {
        let working = orchestrators.into_iter().map(|orchestrator| {
            let is_over = &is_over;
            scope.spawn(move || orchestrator.work(is_over))
        });
        let working: Vec<_> = working.collect();
        for _ in 0..kills() {
            let enough = done.load(Ordering::Relaxed) + 1 + random.below(20);
            wait_until("enough successful calls", WAIT_TIMEOUT, || {
                let has_failed = working.iter().any(ScopedJoinHandle::is_finished);
                has_failed || done.load(Ordering::Relaxed) >= enough
            });
            scene.restart(&[]);
            several.extend(ids.iter().filter(|id| scene.devices(id).len() > 1));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(several.is_empty(), "several devices: {several:?}");
    assert_eq!(scene.leftovers(), Vec::<PathBuf>::new());
}
