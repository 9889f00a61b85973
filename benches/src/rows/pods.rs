//! Pods with three volumes each, through containerd's CRI: their start times, and their mounts in the host's mount
//! table, compared with the same pods with volumes that are mounted on the host.

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
use crate::fixtures;
use crate::measure::{Measure, Target, Unit};
use crate::programs::UNLOOP;
use crate::statistics::{UNDISTURBED, differences, quantile, ratios};

pub(super) const ROW: Row = Row {
    name: "pods",
    about: "pods with three volumes each through containerd, with runcrust and with host-mounted volumes, in phases",
    run,
};

const VOLUMES: usize = 3;
/// The number of pods whose starts are also reported separately, before the node has many.
const FIRST: usize = 10;
/// The rounds in which the mount table is read.
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
    // The order is A B B A. Only pods of one kind are on the node in each phase, because the comparison is about the
    // mounts that each kind leaves on it.
    for (number, defers) in [true, false, false, true].into_iter().enumerate() {
        let phase = Phase::start(&node, &containerd, number, effort.pods, defers);
        if defers {
            of_deferred.push(phase.host_mounts() as f64);
            deferred.extend(phase.ended());
        } else {
            tables.get_or_insert_with(|| MountTables::compare(|| phase.unmount_volumes()));
            mounted.extend(phase.ended());
        }
    }
    let tables = tables.expect("a phase of mounted ones");

    let of =
        |pods: &[PodTimes], which: fn(&PodTimes) -> f64| pods.iter().map(which).collect::<Vec<_>>();
    let [ours, theirs] = [&deferred, &mounted].map(|pods| of(pods, |it| it.start));
    let [our_ends, their_ends] = [&deferred, &mounted].map(|pods| of(pods, |it| it.end));
    let mount = of(&mounted, |it| it.mounts);
    let ratio = ratios(&differences(&ours, &mount), &theirs);
    let phases = ratio.chunks(effort.pods);
    let first = phases.flat_map(|phase| &phase[..FIRST.min(phase.len())]);
    let first = first.copied().collect();
    let volumes = (VOLUMES * effort.pods) as f64;
    vec![
        Measure::new("a start, by runcrust", Unit::Time, ours),
        Measure::new("a start, host-mounted", Unit::Time, theirs),
        Measure::new("mounting the pod's volumes on the host", Unit::Time, mount),
        Measure::with_target(
            "a start by runcrust without mounting, over a host-mounted one",
            Unit::Ratio,
            ratio,
            Target::AtMost(1.03),
        ),
        Measure::new("the same for the first ten pods", Unit::Ratio, first),
        Measure::new(
            "an end, by runcrust, over that of a host-mounted one",
            Unit::Ratio,
            ratios(&our_ends, &their_ends),
        ),
        Measure::with_target(
            "host mounts of deferred volumes",
            Unit::Count,
            of_deferred,
            Target::AtMost(0.0),
        ),
        Measure::with_target(
            "lines of the host's mount table for host-mounted volumes",
            Unit::Count,
            vec![tables.fewer as f64],
            Target::AtLeast(volumes),
        ),
        Measure::new("reading the mount table with them", Unit::Time, tables.with),
        Measure::new(
            "reading the mount table without them",
            Unit::Time,
            tables.without,
        ),
    ]
}

/// The times of a pod in milliseconds.
#[derive(Debug, Clone, Copy, Default)]
struct PodTimes {
    start: f64,
    /// The time to mount its volumes on the host before the start.
    mounts: f64,
    /// The time to end it, which includes unmounting on the host.
    end: f64,
}

/// Pods that run at the same time.
struct Phase<'a> {
    node: &'a Node,
    containerd: &'a Containerd,
    pods: Vec<Pod>,
    defers: bool,
}

impl<'a> Phase<'a> {
    fn start(
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

    fn unmount_volumes(&self) {
        self.pods.iter().for_each(Pod::unmount_volumes);
    }

    /// Ends all pods, removes their volumes and returns the times.
    fn ended(mut self) -> Vec<PodTimes> {
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

/// A pod with one container that has the pod's volumes.
struct Pod {
    uid: String,
    devices: Vec<LoopDevice>,
    targets: Vec<PathBuf>,
    /// The id of the running sandbox.
    id: String,
    took: PodTimes,
}

impl Pod {
    fn new(node: &Node, uid: &str) -> Self {
        let target = |index| node.target(uid, &format!("pv-{uid}-{index}"));
        Self {
            uid: uid.to_owned(),
            devices: (0..VOLUMES).map(|_| fixtures::device(node)).collect(),
            targets: (0..VOLUMES).map(target).collect(),
            id: String::new(),
            took: PodTimes::default(),
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

    /// Runs the sandbox and then the container, as kubelet does.
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

    /// Unmounts the volumes from the host's mount table. The container keeps its own mounts.
    fn unmount_volumes(&self) {
        for target in &self.targets {
            umount2(target, MntFlags::MNT_DETACH).expect("umount");
        }
    }

    fn end(&mut self, containerd: &Containerd) {
        let (cri, start) = (containerd.cri(), Instant::now());
        cri.stop_pod(&self.id).expect("StopPodSandbox");
        cri.remove_pod(&self.id).expect("RemovePodSandbox");
        self.unmount_if_mounted();
        self.took.end = milliseconds(start);
    }

    /// Unmounts the volumes on the host, if they are mounted there.
    fn unmount_if_mounted(&self) {
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
        self.unmount_if_mounted();
    }
}

/// Detaches the pods' devices and removes them from the machine, which would otherwise keep hundreds of idle devices.
fn forget_devices<'p>(node: &Node, pods: impl Iterator<Item = &'p mut Pod>) {
    let mut unloop = Command::new(UNLOOP.build(node.dir()));
    for device in pods.flat_map(|pod| std::mem::take(&mut pod.devices)) {
        unloop.arg(device.path());
    }
    let _ = Run::capture(&mut unloop).success();
}

/// The host's mount table before and after the pods' volumes were unmounted.
struct MountTables {
    /// The number of lines that were removed.
    fewer: usize,
    /// The times to read the earlier table, one for each round, in milliseconds.
    with: Vec<f64>,
    /// The times to read the present table.
    without: Vec<f64>,
}

impl MountTables {
    /// Compares the tables. A thread with its own mount namespace keeps the earlier table, so that both tables can be
    /// read in turns.
    fn compare(unmount_volumes: impl FnOnce()) -> Self {
        let (sender, receiver) = mpsc::channel();
        let (done, wait) = mpsc::channel::<()>();
        thread::scope(|scope| {
            scope.spawn(move || {
                mounts::unshare_mounts();
                let thread = fs::read_link("/proc/thread-self").expect("a thread");
                sender.send(thread).expect("the receiver is waiting");
                // Wait until the sender is dropped.
                let _ = wait.recv();
            });
            let kept: PathBuf = receiver.recv().expect("a thread that keeps the table");
            unmount_volumes();
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
