//! fsGroup on large volumes, compared with kubelet's way: a walk by path with a chown and a chmod for each entry.

mod trees;
mod volume;
mod walks;

use runcrust_tests::TestDir;

use self::volume::Volume;
use self::walks::Walks;
use super::Row;
use crate::effort::Effort;
use crate::measure::{Measure, Target, Unit};
use crate::statistics::ratios;

pub(super) const ROW: Row = Row {
    name: "fsgroup",
    about: "fsGroup on up to half a million entries, against a walk by path like kubelet's",
    run,
};

pub(super) const MEMORY: Row = Row {
    name: "memory",
    about: "memory of fsGroup on volumes for which a walk may need much",
    run: run_for_memory,
};

const ROUNDS: usize = 5;
/// The numbers of entries, which are in directories of a hundred files.
const SIZES: [(usize, &str); 2] = [(100_000, "100k"), (500_000, "500k")];
const FILESYSTEMS: [&str; 2] = ["ext4", "xfs"];

/// One case of a walk.
#[derive(Debug, Clone, Copy)]
struct Case {
    name: &'static str,
    initial: InitialState,
    cold: bool,
    /// Whether the file system's tables may be used instead of the walk.
    tables: bool,
    target: Option<f64>,
}

/// The state of the entries before a walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InitialState {
    /// The entries are as they were created. The walk changes the group and mode of each entry.
    Created,
    /// The entries have another group. The walk changes only the group of each entry.
    OtherGroup,
    /// The entries have the right group and mode. The walk changes nothing.
    Right,
}

const CASES: [Case; 7] = [
    case("change, warm", InitialState::Created, false, Some(3.5)),
    case(
        "change of the group alone, warm",
        InitialState::OtherGroup,
        false,
        None,
    ),
    case("change, cold", InitialState::Created, true, Some(4.0)),
    case("no-op, cold", InitialState::Right, true, Some(6.0)),
    case("no-op, warm", InitialState::Right, false, Some(15.0)),
    walk("no-op, cold, by the walk", true, None),
    walk("no-op, warm, by the walk", false, None),
];

/// Cases for trees with special shapes, in which the walk must not be slower than kubelet's.
const SHAPED: [Case; 3] = [
    case("change, warm", InitialState::Created, false, Some(1.0)),
    case("no-op, warm", InitialState::Right, false, Some(1.0)),
    walk("no-op, warm, by the walk", false, Some(1.0)),
];

const fn case(name: &'static str, initial: InitialState, cold: bool, target: Option<f64>) -> Case {
    Case {
        name,
        initial,
        cold,
        tables: true,
        target,
    }
}

/// Makes a case without tables: for file systems that have none, or if something other than the group is wrong.
const fn walk(name: &'static str, cold: bool, target: Option<f64>) -> Case {
    Case {
        tables: false,
        ..case(name, InitialState::Right, cold, target)
    }
}

fn run(effort: &Effort) -> Vec<Measure> {
    // In /var/lib, because `/tmp` may be a tmpfs.
    let dir = TestDir::root_only();
    let rounds = effort.rounds(ROUNDS);
    let mut measures = Vec::new();
    for fstype in FILESYSTEMS {
        for (entries, size) in SIZES {
            let volume = Volume::new(&dir, fstype);
            trees::create_ordinary(volume.root(), entries);
            let what = format!("{fstype}, {size}");
            measures.extend(measured(volume, &what, &CASES, rounds));
        }
    }
    for fstype in FILESYSTEMS {
        for (shape, make) in trees::SHAPES {
            let volume = Volume::new(&dir, fstype);
            make(volume.root());
            let what = format!("{fstype}, {shape}");
            measures.extend(measured(volume, &what, &SHAPED, rounds));
        }
    }
    measures
}

fn run_for_memory(_: &Effort) -> Vec<Measure> {
    let dir = TestDir::root_only();
    let measures = trees::LARGE.into_iter().flat_map(|(what, make)| {
        let volume = Volume::new(&dir, "xfs");
        make(volume.root());
        memory(volume, what)
    });
    measures.collect()
}

/// Returns for each case how many times as long kubelet's walk takes.
fn measured(volume: Volume, what: &str, cases: &[Case], rounds: usize) -> Vec<Measure> {
    let mut walks = Walks::new(volume);
    let measures = cases.iter().map(|case| {
        let (mut kubelets, mut ours) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            kubelets.push(walks.walk_as_kubelet(case));
            ours.push(walks.walk(case).nanoseconds);
        }
        Measure {
            target: case.target.map(Target::AtLeast),
            ..Measure::new(
                format!("{what}: {}", case.name),
                Unit::Ratio,
                ratios(&kubelets, &ours),
            )
        }
    });
    measures.collect()
}

/// Measures the program's peak memory.
fn memory(volume: Volume, what: &str) -> [Measure; 2] {
    let mut walks = Walks::new(volume);
    let cases = [
        case("change", InitialState::OtherGroup, false, None),
        walk("no-op, by the walk", false, None),
    ];
    cases.map(|case| {
        let peak = walks.walk(&case).kilobytes * 1024.0 / 1e6;
        let name = format!("fsGroup, {what}: {}", case.name);
        Measure::with_target(name, Unit::Size, vec![peak], Target::AtMost(32.0))
    })
}
