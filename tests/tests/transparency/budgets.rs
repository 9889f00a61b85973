//! Limits on what runcrust costs, above all when there is nothing to do. They count system calls and instructions,
//! which are steadier than time. `make bench` measures time.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use runcrust_tests::{Bundle, Delegate, Node, Run, StagedVolume, binary, on_each_delegate, steps};

use crate::traced_calls::{Trace, TracedCalls};

/// System calls of a start: the start-up of the C library and of Rust, reading the configuration, and finding the
/// delegate and the program itself.
const START: usize = 32;
/// System calls of a create in addition to [`START`]: reading the config, and opening the crust directory.
const CREATE: usize = 20;
/// The number of mounts of a large pod.
const MOUNTS: usize = 30;

/// System calls for a volume in addition to [`CREATE`]: two locks, the records, the device, the mount, the rewrite, and
/// the slave mounts that show copies of the volume's mounts on the host.
const VOLUME: usize = 309;

/// Instructions of a call that is passed through, and of a create with 30 mounts and 48 KB of environment.
const INSTRUCTIONS: u64 = 120_000;
const CREATE_INSTRUCTIONS: u64 = 1_350_000;
/// Instructions of a create of a small container with a volume, including probes of other tests' loop devices.
const VOLUME_INSTRUCTIONS: u64 = 1_675_000;

/// Maximum sizes in bytes of the programs that start with every container. They depend only on the compiler.
const SIZES: [(&str, u64); 2] = [("runcrust", 3_490_000), ("crust-mount-hook", 1_820_000)];

/// Returns a bundle with many mounts, each of another directory, like the volumes of a pod.
fn bundle(node: &Node, sources: &Path) -> Bundle {
    let mut bundle = Bundle::plain(node.dir());
    for number in 0..MOUNTS {
        let source = sources.join(format!("{number}/mount"));
        fs::create_dir_all(&source).unwrap();
        bundle = bundle.bind(&source, &format!("/mounts/{number}"), &[]);
    }
    bundle
}

/// Creates a container, and returns the system calls up to the exec of the delegate.
fn create(node: &Node, bundle: Bundle) -> TracedCalls {
    let container = node.container(&bundle.write());
    let trace = Trace::in_directory(node.dir().path());
    let _ = container
        .create_with(trace.wrap(&container.create_command()))
        .success();
    trace.part().0
}

/// Creates empty entries, as for other pods' volumes, and the index without which each entry would be looked up.
fn stage_others(node: &Node, volumes: usize) {
    let root = node.handler().crust_root();
    fs::create_dir_all(&root).unwrap();
    fs::set_permissions(&root, fs::Permissions::from_mode(0o700)).unwrap();
    for number in 0..volumes {
        let entry = root.join(format!("{number:064x}"));
        fs::DirBuilder::new().mode(0o700).create(entry).unwrap();
    }
    if volumes > 0 {
        let state = node.handler().state_dir();
        fs::create_dir_all(&state).unwrap();
        fs::set_permissions(&state, fs::Permissions::from_mode(0o700)).unwrap();
        let index = r#"{"version":1,"fileSystems":[],"elsewhere":[]}"#;
        fs::write(state.join("targets.json"), index).unwrap();
    }
}

