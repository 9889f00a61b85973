//! System calls that a pod's volumes cost at its start: devices and mounts are probed once for all of them.

use std::fs::{self, DirEntry, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use runcrust_tests::{Container, Delegate, LoopDevice, Node, binary, on_each_delegate};

use crate::traced_calls::{Trace, TracedCalls};

/// Limits on the calls of a sandbox's hook: without volumes, and in addition for each volume that the hook mounts.
const SANDBOX: usize = 70;
const MOUNTED: usize = 219;
/// Limit on the additional calls each time the loop devices are probed, including lookups in sysfs.
const PROBE: usize = 40;
/// Limit on the additional calls for each loop device of the machine that needs a lookup in sysfs.
const FOREIGN: usize = 20;
/// Limits on the calls of a create of a container in the sandbox: without volumes, and in addition for each volume.
const JOINS: usize = 260;
const ATTACHED: usize = 205;
/// Limits on the calls of the hook of a container in the sandbox: without volumes, and in addition for each volume.
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
        let hook_program = binary("crust-mount-hook");
        let (file, program) = (traces.join("$1"), hook_program.display());
        let file = file.display();
        let script =
            format!("#!/bin/sh\nexec /usr/bin/strace -f -qq -ttt -o \"{file}\" {program} \"$@\"\n");
        fs::write(&hook, script).unwrap();
        fs::set_permissions(&hook, Permissions::from_mode(0o755)).unwrap();
        let configuration = node.handler().configuration();
        let text = fs::read_to_string(&configuration).unwrap();
        let changed = text.replace(&format!("{hook_program:?}"), &format!("{hook:?}"));
        assert_ne!(changed, text);
        fs::write(&configuration, changed).unwrap();
        Self { node, traces }
    }

    /// Creates the pod's sandbox with this number of volumes, each on its own device.
    fn sandbox(&self, volumes: usize) -> (Vec<LoopDevice>, Vec<PathBuf>, Container) {
        let node = &self.node;
        let devices: Vec<_> = (0..volumes).map(|_| node.ext4()).collect();
        let stage = |(number, device)| node.stage("pod-a", &format!("pv-{number}"), device, &[]);
        let targets = devices.iter().enumerate().map(stage).collect();
        (devices, targets, node.sandbox("pod-a"))
    }

    /// Returns the calls of the last hook with this subcommand.
    fn hook(&self, verb: &str) -> TracedCalls {
        TracedCalls::of_program(&self.traces.join(verb))
    }

    /// Creates a container with the volumes, and returns the calls up to the delegate.
    fn create(&self, sandbox: &Container, targets: &[PathBuf]) -> (Container, TracedCalls) {
        let mut bundle = self.node.app_bundle(sandbox);
        for (number, target) in targets.iter().enumerate() {
            bundle = bundle.bind(target, &format!("/data-{number}"), &[]);
        }
        let container = self.node.container(&bundle.write());
        let trace = Trace::in_directory(self.node.dir().path());
        let create = trace.wrap(&container.create_command());
        let _ = container.create_with(create).success();
        (container, trace.part().0)
    }
}

/// Returns how often the loop devices were probed, and how often the host's mount table was read.
fn probes_and_tables(part: &TracedCalls) -> [usize; 2] {
    let asked = part.containing("clone(").count();
    [asked, part.opened("thread-self/mountinfo")]
}

/// Returns whether the loop devices were probed more than twice within 90 ms. A result is cached for 100 ms. If it
/// expires while a pod takes ownership, the listed devices are probed for that pod, and all others for the next one.
fn is_probed_too_often(part: &TracedCalls) -> bool {
    let asked = part.times_of("clone(");
    // The trace has the time of the call. The 100 ms of the cache start before the call.
    asked.windows(3).any(|three| three[2] - three[0] < 0.09)
}

/// Returns the number of the machine's attached loop devices.
fn attached_loop_devices() -> usize {
    let shows = |device: &DirEntry| device.path().join("loop").exists();
    let devices = fs::read_dir("/sys/block").unwrap().map(Result::unwrap);
    devices.filter(shows).count()
}

on_each_delegate! {
    fn devices_and_mounts_are_probed_once_for_all_volumes(delegate: Delegate) {
        for volumes in [1, 4, 8] {
            let scene = Scene::new(delegate);
            let others = attached_loop_devices();
            let (_devices, targets, sandbox) = scene.sandbox(volumes);
            let hook = scene.hook("sandbox");
            let start = Instant::now();
            let (_container, create) = scene.create(&sandbox, &targets);
            let took = start.elapsed();
            let publish = scene.hook("publish");
            let [asked, read] = probes_and_tables(&hook);
            assert!(asked > 0 && read == 0, "{hook:#?}");
            assert!(!is_probed_too_often(&hook), "{hook:#?}");
            let [asked, read] = probes_and_tables(&create);
            // A table older than a second is read again for the next volume.
            let most = if took < Duration::from_secs(1) { 1 } else { 1 + volumes };
            assert!(asked == 0 && (1..=most).contains(&read), "{create:#?}");
            assert_eq!(probes_and_tables(&publish), [0, 1], "{publish:#?}");
            for (part, own, each) in [(hook, SANDBOX, MOUNTED), (create, JOINS, ATTACHED), (publish, PUBLISH, PUBLISHED)] {
                // On a slow machine the cached results expire, and the devices are probed again.
                let [asked, _] = probes_and_tables(&part);
                let most = own + volumes * each + asked * (PROBE + volumes) + others * FOREIGN;
                assert!(part.count() <= most, "{} of {most}: {part:#?}", part.count());
            }
        }
    }
}
