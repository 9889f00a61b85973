//! What runcrust may cost, above all where it has nothing to do, counted in system calls and instructions: no clock
//! is as steady. `make bench` has the times.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use runcrust_tests::{Bundle, Delegate, Node, Run, StagedVolume, binary, on_each_delegate, steps};

use crate::strace::{Part, Trace};

/// System calls of a start: the C library's and Rust's start-up, the configuration with the way to it, the delegate
/// and the program itself.
const START: usize = 32;
/// A create's own: the config, the way to the crust directory.
const CREATE: usize = 20;
/// Of a pod that mounts much.
const MOUNTS: usize = 30;

/// A volume's: two locks, the records, the device, the mount, the rewrite; and the slaves by which copies
/// of its mounts on the host are known.
const VOLUME: usize = 309;

/// Instructions of a call that is handed on, and of a create with 30 mounts and 48 KB of environment.
const INSTRUCTIONS: u64 = 120_000;
const INSTRUCTIONS_OF_A_CREATE: u64 = 1_350_000;
/// Of a create of a small container with a volume, and of looking at other tests' loop devices.
const INSTRUCTIONS_OF_A_MATCH: u64 = 1_675_000;

/// Bytes of the programs that start with every container. They are the same on every machine with this compiler.
const SIZES: [(&str, u64); 2] = [("runcrust", 3_200_000), ("crust-mount-hook", 1_570_000)];

/// A bundle with many mounts, each from a directory of its own, as a pod's volumes are.
fn bundle(node: &Node, sources: &Path) -> Bundle {
    let mut bundle = Bundle::plain(node.dir());
    for number in 0..MOUNTS {
        let source = sources.join(format!("{number}/mount"));
        fs::create_dir_all(&source).unwrap();
        bundle = bundle.bind(&source, &format!("/mounts/{number}"), &[]);
    }
    bundle
}

/// The calls up to the delegate of a create.
fn create(node: &Node, bundle: Bundle) -> Part {
    let container = node.container(&bundle.write());
    let trace = Trace::in_directory(node.dir().path());
    let _ = container
        .create_with(trace.of(&container.create_command()))
        .success();
    trace.part().0
}

/// Entries of other pods' volumes, and the index without which each would be looked up; only that they are
/// there matters.
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
    fn a_command_that_is_handed_on_costs_its_start(delegate: Delegate) {
        let node = Node::new(delegate);
        let container = node.container(&Bundle::plain(node.dir()).write());
        let trace = Trace::in_directory(node.dir().path());
        let _ = Run::of(&mut trace.of(&container.command(&["state", container.id()])));
        let (part, _) = trace.part();
        assert!(part.count() <= START, "{part:#?}");
    }

    fn a_configured_kind_costs_no_call(delegate: Delegate) {
        let kind = format!("delegate_kind = \"{delegate}\"");
        let costs = ["", &kind].map(|extra| {
            let node = Node::with(delegate, extra);
            create(&node, Bundle::plain(node.dir())).count()
        });
        assert_eq!(costs[0], costs[1]);
    }

    fn where_nothing_is_staged_nothing_is_looked_up(delegate: Delegate) {
        let node = Node::new(delegate);
        stage_others(&node, 0);
        let part = create(&node, bundle(&node, &node.dir().subdir("sources")));
        assert_eq!(part.probes(), 0, "{part:#?}");
        assert!(part.count() <= START + CREATE + 2 * MOUNTS, "{part:#?}");
    }

    fn a_create_costs_three_calls_a_mount_however_much_is_staged(delegate: Delegate) {
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

    fn a_volume_costs_no_more_than_its_mount_and_its_records(delegate: Delegate) {
        let volume = StagedVolume::on(Node::on_root_mount(delegate), &[]);
        let bundle = bundle(&volume, &volume.dir().subdir("sources")).bind(&volume.target, "/data", &[]);
        let part = create(&volume, bundle);
        // Other tests' loop devices are looked at, too.
        let neighbours = ["/sys/dev/block/", "/dev/loop"].map(|text| part.that_name(text).count());
        let count = part.count() - neighbours.iter().sum::<usize>();
        assert!(count <= START + CREATE + 3 * MOUNTS + VOLUME, "{count} {part:#?}");
        // Once to find the volume, and once under its lock.
        assert_eq!(part.opened("mountInfo.json"), 2, "{part:#?}");
    }

    fn each_source_and_each_volume_is_looked_up_once(delegate: Delegate) {
        let node = Node::on_root_mount(delegate);
        let (one, two) = (node.ext4(), node.ext4());
        let targets = [node.stage("a-pod", "pv-1", &one, &[]), node.stage("a-pod", "pv-2", &two, &[])];
        // What comes after the first volume is looked up by the plan alone.
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
fn pass_through_takes_few_instructions_and_reading_too() {
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
    assert!(count <= INSTRUCTIONS_OF_A_CREATE, "{count}");
}

/// Of a small config: each instruction is a step of a tracer's, which takes its time.
#[test]
fn a_create_with_a_volume_takes_few_instructions() {
    let volume = StagedVolume::new(Delegate::Crun);
    let bundle = volume.plain_bundle();
    let container = volume.container(&bundle.write());
    let create = container.create_command();
    let count = steps::count_instructions(&create, |create| container.spawn(create));
    assert!(count <= INSTRUCTIONS_OF_A_MATCH, "{count}");
}

#[test]
fn what_starts_with_every_container_is_small() {
    for (program, most) in SIZES {
        let size = fs::metadata(binary(program)).unwrap().len();
        assert!(size <= most, "{program}: {size}");
    }
}
