//! Several devices with the same data, and growing devices.

use runcrust_tests::node::utf8;
use runcrust_tests::volume::with_mounted;
use runcrust_tests::{Cri, CriPod, LoopDevice, Node, on_each_delegate};

use crate::OTHER_POD;
use crate::scene::Scene;

const MIB: u64 = 1 << 20;

/// Returns the size of the file system at `/data` in bytes.
#[track_caller]
fn size(cri: &Cri, container: &str) -> u64 {
    let numbers = cri.sh(container, "stat -f -c '%S %b' /data");
    let numbers = numbers.split(' ').map(|word| word.parse::<u64>().unwrap());
    numbers.product()
}

/// Grows the device to 512 MiB, and requests the growth of its file system.
#[track_caller]
fn grow(scene: &Scene) {
    scene.device.set_size(512 * MIB);
    let run = scene.node.resize(&scene.target, 512 * MIB, 0).success();
    let answer = format!("{{\"capacity_bytes\":{}}}\n", 512 * MIB);
    assert_eq!(run.stdout, answer);
}

fn write_on(device: &LoopDevice) {
    let write = |root: &std::path::Path| std::fs::write(root.join("file"), "both\n").unwrap();
    with_mounted(device.path(), write);
}

on_each_delegate! {
    fn an_alias_of_a_device_waits_for_the_first_pods_end(delegate: Delegate) {
        let scene = Scene::new(delegate, &[]);
        let alias = LoopDevice::on(scene.device.file());
        let theirs = scene.node.stage(OTHER_POD, "pv-1", &alias, &[]);
        let pod = scene.pod();
        let _ = pod.app("one", &scene.target);
        let other = CriPod::run(&scene.containerd, OTHER_POD);
        let app = other.with("one", &theirs);
        let error = other.expect_refusal(&app);
        for name in ["volume pv-1: ", alias.number(), scene.device.number()] {
            assert!(error.message.contains(name), "{name:?} is missing in: {error}");
        }
        assert!(alias.is_free());
        pod.end();
        scene.device.wait_until_free(runcrust_tests::node::WAIT_TIMEOUT);
        let _ = other.start(&app.attempt(1));
        other.end_and_unstage(&scene.node, &[&scene.target, &theirs]);
    }

    fn an_xfs_clone_runs_beside_its_original(delegate: Delegate) {
        let made = |node: &Node| {
            let device = node.formatted("xfs");
            write_on(&device);
            device
        };
        let scene = Scene::on_node(Node::new(delegate), made, &[]);
        let clone = scene.device.clone_in(scene.node.dir());
        let theirs = scene.node.stage(OTHER_POD, "pv-1", &clone, &[]);
        let (pod, other) = (scene.pod(), CriPod::run(&scene.containerd, OTHER_POD));
        let (one, two) = (pod.app("one", &scene.target), other.app("two", &theirs));
        assert_eq!(scene.cri().sh(&two, "cat /data/file; echo own > /data/own"), "both");
        assert_eq!(scene.cri().sh(&one, "cat /data/file; ls /data/own 2>/dev/null || echo none"), "both\nnone");
        pod.end();
        other.end_and_unstage(&scene.node, &[&scene.target, &theirs]);
        assert!(scene.device.is_free() && clone.is_free());
    }

    fn a_btrfs_clone_waits_for_its_originals_end(delegate: Delegate) {
        let scene = Scene::on(delegate, "btrfs", &[]);
        let clone = scene.device.clone_in(scene.node.dir());
        let theirs = scene.node.stage(OTHER_POD, "pv-1", &clone, &[]);
        let pod = scene.pod();
        let _ = pod.app("one", &scene.target);
        let other = CriPod::run(&scene.containerd, OTHER_POD);
        let app = other.with("one", &theirs);
        let error = other.expect_refusal(&app);
        for name in [utf8(scene.device.path()), utf8(clone.path()), "btrfstune -u"] {
            assert!(error.message.contains(name), "{name:?} is missing in: {error}");
        }
        pod.end();
        scene.device.wait_until_free(runcrust_tests::node::WAIT_TIMEOUT);
        let _ = other.start(&app.attempt(1));
        other.end_and_unstage(&scene.node, &[&scene.target, &theirs]);
    }

    fn growth_requested_before_the_pod_starts_is_done(delegate: Delegate) {
        let small = |node: &Node| LoopDevice::formatted(node.dir(), "xfs", 320);
        let scene = Scene::on_node(Node::new(delegate), small, &[]);
        grow(&scene);
        assert!(scene.device.is_free());
        let pod = scene.pod();
        let one = pod.app("one", &scene.target);
        assert!(size(scene.cri(), &one) > 400 * MIB);
        scene.end(&pod);
    }

    fn a_btrfs_grows_under_its_pod(delegate: Delegate) {
        let small = |node: &Node| LoopDevice::formatted(node.dir(), "btrfs", 256);
        let scene = Scene::on_node(Node::new(delegate), small, &[]);
        let pod = scene.pod();
        let one = pod.app("one", &scene.target);
        assert!(size(scene.cri(), &one) <= 256 * MIB);
        grow(&scene);
        assert!(size(scene.cri(), &one) > 400 * MIB);
        scene.end(&pod);
    }
}
