//! What a walk may cost for each file, in system calls: no clock is as steady. `make bench` has the times.

use runcrust_tests::trace::{calls, traced};
use runcrust_tests::tree::many;
use runcrust_tests::volume::with_mounted;
use runcrust_tests::{Bundle, Delegate, LoopDevice, Node};

use crate::scene::ALWAYS;

/// To look at it, and to give it group and mode.
const CHANGE: usize = 6;
/// To look at it.
const NO_OP: usize = 2;
/// Where tables are asked, for all of them together.
const ALL: usize = 100;

/// In one directory.
const FEW: usize = 500;
const MANY: usize = 1500;

/// So many calls the creates of a container on a volume of so many files take: the first changes each of them, the
/// second none.
fn creates(fstype: &'static str, files: usize) -> [usize; 2] {
    let node = Node::new(Delegate::Crun);
    let device = LoopDevice::made(node.dir(), fstype, 64);
    with_mounted(device.path(), |root| many(root, 1, files, files));
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

/// How many more the creates take with many files than with few.
fn more(fstype: &'static str) -> [usize; 2] {
    let [few, many] = [FEW, MANY].map(|files| creates(fstype, files));
    [0, 1].map(|at| many[at].saturating_sub(few[at]))
}

#[test]
fn a_file_costs_a_few_calls_and_one_that_is_right_a_look() {
    // Of an ext3 the tables aren't asked.
    let each = more("ext3").map(|more| more.div_ceil(MANY - FEW));
    assert!(each[0] <= CHANGE && each[1] <= NO_OP, "{each:?}");
}

#[test]
fn where_tables_are_asked_a_file_that_is_right_costs_nothing() {
    let [change, no_op] = more("ext4");
    assert!(change.div_ceil(MANY - FEW) <= CHANGE, "{change}");
    assert!(no_op < ALL, "{no_op}");
}
