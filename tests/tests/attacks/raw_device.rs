//! A volume's raw device is out of reach for containers, by whatever way they come to another process's
//! root directory and control group. Blocks that are read and written there pass by every check of the
//! mount: read-only, the subPath, which pod has the volume.
//!
//! A node and a rule are all that it takes: a process that enters `/proc/<pid>/root` opens the node, and one
//! that ptraces a process of the other group has its opens decided by that group's rules.

use runcrust_tests::loopdev::retry_lost_race;
use runcrust_tests::{Bundle, Container, LoopDevice, Node, POD, Pod, cgroup, on_each_delegate};

use super::OTHER_POD;

const ONE_POD: [&str; 2] = ["--access-mode", "SINGLE_NODE_SINGLE_WRITER"];

/// A container that looks for a device at a sandbox's.
struct Attack {
    attacker: Container,
    /// The sandbox's first process, as the attacker knows it.
    pid: i32,
    sandbox: Container,
    _others: Vec<Container>,
    /// The last field: a device is free when those who have it mounted have ended.
    device: LoopDevice,
}

/// Shares the processes of its pod (`shareProcessNamespace`).
fn in_the_pod(node: &Node, sandbox: &Container) -> Bundle {
    let bundle = node.app_bundle(sandbox);
    bundle.namespace("pid", Some(sandbox.pid()))
}

/// Of a pod that has its volume read-only, and a part of it.
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

/// Of a pod that is refused the volume: another pod has it for itself.
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

/// Of a pod that outlives its volume, whose device's number is another disk's by now.
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

/// Of another tenant's pod that has the host's processes (`hostPID`).
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
    #[track_caller]
    fn fails(&self) {
        let dev = format!("/proc/{}/root/dev", self.pid);
        // The way there is open, so that what isn't found isn't there.
        let null = format!("{dev}/null");
        assert_eq!(self.attacker.sh(&format!("ls {null}")), null);
        let nodes = self.attacker.sh(&format!("find {dev} -type b"));
        let is_allowed = cgroup::lets_read(self.sandbox.pid(), self.device.path());
        assert_eq!(
            (nodes.as_str(), is_allowed),
            ("", false),
            "nodes, and a rule"
        );
    }
}

on_each_delegate! {
    fn a_pod_with_shared_processes_reaches_no_device(delegate: Delegate) {
        pod_with_shared_processes(&Node::new(delegate)).fails();
    }

    fn a_pod_that_is_refused_a_volume_reaches_no_device(delegate: Delegate) {
        pod_without_the_volume(&Node::new(delegate)).fails();
    }

    fn a_pod_that_outlives_its_volume_reaches_no_other_disk(delegate: Delegate) {
        pod_that_outlives_its_volume(&Node::new(delegate)).fails();
    }

    fn a_pod_with_the_hosts_processes_reaches_no_tenants_device(delegate: Delegate) {
        pod_with_the_hosts_processes(&Node::new(delegate)).fails();
    }

    /// With the settings that ask for it the sandbox has none either: its containers have it.
    fn what_asks_for_the_device_gives_it_to_the_container_alone(delegate: Delegate) {
        for setting in ["device_node = \"always\"", "mount_mode = \"hook\""] {
            let node = Node::with(delegate, setting);
            let device = node.ext4();
            let target = node.stage(POD, "pv-1", &device, &[]);
            let sandbox = node.sandbox(POD);
            let bundle = in_the_pod(&node, &sandbox).bind(&target, "/data", &[]).write();
            // A hook that mounts makes no mountpoint.
            std::fs::create_dir(bundle.rootfs().join("data")).unwrap();
            let app = node.run(&bundle);
            assert!(cgroup::lets_read(app.pid(), device.path()), "{setting}");
            assert_ne!(app.sh("find /dev -type b"), "", "{setting}");
            Attack { attacker: app, pid: 1, sandbox, device, _others: vec![] }.fails();
        }
    }
}
