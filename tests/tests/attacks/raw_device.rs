//! Containers cannot reach a volume's raw device by way of another process's root directory and control group. Reads
//! and writes of raw blocks would bypass the checks of the mount: read-only, the subPath, and which pod has the volume.
//!
//! Such an attack needs a device node and a device rule. A process that enters `/proc/<pid>/root` can open the node. A
//! process in the other control group, which the attacker can ptrace, opens devices by the rules of that group.

use runcrust_tests::loopdev::retry_lost_race;
use runcrust_tests::{Bundle, Container, LoopDevice, Node, POD, Pod, cgroup, on_each_delegate};

use super::OTHER_POD;

const ONE_POD: [&str; 2] = ["--access-mode", "SINGLE_NODE_SINGLE_WRITER"];

/// A container that looks for a device node in a sandbox.
struct Attack {
    attacker: Container,
    /// The pid of the sandbox's first process in the attacker's pid namespace.
    pid: i32,
    sandbox: Container,
    _others: Vec<Container>,
    /// This is the last field, and so dropped last: the device is only free when the containers that have it mounted
    /// have ended.
    device: LoopDevice,
}

/// Returns the bundle of an app that shares the processes of its pod (`shareProcessNamespace`).
fn in_the_pod(node: &Node, sandbox: &Container) -> Bundle {
    let bundle = node.app_bundle(sandbox);
    bundle.namespace("pid", Some(sandbox.pid()))
}

/// The attacker's pod has a subPath of the volume, read-only.
fn pod_with_shared_processes(node: &Node) -> Attack {
    let device = node.ext4();
    let target = node.stage(POD, "pv-1", &device, &[]);
    let sandbox = node.sandbox(POD);
    let bundle = in_the_pod(node, &sandbox);
    let bundle = bundle.bind(target.join("sub"), "/data", &["rbind", "rprivate", "ro"]);
    Attack {
        attacker: node.run(&bundle.write()),
        pid: 1,
        sandbox,
        device,
        _others: vec![],
    }
}

/// The attacker's pod is refused the volume, because another pod has it exclusively.
fn pod_without_the_volume(node: &Node) -> Attack {
    let device = node.ext4();
    let holder = Pod::new(node, POD, &device, &ONE_POD);
    let app = holder.app();
    let refused = Pod::new(node, OTHER_POD, &device, &ONE_POD);
    let _ = refused.expect_refusal_naming(&holder);
    Attack {
        attacker: node.run(&in_the_pod(node, &refused.sandbox).write()),
        pid: 1,
        sandbox: refused.sandbox,
        device,
        _others: vec![app, holder.sandbox],
    }
}

/// The attacker's pod outlives its volume, and the device's number now belongs to another disk.
fn pod_that_outlives_its_volume(node: &Node) -> Attack {
    retry_lost_race(|| {
        let Attack {
            attacker,
            pid,
            sandbox,
            device,
            _others: others,
        } = pod_without_the_volume(node);
        others.iter().for_each(Container::end);
        for uid in [POD, OTHER_POD] {
            let _ = node.unstage(&node.target(uid, "pv-1")).success();
        }
        let other = node.ext4();
        let file = other.file().to_owned();
        drop(other);
        Some(Attack {
            device: device.reattach(&file)?,
            attacker,
            pid,
            sandbox,
            _others: vec![],
        })
    })
}

/// The attacker is in another tenant's pod, and shares the host's processes (`hostPID`).
fn pod_with_the_hosts_processes(node: &Node) -> Attack {
    let device = node.ext4();
    let target = node.stage(POD, "pv-1", &device, &[]);
    let sandbox = node.sandbox(POD);
    let app = node.app(&sandbox, &target, "/data");
    let others = node.sandbox(OTHER_POD);
    let mut bundle = node.app_bundle(&others);
    let namespaces = bundle.spec_mut()["linux"]["namespaces"].as_array_mut();
    namespaces
        .expect("an array")
        .retain(|namespace| namespace["type"] != "pid");
    Attack {
        attacker: node.run(&bundle.write()),
        pid: sandbox.pid(),
        sandbox,
        device,
        _others: vec![app, others],
    }
}

impl Attack {
    /// Asserts that the attacker finds no device node in the sandbox, and that no device rule lets it read the device.
    #[track_caller]
    fn assert_fails(&self) {
        let dev = format!("/proc/{}/root/dev", self.pid);
        // The attacker can look into the directory, so what it does not find does not exist.
        let null = format!("{dev}/null");
        assert_eq!(self.attacker.sh(&format!("ls {null}")), null);
        let nodes = self.attacker.sh(&format!("find {dev} -type b"));
        let is_allowed = cgroup::allows_read(self.sandbox.pid(), self.device.path());
        assert_eq!(
            (nodes.as_str(), is_allowed),
            ("", false),
            "[device nodes, device rule]"
        );
    }
}

on_each_delegate! {
    fn a_pod_with_shared_processes_reaches_no_device(delegate: Delegate) {
        pod_with_shared_processes(&Node::new(delegate)).assert_fails();
    }

    fn a_pod_that_is_refused_a_volume_reaches_no_device(delegate: Delegate) {
        pod_without_the_volume(&Node::new(delegate)).assert_fails();
    }

    fn a_pod_that_outlives_its_volume_reaches_no_other_disk(delegate: Delegate) {
        pod_that_outlives_its_volume(&Node::new(delegate)).assert_fails();
    }

    fn a_pod_with_the_hosts_processes_reaches_no_device(delegate: Delegate) {
        pod_with_the_hosts_processes(&Node::new(delegate)).assert_fails();
    }

    /// These settings give the device to the containers, but not to the sandbox.
    fn settings_for_raw_devices_give_the_sandbox_none(delegate: Delegate) {
        for setting in ["device_node = \"always\"", "mount_mode = \"hook\""] {
            let node = Node::with(delegate, setting);
            let device = node.ext4();
            let target = node.stage(POD, "pv-1", &device, &[]);
            let sandbox = node.sandbox(POD);
            let bundle = in_the_pod(&node, &sandbox).bind(&target, "/data", &[]).write();
            // A hook does not create mountpoints.
            std::fs::create_dir(bundle.rootfs().join("data")).unwrap();
            let app = node.run(&bundle);
            assert!(cgroup::allows_read(app.pid(), device.path()), "{setting}");
            assert_ne!(app.sh("find /dev -type b"), "", "{setting}");
            Attack { attacker: app, pid: 1, sandbox, device, _others: vec![] }.assert_fails();
        }
    }
}
