//! Pods with three volumes each, through containerd's CRI: their starts, and what they leave in the host's mount
//! table, against the same pods with volumes that are mounted on the host.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use nix::mount::{MntFlags, umount2};
use runcrust_tests::{
    Containerd, ContainerdConfig, Delegate, LoopDevice, Node, Run, Runtime, mounts,
};

use super::Row;
use crate::effort::Effort;
use crate::measure::{Measure, Reach, Unit};
use crate::programs::UNLOOP;
use crate::scene;
use crate::statistics::{UNDISTURBED, differences, quantile, ratios};

pub(super) const ROW: Row = Row {
    name: "pods",
    about: "pods of three volumes each through containerd, by runcrust and with host-mounted volumes, a phase each",
    run,
};

const VOLUMES: usize = 3;
/// The pods before there are many.
const FIRST: usize = 10;
/// Of the mount table, each of so many reads.
const ROUNDS: usize = 20;
const READS: usize = 10;

fn run(effort: &Effort) -> Vec<Measure> {
    let node = Node::well_configured(Delegate::Runc, "");
    let (crust, runc) = (node.handler().runtime(), Runtime::bare(Delegate::Runc));
    let handlers = [("crust", &crust), ("runc", &runc)];
    let containerd = ContainerdConfig::new(node.dir(), &handlers).in_memory();
    let containerd = Containerd::start_from(containerd);
    let [mut deferred, mut mounted] = [Vec::new(), Vec::new()];
    let (mut of_deferred, mut tables) = (Vec::new(), None);
    // A B B A. Each has the node for itself: what the other's pods leave in its mount table is what is compared.
    for (number, defers) in [true, false, false, true].into_iter().enumerate() {
        let phase = Phase::started(&node, &containerd, number, effort.pods, defers);
        if defers {
            of_deferred.push(phase.host_mounts() as f64);
            deferred.extend(phase.ended());
        } else {
            tables.get_or_insert_with(|| MountTables::compared(|| phase.take_off()));
            mounted.extend(phase.ended());
        }
    }
    let tables = tables.expect("a phase of mounted ones");

    let of = |pods: &[Took], which: fn(&Took) -> f64| pods.iter().map(which).collect::<Vec<_>>();
    let [ours, theirs] = [&deferred, &mounted].map(|pods| of(pods, |it| it.start));
    let [our_ends, their_ends] = [&deferred, &mounted].map(|pods| of(pods, |it| it.end));
    let mount = of(&mounted, |it| it.mounts);
    let ratio = ratios(&differences(&ours, &mount), &theirs);
    let phases = ratio.chunks(effort.pods);
    let first = phases.flat_map(|phase| &phase[..FIRST.min(phase.len())]);
    let first = first.copied().collect();
    let volumes = (VOLUMES * effort.pods) as f64;
    vec![
        Measure::told("a start, by runcrust", Unit::Time, ours),
        Measure::told("a start, host-mounted", Unit::Time, theirs),
        Measure::told("mounting the pod's volumes on the host", Unit::Time, mount),
        Measure::to_reach(
            "a start by runcrust without that, over a host-mounted one",
            Unit::Ratio,
            ratio,
            Reach::AtMost(1.03),
        ),
        Measure::told("the same, of the first ten pods", Unit::Ratio, first),
        Measure::told(
            "an end, by runcrust, over that of a host-mounted one",
            Unit::Ratio,
            ratios(&our_ends, &their_ends),
        ),
        Measure::to_reach(
            "host mounts of deferred volumes",
            Unit::Count,
            of_deferred,
            Reach::AtMost(0.0),
        ),
        Measure::to_reach(
            "lines of the host's mount table for mounted ones",
            Unit::Count,
            vec![tables.fewer as f64],
            Reach::AtLeast(volumes),
        ),
        Measure::told("reading the table with them", Unit::Time, tables.with),
        Measure::told("reading it without", Unit::Time, tables.without),
    ]
}

/// What became of a pod, in milliseconds.
#[derive(Debug, Clone, Copy, Default)]
struct Took {
    start: f64,
    /// Its volumes' mounts on the host, before.
    mounts: f64,
    /// Those on the host are unmounted in it.
    end: f64,
}

/// All that run at a time.
struct Phase<'a> {
    node: &'a Node,
    containerd: &'a Containerd,
    pods: Vec<Pod>,
    defers: bool,
}

impl<'a> Phase<'a> {
    fn started(
        node: &'a Node,
        containerd: &'a Containerd,
        number: usize,
        count: usize,
        defers: bool,
    ) -> Self {
        let started = (0..count).map(|index| {
            let mut pod = Pod::new(node, &format!("pod-{number}-{index}"));
            if defers {
                pod.stage(node);
                pod.start(containerd, "crust");
            } else {
                pod.mount();
                pod.start(containerd, "runc");
            }
            pod
        });
        Self {
            node,
            containerd,
            pods: started.collect(),
            defers,
        }
    }

