//! Mounts of the node's own directories, which an engine may have made of volumes: what is staged is looked at
//! once for a create, however many they are.

use std::fs;
use std::path::PathBuf;

use nix::sys::statfs::{OVERLAYFS_SUPER_MAGIC, statfs};
use runcrust_tests::{Bundle, Delegate, Node, mounts};

use crate::strace::{Part, Trace};

/// Of a create of a container with one bind of a directory on the file system that volumes are staged on.
const EMPTY_DIR: usize = 60;

/// The calls of the create of a container that has these sources.
fn calls(node: &Node, sources: &[PathBuf]) -> Part {
    let mut bundle = Bundle::plain(node.dir());
    for (number, source) in sources.iter().enumerate() {
        bundle = bundle.bind(source, &format!("/mounts/{number}"), &[]);
    }
    let container = node.container(&bundle.write());
    let trace = Trace::in_directory(node.dir().path());
    let create = trace.of(&container.create_command());
    let _ = container.create_with(create).success();
    trace.part().0
}

/// The calls of a create that name a staged target path, or the mount table.
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
    [part.naming(&target).len(), part.opened("mountinfo")]
}

#[test]
fn more_sources_do_not_look_at_the_volumes_again() {
    let (few, many) = (cost(1), cost(10));
    assert!(few[0] > 0 && few[1] > 0, "{few:?}");
    assert_eq!(few, many, "[calls that name the target path, mount tables]");
}

#[test]
fn a_missing_target_path_costs_others_no_mount_table() {
    let node = Node::on_root_mount(Delegate::Crun);
    let device = node.ext4();
    let target = node.dir().subdir("staged");
    let _ = node.try_stage(&target, device.path(), &[]).success();
    fs::remove_dir(&target).unwrap();
    let sources = (0..10).map(|number| node.dir().subdir(format!("source-{number}")));
    let part = calls(&node, &sources.collect::<Vec<_>>());
    // An overlay doesn't remember that a name is gone, so the way to the target path isn't cached (openat2(2),
    // RESOLVE_CACHED), and the mount table is read once instead.
    let is_overlay = statfs(node.dir().path()).unwrap().filesystem_type() == OVERLAYFS_SUPER_MAGIC;
    assert_eq!(part.opened("mountinfo"), usize::from(is_overlay));
}

/// As kubelet makes a subPath of an emptyDir: a bind of a directory on the file system that volumes are staged on.
#[test]
fn the_staged_volumes_cost_a_container_without_one_nothing() {
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
        // How often the mount table is read is up to the machine's mounts.
        let reads = part.that_name("read(").count();
        [
            part.count() - reads,
            part.probes(),
            part.opened("mountinfo"),
        ]
    });
    assert_eq!(
        costs[0], costs[1],
        "[calls, entries asked for, mount tables]"
    );
    assert!(costs[1][0] <= EMPTY_DIR, "{costs:?}");
}
