//! `RuntimeStageVolume`: the time that a driver waits for `crust_ops`, the throughput of `crust_ops`, and its memory
//! afterwards.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crust_proto::v1::RuntimeStageVolumeRequest;
use runcrust_tests::cleanup::Cleanup;
use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::{Delegate, LoopDevice, Node, Ops, binary, ops, process, wait_until};

use super::Row;
use crate::callers::Callers;
use crate::effort::Effort;
use crate::fixtures;
use crate::measure::{Measure, Target, Unit};
use crate::statistics::{median, ratios};

pub(super) const ROW: Row = Row {
    name: "calls",
    about: "RuntimeStageVolume of crust_ops, against a tonic server that does nothing",
    run,
};

const ROUNDS: usize = 20;
/// Blocks of each server in a round, in turns.
const BLOCKS: usize = 10;
/// Volumes that one client stages in a block.
const VOLUMES: usize = 50;
const CLIENTS: usize = 32;

fn run(effort: &Effort) -> Vec<Measure> {
    let node = fixtures::node(Delegate::Runc);
    let device = fixtures::device(&node);
    let ops = Ops::start(&node);
    let noop = Noop::start(&node.dir().join("noop.sock"));
    let volumes = Volumes::new(&node, &device);
    let rounds = effort.rounds(ROUNDS);
    let mut measures = measure_one_client(rounds, &volumes, [&noop.socket, ops.socket()]);
    measures.extend(many(rounds, &volumes, [&noop.socket, ops.socket()]));
    measures.extend(memory(effort.calls, &volumes, &ops));
    measures
}

/// Measures one client that waits for each answer.
fn measure_one_client(rounds: usize, volumes: &Volumes, sockets: [&Path; 2]) -> Vec<Measure> {
    let callers = sockets.map(|socket| Callers::connect(socket, 1));
    let requests = &volumes.requests[..VOLUMES];
    let [noop, ops] = measure_in_turns(rounds, BLOCKS, &callers, |callers| {
        let times = callers.stage_in_turn(requests);
        volumes.remove_staged();
        times
    });
    let ratio = ratios(&ops, &noop);
    vec![
        Measure::new("p50, a server that does nothing", Unit::Time, noop),
        Measure::new("p50, crust_ops", Unit::Time, ops),
        Measure::with_target(
            "crust_ops over the server that does nothing",
            Unit::Ratio,
            ratio,
            Target::AtMost(1.5),
        ),
    ]
}

/// Measures many clients at the same time.
fn many(rounds: usize, volumes: &Volumes, sockets: [&Path; 2]) -> Vec<Measure> {
    let callers = sockets.map(|socket| Callers::connect(socket, CLIENTS));
    let [noop, ops] = measure_in_turns(rounds, 1, &callers, |callers| {
        let took = callers.stage_concurrently(&volumes.requests);
        volumes.remove_staged();
        vec![volumes.requests.len() as f64 / took]
    });
    vec![
        Measure::new("32 clients, a server that does nothing", Unit::Rate, noop),
        Measure::with_target(
            "32 clients, crust_ops",
            Unit::Rate,
            ops,
            Target::AtLeast(20_000.0),
        ),
    ]
}

/// Measures the daemon's memory after many calls of many clients.
fn memory(calls: usize, volumes: &Volumes, ops: &Ops) -> Vec<Measure> {
    let callers = Callers::connect(ops.socket(), CLIENTS);
    let mut done = 0;
    while done < calls {
        let _ = callers.stage_concurrently(&volumes.requests);
        done += volumes.requests.len();
        volumes.remove_staged();
    }
    let kibibytes = |name| {
        let value = process::status(ops.pid(), name);
        let number = value
            .strip_suffix(" kB")
            .and_then(|it| it.parse::<f64>().ok());
        vec![number.expect("kilobytes") * 1024.0 / 1e6]
    };
    let after = Measure::new(
        format!("RSS after {done} calls"),
        Unit::Size,
        kibibytes("VmRSS"),
    );
    vec![
        Measure {
            // After fewer calls the value says nothing.
            target: (done >= 1_000_000).then_some(Target::AtMost(6.0)),
            ..after
        },
        Measure::new("peak RSS", Unit::Size, kibibytes("VmHWM")),
    ]
}

/// Runs blocks of both servers in turns, and returns for each the median of every round.
fn measure_in_turns(
    rounds: usize,
    blocks: usize,
    callers: &[Callers; 2],
    block: impl Fn(&Callers) -> Vec<f64>,
) -> [Vec<f64>; 2] {
    let mut all = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        let mut numbers = [Vec::new(), Vec::new()];
        for _ in 0..blocks {
            for (numbers, callers) in numbers.iter_mut().zip(callers) {
                numbers.extend(block(callers));
            }
        }
        for (all, numbers) in all.iter_mut().zip(numbers) {
            all.push(median(&numbers));
        }
    }
    all
}

/// Volumes of a node that are not staged.
struct Volumes {
    requests: Vec<RuntimeStageVolumeRequest>,
    /// The entry and the lock file of each.
    places: Vec<[PathBuf; 2]>,
}

impl Volumes {
    fn new(node: &Node, device: &LoopDevice) -> Self {
        let targets = (0..CLIENTS * VOLUMES).map(|it| node.target("a-pod", &format!("pv-{it}")));
        let targets: Vec<PathBuf> = targets.collect();
        let request = |target: &PathBuf| ops::stage_request(target, device);
        Self {
            requests: targets.iter().map(request).collect(),
            places: targets
                .iter()
                .map(|target| [node.entry(target), node.lock_file(target)])
                .collect(),
        }
    }

    /// Removes the staged volumes without calling the daemon.
    fn remove_staged(&self) {
        self.places.iter().for_each(fixtures::remove_staged);
    }
}

/// The server that does nothing. It is killed on drop.
struct Noop {
    socket: PathBuf,
    _cleanup: Cleanup,
}

impl Noop {
    fn start(socket: &Path) -> Self {
        let mut command = Command::new(binary("noop-server"));
        let process = command.arg(socket).stdin(Stdio::null()).spawn();
        let process = process.expect("noop-server");
        let noop = Self {
            socket: socket.to_owned(),
            _cleanup: Cleanup::register(move || end(process)),
        };
        wait_until("noop-server to listen", WAIT_TIMEOUT, || socket.exists());
        noop
    }
}

fn end(mut process: Child) -> Vec<String> {
    let _ = process.kill();
    let ended = process.wait().err();
    ended
        .map(|error| format!("noop-server: {error}"))
        .into_iter()
        .collect()
}
