//! fsGroup over large volumes, against kubelet's way: a walk by path, with a chown and a chmod of each entry.

mod trees;
mod volume;
mod walks;

use runcrust_tests::TestDir;

use self::volume::Volume;
use self::walks::Walks;
use super::Row;
use crate::effort::Effort;
use crate::measure::{Measure, Reach, Unit};
use crate::statistics::ratios;

pub(super) const ROW: Row = Row {
    name: "fsgroup",
    about: "fsGroup over up to half a million entries, against a walk by path as kubelet's",
    run,
};

pub(super) const MEMORY: Row = Row {
    name: "memory",
    about: "what fsGroup needs of it, over volumes that a walk may need much for",
    run: run_for_memory,
};

const ROUNDS: usize = 5;
/// Entries, in directories of a hundred files.
const SIZES: [(usize, &str); 2] = [(100_000, "100k"), (500_000, "500k")];
const FILESYSTEMS: [&str; 2] = ["ext4", "xfs"];

/// Of a walk.
#[derive(Debug, Clone, Copy)]
struct Case {
    name: &'static str,
    starts: Starts,
    cold: bool,
    /// Whether it may ask the file system's tables.
    tables: bool,
    reach: Option<f64>,
}

/// How entries stand before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Starts {
    /// As they were made: each gets the group and the mode.
    Made,
    /// As another group's: modes are right.
    AnothersGroup,
    /// As they should be.
    Right,
}

const CASES: [Case; 7] = [
    case("change, warm", Starts::Made, false, Some(3.5)),
    case(
        "change of the group alone, warm",
        Starts::AnothersGroup,
        false,
        None,
    ),
    case("change, cold", Starts::Made, true, Some(4.0)),
    case("no-op, cold", Starts::Right, true, Some(6.0)),
    case("no-op, warm", Starts::Right, false, Some(15.0)),
    walk("no-op, cold, by the walk", true, None),
    walk("no-op, warm, by the walk", false, None),
];

/// Whatever the shape is, it is to be no slower.
const SHAPED: [Case; 3] = [
    case("change, warm", Starts::Made, false, Some(1.0)),
    case("no-op, warm", Starts::Right, false, Some(1.0)),
    walk("no-op, warm, by the walk", false, Some(1.0)),
];

const fn case(name: &'static str, starts: Starts, cold: bool, reach: Option<f64>) -> Case {
    Case {
        name,
        starts,
        cold,
        tables: true,
        reach,
    }
}

/// Where a file system has no tables that can be asked, or something else isn't right.
const fn walk(name: &'static str, cold: bool, reach: Option<f64>) -> Case {
    Case {
        tables: false,
        ..case(name, Starts::Right, cold, reach)
    }
}

fn run(effort: &Effort) -> Vec<Measure> {
    // On a disk: `/tmp` may be memory.
    let dir = TestDir::root_only();
    let rounds = effort.rounds(ROUNDS);
    let mut measures = Vec::new();
    for fstype in FILESYSTEMS {
        for (entries, size) in SIZES {
            let volume = Volume::new(&dir, fstype);
            trees::ordinary(volume.root(), entries);
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

/// Of each case how many times as long kubelet's walk takes.
fn measured(volume: Volume, what: &str, cases: &[Case], rounds: usize) -> Vec<Measure> {
    let mut walks = Walks::of(volume);
    let measures = cases.iter().map(|case| {
        let (mut kubelets, mut ours) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            kubelets.push(walks.kubelets(case));
            ours.push(walks.ours(case).nanoseconds);
        }
        Measure {
            reach: case.reach.map(Reach::AtLeast),
            ..Measure::told(
                format!("{what}: {}", case.name),
                Unit::Ratio,
                ratios(&kubelets, &ours),
            )
        }
    });
    measures.collect()
}

/// The most that the program has.
fn memory(volume: Volume, what: &str) -> [Measure; 2] {
    let mut walks = Walks::of(volume);
    let cases = [
        case("change", Starts::AnothersGroup, false, None),
        walk("no-op, by the walk", false, None),
    ];
    cases.map(|case| {
        let peak = walks.ours(&case).kilobytes * 1024.0 / 1e6;
        let name = format!("fsGroup, {what}: {}", case.name);
        Measure::to_reach(name, Unit::Size, vec![peak], Reach::AtMost(32.0))
    })
}
