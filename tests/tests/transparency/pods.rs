//! What the volumes of a pod cost its start, counted in system calls: the node is asked once for all of them.

use std::fs::{self, DirEntry, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use runcrust_tests::{Container, Delegate, LoopDevice, Node, binary, on_each_delegate};

use crate::strace::{Part, Trace};

/// Of a sandbox's hook, and of each volume that it mounts.
const SANDBOX: usize = 70;
const MOUNTED: usize = 219;
/// Of each time that the loop devices are asked, and each of them is looked for in sysfs.
const ASKED: usize = 40;
/// Of each loop device of the machine's own: one that doesn't tell what it shows is looked up in sysfs.
const FOREIGN: usize = 20;
/// Of the create of a container that joins it.
const JOINS: usize = 260;
const LENT: usize = 205;
/// Of that one's hook.
const PUBLISH: usize = 140;
const PUBLISHED: usize = 100;

/// A node whose hooks are traced.
struct Scene {
    node: Node,
    traces: PathBuf,
}

impl Scene {
    fn new(delegate: Delegate) -> Self {
        let node = Node::on_root_mount(delegate);
        let (traces, hook) = (node.dir().subdir("traces"), node.dir().join("hook"));
        let ours = binary("crust-mount-hook");
        let (file, program) = (traces.join("$1"), ours.display());
        let file = file.display();
        let script =
            format!("#!/bin/sh\nexec /usr/bin/strace -f -qq -ttt -o \"{file}\" {program} \"$@\"\n");
        fs::write(&hook, script).unwrap();
        fs::set_permissions(&hook, Permissions::from_mode(0o755)).unwrap();
        let configuration = node.handler().configuration();
        let text = fs::read_to_string(&configuration).unwrap();
        let changed = text.replace(&format!("{ours:?}"), &format!("{hook:?}"));
        assert_ne!(changed, text);
        fs::write(&configuration, changed).unwrap();
        Self { node, traces }
    }

    /// The pod's sandbox, with so many volumes; each has a device.
    fn sandbox(&self, volumes: usize) -> (Vec<LoopDevice>, Vec<PathBuf>, Container) {
        let node = &self.node;
        let devices: Vec<_> = (0..volumes).map(|_| node.ext4()).collect();
        let stage = |(number, device)| node.stage("pod-a", &format!("pv-{number}"), device, &[]);
        let targets = devices.iter().enumerate().map(stage).collect();
        (devices, targets, node.sandbox("pod-a"))
    }

    /// The calls of the last hook of a kind.
    fn hook(&self, verb: &str) -> Part {
        Part::of_a_program(&self.traces.join(verb))
    }

    /// The calls of a create of a container with the volumes, up to the delegate.
    fn create(&self, sandbox: &Container, targets: &[PathBuf]) -> (Container, Part) {
        let mut bundle = self.node.app_bundle(sandbox);
        for (number, target) in targets.iter().enumerate() {
            bundle = bundle.bind(target, &format!("/data-{number}"), &[]);
        }
        let container = self.node.container(&bundle.write());
        let trace = Trace::in_directory(self.node.dir().path());
        let create = trace.of(&container.create_command());
        let _ = container.create_with(create).success();
        (container, trace.part().0)
    }
}

/// How often the node's loop devices were asked, and the host's mount table was read.
fn looks(part: &Part) -> [usize; 2] {
    let asked = part.that_name("clone(").count();
    [asked, part.opened("thread-self/mountinfo")]
}

/// Whether the loop devices were asked more often than twice a moment: what they say is believed for a tenth of a
/// second. Where that ends in the midst of a claim, those on lists are asked for it, and all others for the next.
fn is_asked_again(part: &Part) -> bool {
    let asked = part.times_of("clone(");
    // The time is that of the call, and the moment begins before it.
    asked.windows(3).any(|three| three[2] - three[0] < 0.09)
}

/// Loop devices of the machine that show something.
fn loops() -> usize {
    let shows = |device: &DirEntry| device.path().join("loop").exists();
    let devices = fs::read_dir("/sys/block").unwrap().map(Result::unwrap);
    devices.filter(shows).count()
}

on_each_delegate! {
    fn the_node_is_looked_at_once_for_all_of_a_pods_volumes(delegate: Delegate) {
        for volumes in [1, 4, 8] {
            let scene = Scene::new(delegate);
            let others = loops();
            let (_devices, targets, sandbox) = scene.sandbox(volumes);
            let hook = scene.hook("sandbox");
            let start = Instant::now();
            let (_container, create) = scene.create(&sandbox, &targets);
            let took = start.elapsed();
            let publish = scene.hook("publish");
            let [asked, read] = looks(&hook);
            assert!(asked > 0 && read == 0, "{hook:#?}");
            assert!(!is_asked_again(&hook), "{hook:#?}");
            let [asked, read] = looks(&create);
            // One that is older than a second is read anew at a volume's turn.
            let most = if took < Duration::from_secs(1) { 1 } else { 1 + volumes };
            assert!(asked == 0 && (1..=most).contains(&read), "{create:#?}");
            assert_eq!(looks(&publish), [0, 1], "{publish:#?}");
            for (part, own, each) in [(hook, SANDBOX, MOUNTED), (create, JOINS, LENT), (publish, PUBLISH, PUBLISHED)] {
                // On a slow machine all are asked again.
                let [asked, _] = looks(&part);
                let most = own + volumes * each + asked * (ASKED + volumes) + others * FOREIGN;
                assert!(part.count() <= most, "{} of {most}: {part:#?}", part.count());
            }
        }
    }
}
