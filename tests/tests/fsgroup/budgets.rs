//! What a walk may cost for each file, in system calls: no clock is as steady. `make bench` has the times.

use runcrust_tests::trace::{calls, traced};
use runcrust_tests::tree::create_entries;
use runcrust_tests::volume::with_mounted;
use runcrust_tests::{Bundle, Delegate, LoopDevice, Node};

use crate::scene::ALWAYS;

/// To look at it, and to give it group and mode.
const CHANGE: usize = 6;
/// To look at it.
const NO_OP: usize = 2;
/// The same of a directory with one file.
const DIRECTORY: [usize; 2] = [16, 9];
/// Where tables are asked, for all of them together.
const ALL: usize = 100;

const FEW: usize = 500;
const MANY: usize = 1500;

/// What a volume has many of.
#[derive(Debug, Clone, Copy)]
enum Shape {
    /// In one directory.
    Files,
    /// In the root, each with a file.
    Directories,
}

/// So many calls the creates of a container on a volume with so many take: the first changes each of them, the
/// second none.
fn creates(fstype: &'static str, shape: Shape, count: usize) -> [usize; 2] {
    let node = Node::new(Delegate::Crun);
    let device = LoopDevice::formatted(node.dir(), fstype, if fstype == "xfs" { 300 } else { 64 });
    with_mounted(device.path(), |root| match shape {
        Shape::Files => create_entries(root, 1, count, count),
        Shape::Directories => create_entries(root, count, 1, 1),
    });
    ["one", "another"].map(|pod| {
        let target = node.stage(pod, "pv-1", &device, &ALWAYS);
        let bundle = Bundle::plain(node.dir()).bind(&target, "/data", &[]);
        let container = node.container(&bundle.write());
        let file = node.dir().join("strace");
        // With its threads, and without the delegate that it becomes.
        let traced = traced(&container.create_command(), &["-b", "execve"], &file);
        let _ = container.create_with(traced).success();
        let _ = container.delete_force().success();
        let _ = node.unstage(&target).success();
        calls(&file).len()
    })
}

/// How many more the creates take with many than with few.
fn more(fstype: &'static str, shape: Shape) -> [usize; 2] {
    let [few, many] = [FEW, MANY].map(|count| creates(fstype, shape, count));
    [0, 1].map(|at| many[at].saturating_sub(few[at]))
}

fn each(more: usize) -> usize {
    more.div_ceil(MANY - FEW)
}

#[test]
fn a_file_costs_a_few_calls_and_one_that_is_right_a_look() {
    // Of an ext3 the tables aren't asked.
    let each = more("ext3", Shape::Files).map(each);
    assert!(each[0] <= CHANGE && each[1] <= NO_OP, "{each:?}");
}

#[test]
fn a_directory_costs_its_opening_and_its_list() {
    let each = more("ext3", Shape::Directories).map(each);
    assert!(
        each[0] <= DIRECTORY[0] && each[1] <= DIRECTORY[1],
        "{each:?}"
    );
}

#[test]
fn where_tables_are_asked_what_is_right_costs_nothing() {
    for (fstype, shape) in [
        ("ext4", Shape::Files),
        ("ext4", Shape::Directories),
        ("xfs", Shape::Files),
    ] {
        let [change, no_op] = more(fstype, shape);
        let most = match shape {
            Shape::Files => CHANGE,
            Shape::Directories => DIRECTORY[0],
        };
        assert!(each(change) <= most, "{fstype}, {shape:?}: {change}");
        assert!(no_op < ALL, "{fstype}, {shape:?}: {no_op}");
    }
}
