//! Pods with three volumes each, through containerd's CRI: their starts, and what they leave in the host's mount
//! table, against the same pods with volumes that are mounted on the host.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use nix::mount::{MntFlags, umount2};
use runcrust_tests::{Containerd, Delegate, LoopDevice, Node, Run, Runtime, mounts};

use super::Row;
use crate::measure::{Measure, Reach, Unit};
use crate::options::Effort;
use crate::programs::UNLOOP;
use crate::scene;
use crate::statistics::{UNDISTURBED, differences, quantile, ratios};

pub(super) const ROW: Row = Row {
    name: "pods",
    about: "pods of three volumes each through containerd, by runcrust and with host-mounted volumes in turns",
    run,
};

const VOLUMES: usize = 3;
/// The pods before there are many.
const FIRST: usize = 10;
/// Of the mount table, each of so many reads.
const ROUNDS: usize = 20;
const READS: usize = 10;

fn run(effort: &Effort) -> Vec<Measure> {
    let node = Node::in_order(Delegate::Runc, "");
    let (crust, runc) = (node.handler().runtime(), Runtime::bare(Delegate::Runc));
    let handlers = [("crust", &crust), ("runc", &runc)];
    let containerd = Containerd::start(node.dir(), &handlers);

    let [mut deferred, mut mounted] = [Vec::new(), Vec::new()];
    for index in 0..effort.pods {
        let mut pod = Pod::new(&node, &format!("deferred-{index}"));
        pod.stage(&node);
        pod.start(&containerd, "crust");
        deferred.push(pod);
        let mut pod = Pod::new(&node, &format!("mounted-{index}"));
        pod.mount();
        pod.start(&containerd, "runc");
        mounted.push(pod);
    }
    let with = MountTable::read();
    for pod in &mounted {
        pod.take_off();
    }
    let without = MountTable::read();
    let of_deferred = deferred.iter().flat_map(|pod| &pod.devices);
    let of_deferred = of_deferred.map(|device| device.host_mounts().len());
    let of_deferred: usize = of_deferred.sum();

    for pod in deferred.iter().chain(&mounted) {
        pod.end(&containerd);
    }
    for pod in &deferred {
        pod.unstage(&node);
    }
    forget_devices(&node, deferred.iter_mut().chain(&mut mounted));
    let [ours, theirs] = [&deferred, &mounted].map(|pods| -> Vec<f64> {
        let started = pods.iter().map(|pod| pod.started);
        started.collect()
    });
    let mount: Vec<f64> = mounted.iter().map(|pod| pod.mounted).collect();
    let ratio = ratios(&differences(&ours, &mount), &theirs);
    let fewer = (with.lines - without.lines) as f64;
    let volumes = (VOLUMES * effort.pods) as f64;
    vec![
        Measure::told("a start, by runcrust", Unit::Time, ours),
        Measure::told("a start, host-mounted", Unit::Time, theirs),
        Measure::told("mounting the pod's volumes on the host", Unit::Time, mount),
        Measure::to_reach(
            "a start by runcrust without that, over a host-mounted one",
            Unit::Ratio,
            ratio.clone(),
            Reach::AtMost(1.03),
        ),
        Measure::told(
            "the same, of the first ten pods",
            Unit::Ratio,
            ratio.into_iter().take(FIRST).collect(),
        ),
        Measure::to_reach(
            "host mounts of deferred volumes",
            Unit::Count,
            vec![of_deferred as f64],
            Reach::AtMost(0.0),
        ),
        Measure::to_reach(
            "lines of the host's mount table for mounted ones",
            Unit::Count,
            vec![fewer],
            Reach::AtLeast(volumes),
        ),
        Measure::told("reading the table with them", Unit::Time, with.took),
        Measure::told("reading it without", Unit::Time, without.took),
    ]
}

/// A pod, with one container that has its volumes.
struct Pod {
    uid: String,
    devices: Vec<LoopDevice>,
    targets: Vec<PathBuf>,
    /// Of its sandbox, which has been run.
    id: String,
    /// What its start took, in milliseconds.
    started: f64,
    /// What its volumes' mounts on the host did.
    mounted: f64,
}

impl Pod {
    fn new(node: &Node, uid: &str) -> Self {
        let target = |index| node.target(uid, &format!("pv-{uid}-{index}"));
        Self {
            uid: uid.to_owned(),
            devices: (0..VOLUMES).map(|_| scene::device(node)).collect(),
            targets: (0..VOLUMES).map(target).collect(),
            id: String::new(),
            started: 0.0,
            mounted: 0.0,
        }
    }

    fn stage(&self, node: &Node) {
        for (device, target) in self.devices.iter().zip(&self.targets) {
            let _ = node.try_stage(target, device.path(), &[]).success();
        }
    }

    fn mount(&mut self) {
        let start = Instant::now();
        for (device, target) in self.devices.iter().zip(&self.targets) {
            mounts::mount(device.path(), target, "ext4");
        }
        self.mounted = milliseconds(start);
    }

    /// As kubelet does: the sandbox, then the container.
    fn start(&mut self, containerd: &Containerd, handler: &str) {
        let (config, mut app) = (containerd.pod(&self.uid), containerd.app("app-1"));
        for (index, target) in self.targets.iter().enumerate() {
            app = app.mount(target, &format!("/data-{index}"));
        }
        let cri = containerd.cri();
        let start = Instant::now();
        self.id = cri.run_pod(&config, handler).expect("RunPodSandbox");
        let _ = cri.run(&self.id, &app, &config).expect("StartContainer");
        self.started = milliseconds(start);
    }

    /// From the host's mount table; the container keeps its own.
    fn take_off(&self) {
        for target in &self.targets {
            umount2(target, MntFlags::MNT_DETACH).expect("umount");
        }
    }

    fn end(&self, containerd: &Containerd) {
        containerd.cri().stop_pod(&self.id).expect("StopPodSandbox");
        containerd
            .cri()
            .remove_pod(&self.id)
            .expect("RemovePodSandbox");
    }

    fn unstage(&self, node: &Node) {
        for target in &self.targets {
            let _ = node.unstage(target).success();
        }
    }
}

/// The devices, and the hundreds of idle ones that would be left of them: each create asks all that there are.
fn forget_devices<'p>(node: &Node, pods: impl Iterator<Item = &'p mut Pod>) {
    let mut unloop = Command::new(UNLOOP.build(node.dir()));
    for device in pods.flat_map(|pod| std::mem::take(&mut pod.devices)) {
        unloop.arg(device.path());
    }
    let _ = Run::of(&mut unloop).success();
}

/// The host's.
struct MountTable {
    lines: usize,
    /// To read it, of each round, in milliseconds.
    took: Vec<f64>,
}

impl MountTable {
    fn read() -> Self {
        let read = || fs::read_to_string("/proc/self/mountinfo").expect("the mount table");
        let took = |_| {
            let start = Instant::now();
            let _ = read();
            milliseconds(start)
        };
        let round = |_| quantile(&(0..READS).map(took).collect::<Vec<_>>(), UNDISTURBED);
        Self {
            lines: read().lines().count(),
            took: (0..ROUNDS).map(round).collect(),
        }
    }
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}
