//! Mounts of the node's directories, which an engine may have made from volumes. The staged volumes are looked up once
//! for a create, however many such mounts the container has.

use std::fs;
use std::path::PathBuf;

use nix::sys::statfs::{OVERLAYFS_SUPER_MAGIC, statfs};
use runcrust_tests::{Bundle, Delegate, Node, mounts};

use crate::traced_calls::{Trace, TracedCalls};

/// Limit on the calls of a create whose container has one bind mount. The mount's source is a directory on the file
/// system of the target paths.
const EMPTY_DIR: usize = 60;

/// Creates a container with these sources, and returns the calls.
fn calls(node: &Node, sources: &[PathBuf]) -> TracedCalls {
    let mut bundle = Bundle::plain(node.dir());
    for (number, source) in sources.iter().enumerate() {
        bundle = bundle.bind(source, &format!("/mounts/{number}"), &[]);
    }
    let container = node.container(&bundle.write());
    let trace = Trace::in_directory(node.dir().path());
    let create = trace.wrap(&container.create_command());
    let _ = container.create_with(create).success();
    trace.part().0
}

/// Returns the number of calls that name a staged target path, and of reads of the mount table, with this many binds.
fn cost(binds: usize) -> [usize; 2] {
    let (node, device) = Node::with_ext4(Delegate::Crun);
    let target = node.dir().subdir("staged");
    let _ = node.try_stage(&target, device.path(), &[]).success();
    let binds = (0..binds).map(|number| {
        let [of, bind] = ["of", "bind"].map(|name| node.dir().subdir(format!("{name}-{number}")));
        mounts::bind(&of, &bind);
        bind
    });
    let part = calls(&node, &binds.collect::<Vec<_>>());
    [part.naming_path(&target).len(), part.opened("mountinfo")]
}

#[test]
fn more_sources_do_not_repeat_the_lookup_of_volumes() {
    let (few, many) = (cost(1), cost(10));
    assert!(few[0] > 0 && few[1] > 0, "{few:?}");
    assert_eq!(few, many, "[calls that name the target path, mount tables]");
}

#[test]
fn sources_after_a_missing_target_path_cost_no_mount_table() {
    let node = Node::on_root_mount(Delegate::Crun);
    let device = node.ext4();
    let target = node.dir().subdir("staged");
    let _ = node.try_stage(&target, device.path(), &[]).success();
    fs::remove_dir(&target).unwrap();
    let sources = (0..10).map(|number| node.dir().subdir(format!("source-{number}")));
    let part = calls(&node, &sources.collect::<Vec<_>>());
    // An overlay does not cache that a name is missing, so the lookup of the target path is not cached (openat2(2),
    // RESOLVE_CACHED), and the mount table is read once instead.
    let is_overlay = statfs(node.dir().path()).unwrap().filesystem_type() == OVERLAYFS_SUPER_MAGIC;
    assert_eq!(part.opened("mountinfo"), usize::from(is_overlay));
}

/// The container has a bind mount as kubelet makes one of an emptyDir's subPath, on the file system of the target
/// paths.
#[test]
fn staged_volumes_cost_nothing_for_a_container_without_one() {
    let costs = [1, 60].map(|volumes| {
        let (node, device) = Node::with_ext4(Delegate::Crun);
        for number in 0..volumes {
            let _ = node.stage("another-pod", &format!("pv-{number}"), &device, &[]);
        }
        let pod = node.handler().kubelet_dir().join("pods/a-pod");
        let [of, bind] = [
            "volumes/kubernetes.io~empty-dir/cache/sub",
            "volume-subpaths/cache/app/0",
        ]
        .map(|name| pod.join(name));
        for path in [&of, &bind] {
            fs::create_dir_all(path).unwrap();
        }
        mounts::bind(&of, &bind);
        let part = calls(&node, &[bind]);
        // The number of reads of the mount table depends on the machine's mounts.
        let reads = part.containing("read(").count();
        let cost = [
            part.count() - reads,
            part.probes(),
            part.opened("mountinfo"),
        ];
        (cost, part)
    });
    assert_eq!(
        costs[0].0, costs[1].0,
        "[calls, entries looked up, mount tables]: {costs:#?}"
    );
    assert!(costs[1].0[0] <= EMPTY_DIR, "{costs:#?}");
}
