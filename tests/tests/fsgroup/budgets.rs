//! Limits on the system calls of fsGroup's walk for each file. Calls are steadier than time; `make bench` measures
//! time.

use runcrust_tests::trace::{calls, traced};
use runcrust_tests::tree::create_entries;
use runcrust_tests::volume::with_mounted;
use runcrust_tests::{Bundle, Delegate, LoopDevice, Node};

use crate::scene::ALWAYS;

/// Limit on the calls that check one file and set its group and mode.
const CHANGE: usize = 6;
/// Limit on the calls that check one file.
const NO_OP: usize = 2;
/// Limits on the calls for a directory with one file: to check and change both, and only to check both.
const DIRECTORY: [usize; 2] = [16, 9];
/// Limit on the calls for all files together if the inode tables are read.
const ALL: usize = 100;

const FEW: usize = 500;
const MANY: usize = 1500;

/// The kind of tree.
#[derive(Debug, Clone, Copy)]
enum Shape {
    /// Many files in one directory.
    Files,
    /// Many directories with one file each.
    Directories,
}

/// Returns the numbers of calls of two creates with a volume of `count` files or directories: the first create changes
/// all of them, and the second none.
fn count_calls(fstype: &'static str, shape: Shape, count: usize) -> [usize; 2] {
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
        // Includes runcrust's threads, but not the delegate.
        let traced = traced(&container.create_command(), &["-b", "execve"], &file);
        let _ = container.create_with(traced).success();
        let _ = container.delete_force().success();
        let _ = node.unstage(&target).success();
        calls(&file).len()
    })
}

/// Returns how many more calls the two creates make with many files than with few.
fn additional_calls(fstype: &'static str, shape: Shape) -> [usize; 2] {
    let [few, many] = [FEW, MANY].map(|count| count_calls(fstype, shape, count));
    [0, 1].map(|at| many[at].saturating_sub(few[at]))
}

fn per_file(additional: usize) -> usize {
    additional.div_ceil(MANY - FEW)
}

#[test]
fn calls_for_a_file_are_limited() {
    // The inode tables of an ext3 are not read.
    let each = additional_calls("ext3", Shape::Files).map(per_file);
    assert!(each[0] <= CHANGE && each[1] <= NO_OP, "{each:?}");
}

#[test]
fn calls_for_a_directory_are_limited() {
    let each = additional_calls("ext3", Shape::Directories).map(per_file);
    assert!(
        each[0] <= DIRECTORY[0] && each[1] <= DIRECTORY[1],
        "{each:?}"
    );
}

#[test]
fn reading_inode_tables_costs_no_calls_for_each_file() {
    for (fstype, shape) in [
        ("ext4", Shape::Files),
        ("ext4", Shape::Directories),
        ("xfs", Shape::Files),
    ] {
        let [change, no_op] = additional_calls(fstype, shape);
        let most = match shape {
            Shape::Files => CHANGE,
            Shape::Directories => DIRECTORY[0],
        };
        assert!(per_file(change) <= most, "{fstype}, {shape:?}: {change}");
        assert!(no_op < ALL, "{fstype}, {shape:?}: {no_op}");
    }
}