on_each_delegate! {
    fn passing_through_a_command_costs_only_the_start(delegate: Delegate) {
        let node = Node::new(delegate);
        let container = node.container(&Bundle::plain(node.dir()).write());
        let trace = Trace::in_directory(node.dir().path());
        let _ = Run::capture(&mut trace.wrap(&container.command(&["state", container.id()])));
        let (part, _) = trace.part();
        assert!(part.count() <= START, "{part:#?}");
    }

    fn configuring_delegate_kind_costs_no_call(delegate: Delegate) {
        let kind = format!("delegate_kind = \"{delegate}\"");
        let costs = ["", &kind].map(|extra| {
            let node = Node::with(delegate, extra);
            create(&node, Bundle::plain(node.dir())).count()
        });
        assert_eq!(costs[0], costs[1]);
    }

    fn nothing_is_looked_up_if_nothing_is_staged(delegate: Delegate) {
        let node = Node::new(delegate);
        stage_others(&node, 0);
        let part = create(&node, bundle(&node, &node.dir().subdir("sources")));
        assert_eq!(part.probes(), 0, "{part:#?}");
        assert!(part.count() <= START + CREATE + 2 * MOUNTS, "{part:#?}");
    }

    fn a_mount_costs_three_calls_however_many_are_staged(delegate: Delegate) {
        let costs = [1, 2000].map(|volumes| {
            let node = Node::new(delegate);
            stage_others(&node, volumes);
            let part = create(&node, bundle(&node, &node.dir().subdir("sources")));
            assert_eq!(part.probes(), MOUNTS, "{part:#?}");
            assert!(part.count() <= START + CREATE + 3 * MOUNTS, "{part:#?}");
            part.count()
        });
        assert_eq!(costs[0], costs[1]);
    }

    fn the_calls_for_a_volume_are_limited(delegate: Delegate) {
        let volume = StagedVolume::on(Node::on_root_mount(delegate), &[]);
        let bundle = bundle(&volume, &volume.dir().subdir("sources")).bind(&volume.target, "/data", &[]);
        let part = create(&volume, bundle);
        // The loop devices of other tests are probed, too.
        let neighbours = ["/sys/dev/block/", "/dev/loop"].map(|text| part.containing(text).count());
        let count = part.count() - neighbours.iter().sum::<usize>();
        assert!(count <= START + CREATE + 3 * MOUNTS + VOLUME, "{count} {part:#?}");
        // The entry is read once to match the volume, and once under its lock.
        assert_eq!(part.opened("mountInfo.json"), 2, "{part:#?}");
    }

    fn each_source_and_each_volume_is_looked_up_once(delegate: Delegate) {
        let node = Node::on_root_mount(delegate);
        let (one, two) = (node.ext4(), node.ext4());
        let targets = [node.stage("a-pod", "pv-1", &one, &[]), node.stage("a-pod", "pv-2", &two, &[])];
        // Mounts after the first volume are looked up by the plan alone.
        let plain = node.dir().subdir("plain");
        let mut bundle = Bundle::plain(node.dir()).bind(&plain, "/before", &[]);
        for (target, place) in targets.iter().zip(["/one", "/two"]) {
            for (source, below) in [(target.clone(), ""), (target.join("a"), "/a"), (target.clone(), "/b")] {
                bundle = bundle.bind(source, &format!("{place}{below}"), &[]);
            }
        }
        let part = create(&node, bundle.bind(&plain, "/after", &[]));
        assert_eq!(part.opened("mountInfo.json"), 2 * targets.len(), "{part:#?}");
        for source in [&plain, &targets[0], &targets[1]] {
            let text = format!("\"{}\"", source.display());
            let lookups = part.opens().filter(|call| call.contains(&text) && call.contains("RESOLVE_NO_XDEV"));
            assert_eq!(lookups.count(), 1, "{text} {part:#?}");
        }
    }
}

#[test]
fn passing_through_and_planning_takes_few_instructions() {
    let node = Node::new(Delegate::Crun);
    stage_others(&node, 1);
    let plain = node.container(&Bundle::plain(node.dir()).write());
    let state = plain.command(&["state", plain.id()]);
    let count = steps::count_instructions(&state, |mut state| state.spawn().expect("it starts"));
    assert!(count <= INSTRUCTIONS, "{count}");

    let mut large = bundle(&node, &node.dir().subdir("sources"));
    for number in 0..600 {
        let variable = format!("SERVICE_{number}={}", "tcp://10.0.0.1:8080".repeat(3));
        let env = &mut large.spec_mut()["process"]["env"];
        env.as_array_mut()
            .expect("an environment")
            .push(variable.into());
    }
    let container = node.container(&large.write());
    let create = container.create_command();
    let count = steps::count_instructions(&create, |create| container.spawn(create));
    assert!(count <= CREATE_INSTRUCTIONS, "{count}");
}

/// The config is small, because a tracer executes each instruction as a single step.
#[test]
fn a_create_with_a_volume_takes_few_instructions() {
    let volume = StagedVolume::new(Delegate::Crun);
    let bundle = volume.plain_bundle();
    let container = volume.container(&bundle.write());
    let create = container.create_command();
    let count = steps::count_instructions(&create, |create| container.spawn(create));
    assert!(count <= VOLUME_INSTRUCTIONS, "{count}");
}

#[test]
fn programs_that_start_with_every_container_are_small() {
    for (program, most) in SIZES {
        let size = fs::metadata(binary(program)).unwrap().len();
        assert!(size <= most, "{program}: {size}");
    }
}
