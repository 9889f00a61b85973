//! Mounts of the node's own directories, which an engine may have made of volumes: what is staged is looked at
//! once for a create, however many they are.

use std::fs;

use runcrust_tests::{Bundle, Delegate, Node, mounts};

use crate::strace::Trace;

/// The calls of a create that name a staged target path, or the mount table.
fn cost(binds: usize) -> [usize; 2] {
    let node = Node::new(Delegate::Crun);
    let device = node.ext4();
    let target = node.dir().subdir("staged");
    let _ = node.try_stage(&target, device.path(), &[]).success();
    let mut bundle = Bundle::plain(node.dir());
    for number in 0..binds {
        let [of, bind] = ["of", "bind"].map(|name| node.dir().subdir(format!("{name}-{number}")));
        mounts::bind(&of, &bind);
        bundle = bundle.bind(&bind, &format!("/mounts/{number}"), &[]);
    }
    let container = node.container(&bundle.write());
    let trace = Trace::in_directory(node.dir().path());
    let create = trace.of(&container.create_command());
    let _ = container.create_with(create).success();
    let part = trace.part().0;
    [part.naming(&target).len(), part.opened("mountinfo")]
}

#[test]
fn more_sources_do_not_look_at_the_volumes_again() {
    let (few, many) = (cost(1), cost(10));
    assert!(few[0] > 0 && few[1] > 0, "{few:?}");
    assert_eq!(few, many, "[calls that name the target path, mount tables]");
}

#[test]
fn a_target_path_that_is_gone_costs_ordinary_mounts_no_mount_table() {
    let node = Node::new(Delegate::Crun);
    let device = node.ext4();
    let target = node.dir().subdir("staged");
    let _ = node.try_stage(&target, device.path(), &[]).success();
    fs::remove_dir(&target).unwrap();
    let mut bundle = Bundle::plain(node.dir());
    for number in 0..10 {
        let source = node.dir().subdir(format!("source-{number}"));
        bundle = bundle.bind(&source, &format!("/mounts/{number}"), &[]);
    }
    let container = node.container(&bundle.write());
    let trace = Trace::in_directory(node.dir().path());
    let create = trace.of(&container.create_command());
    let _ = container.create_with(create).success();
    assert_eq!(trace.part().0.opened("mountinfo"), 0);
}
