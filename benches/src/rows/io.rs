//! Reads and writes through a container's mount of a volume, compared with a bind of a mount on the host, which is what
//! kubelet provides without runcrust, and with bindfs.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::{Bundle, Delegate, LoopDevice, Node, Run, mounts, wait_until};

use super::Row;
use crate::effort::Effort;
use crate::measure::{Measure, Target, Unit};
use crate::programs::IO;
use crate::statistics::{UNDISTURBED, quantile, ratios};

pub(super) const ROW: Row = Row {
    name: "io",
    about: "reads and writes of a file through a container's mount, a bind of the host's, and bindfs",
    run,
};

const ROUNDS: usize = 30;
/// Runs for each place in a round, in turns.
const RUNS: usize = 5;
/// The size of the file in MiB. The file stays in the page cache, so that only the path to it differs.
const SIZE: u64 = 32;

fn run(effort: &Effort) -> Vec<Measure> {
    let node = Node::well_configured(Delegate::Runc, "");
    let io = IO.build(node.dir());
    let device = LoopDevice::ext4(node.dir(), 4 * SIZE);
    let target = node.stage("a-pod", "pv-1", &device, &[]);
    let bundle = Bundle::plain(node.dir()).bind(&target, "/data", &[]);
    let container = node.run(&bundle.write());
    // The container's own mount, reached through its process.
    let ours = PathBuf::from(format!("/proc/{}/root/data", container.pid()));
    let host = HostMounts::mount(&node, &device);
    let file = File::create(host.bound.join("file")).expect("a file");
    file.set_len(SIZE << 20).expect("set the size");
    drop(file);

    let rounds = effort.rounds(ROUNDS);
    let mut measures = Vec::new();
    for what in ["read", "write"] {
        for how in ["sequential", "random"] {
            let ratio = |rounds, place| {
                let run_io = |at: &Path| run_io(&io, [what, how], at);
                let [bound, there] = measure_in_turns(rounds, run_io, [&host.bound, place]);
                // The faster one has the shorter time, so the ratio is inverted.
                ratios(&bound, &there)
            };
            measures.push(Measure::with_target(
                format!("{how} {what}"),
                Unit::Ratio,
                ratio(rounds, &ours),
                Target::Between(0.98, 1.02),
            ));
            // Few rounds are enough, because the ratio is far from 1.
            let fuse = ratio(rounds.div_ceil(10), &host.through_fuse);
            let case = format!("{how} {what} through bindfs");
            measures.push(Measure::new(case, Unit::Ratio, fuse));
        }
    }
    drop(host);
    container.end();
    let _ = node.unstage(&target).success();
    measures
}

/// Returns for each place one number for each round.
fn measure_in_turns(
    rounds: usize,
    run_io: impl Fn(&Path) -> f64,
    places: [&Path; 2],
) -> [Vec<f64>; 2] {
    let round = |place| {
        let times: Vec<f64> = (0..RUNS).map(|_| run_io(place)).collect();
        quantile(&times, UNDISTURBED)
    };
    // Fill the page cache.
    for place in places {
        let _ = run_io(place);
    }
    let mut all = [const { Vec::new() }; 2];
    for _ in 0..rounds {
        for (numbers, place) in all.iter_mut().zip(places) {
            numbers.push(round(place));
        }
    }
    all
}

/// Runs the program and returns its time in nanoseconds.
fn run_io(io: &Path, what: [&str; 2], place: &Path) -> f64 {
    let run = Run::capture(Command::new(io).args(what).arg(place.join("file"))).success();
    run.stdout.trim().parse().expect("nanoseconds")
}

/// The volume on the host, with the container's superblock: bound, and through bindfs. Both are unmounted on drop.
struct HostMounts {
    mounted: PathBuf,
    bound: PathBuf,
    through_fuse: PathBuf,
    bindfs: Child,
}

impl HostMounts {
    fn mount(node: &Node, device: &LoopDevice) -> Self {
        let at = |name: &str| node.dir().subdir(name);
        let [mounted, bound, through_fuse] = ["mounted", "bound", "fuse"].map(at);
        mounts::mount(device.path(), &mounted, "ext4");
        mounts::bind(&mounted, &bound);
        let mut bindfs = Command::new("bindfs");
        bindfs.arg("-f").arg(&mounted).arg(&through_fuse);
        let host = Self {
            mounted,
            bound,
            through_fuse,
            bindfs: bindfs.stdin(Stdio::null()).spawn().expect("bindfs"),
        };
        wait_until("bindfs to have mounted", WAIT_TIMEOUT, || {
            fs::exists(host.through_fuse.join("lost+found")).expect("a mount")
        });
        host
    }
}

impl Drop for HostMounts {
    fn drop(&mut self) {
        mounts::try_unmount(&self.through_fuse);
        // bindfs ends with its mount, and holds the other mount until then.
        let _ = self.bindfs.wait();
        mounts::try_unmount(&self.bound);
        mounts::try_unmount(&self.mounted);
    }
}