    fn host_mounts(&self) -> usize {
        let devices = self.pods.iter().flat_map(|pod| &pod.devices);
        devices.map(|device| device.host_mounts().len()).sum()
    }

    fn take_off(&self) {
        self.pods.iter().for_each(Pod::take_off);
    }

    /// Puts all of it away.
    fn ended(mut self) -> Vec<Took> {
        for pod in &mut self.pods {
            pod.end(self.containerd);
        }
        if self.defers {
            self.pods.iter().for_each(|pod| pod.unstage(self.node));
        }
        forget_devices(self.node, self.pods.iter_mut());
        self.pods.iter().map(|pod| pod.took).collect()
    }
}

/// A pod, with one container that has its volumes.
struct Pod {
    uid: String,
    devices: Vec<LoopDevice>,
    targets: Vec<PathBuf>,
    /// Of its sandbox, which has been run.
    id: String,
    took: Took,
}

impl Pod {
    fn new(node: &Node, uid: &str) -> Self {
        let target = |index| node.target(uid, &format!("pv-{uid}-{index}"));
        Self {
            uid: uid.to_owned(),
            devices: (0..VOLUMES).map(|_| scene::device(node)).collect(),
            targets: (0..VOLUMES).map(target).collect(),
            id: String::new(),
            took: Took::default(),
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
        self.took.mounts = milliseconds(start);
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
        self.took.start = milliseconds(start);
    }

    /// From the host's mount table; the container keeps its own.
    fn take_off(&self) {
        for target in &self.targets {
            umount2(target, MntFlags::MNT_DETACH).expect("umount");
        }
    }

    fn end(&mut self, containerd: &Containerd) {
        let (cri, start) = (containerd.cri(), Instant::now());
        cri.stop_pod(&self.id).expect("StopPodSandbox");
        cri.remove_pod(&self.id).expect("RemovePodSandbox");
        self.let_go();
        self.took.end = milliseconds(start);
    }

    /// Of what is mounted on the host, if anything is.
    fn let_go(&self) {
        let targets = self.targets.iter();
        targets.for_each(|target| mounts::try_unmount(target));
    }

    fn unstage(&self, node: &Node) {
        for target in &self.targets {
            let _ = node.unstage(target).success();
        }
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        self.let_go();
    }
}

/// The devices, and the hundreds of idle ones that would be left of them.
fn forget_devices<'p>(node: &Node, pods: impl Iterator<Item = &'p mut Pod>) {
    let mut unloop = Command::new(UNLOOP.build(node.dir()));
    for device in pods.flat_map(|pod| std::mem::take(&mut pod.devices)) {
        unloop.arg(device.path());
    }
    let _ = Run::of(&mut unloop).success();
}

/// The host's, as it is and as it was before something was taken off it.
struct MountTables {
    /// So many lines were taken off.
    fewer: usize,
    /// To read the one that was, of each round, in milliseconds.
    with: Vec<f64>,
    /// And the one that is.
    without: Vec<f64>,
}

impl MountTables {
    /// The one that was is kept by a thread with mounts of its own, so that both are read in turns.
    fn compared(take_off: impl FnOnce()) -> Self {
        let (tell, told) = mpsc::channel();
        let (done, wait) = mpsc::channel::<()>();
        thread::scope(|scope| {
            scope.spawn(move || {
                mounts::unshare_mounts();
                let thread = fs::read_link("/proc/thread-self").expect("a thread");
                tell.send(thread).expect("it is waited for");
                // Until the other one is dropped.
                let _ = wait.recv();
            });
            let kept: PathBuf = told.recv().expect("a thread that keeps it");
            take_off();
            let tables = [&kept, Path::new("self")]
                .map(|whose| Path::new("/proc").join(whose).join("mountinfo"));
            let [mut with, mut without] = [Vec::new(), Vec::new()];
            for _ in 0..ROUNDS {
                with.push(round(&tables[0]));
                without.push(round(&tables[1]));
            }
            let [was, is] = tables.map(|table| read(&table).lines().count());
            drop(done);
            Self {
                fewer: was.saturating_sub(is),
                with,
                without,
            }
        })
    }
}

fn read(table: &Path) -> String {
    fs::read_to_string(table).expect("a mount table")
}

fn round(table: &Path) -> f64 {
    let took = |_| {
        let start = Instant::now();
        let _ = read(table);
        milliseconds(start)
    };
    quantile(&(0..READS).map(took).collect::<Vec<_>>(), UNDISTURBED)
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}
