//! The demo of a pod through the runtime's command line, which is called as containerd's shim calls it.

use std::fs;

use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::{Bundle, Container, Delegate, Node};

use crate::transcript::Transcript;

const POD: &str = "7d2d62a4-0e0c-4a5f-9e4c-0c5b6b1d2f10";
const OTHER_POD: &str = "c1f7a1f0-5f5f-4c59-8f0b-2f0a6c1b7e55";

pub(crate) fn show(delegate: Delegate) {
    let node = Node::new(delegate);
    let title = format!("A pod on {delegate}");
    let mut out = Transcript::new(node.handler(), node.dir().path(), &title);
    let target = node.target(POD, "pv-demo");
    out.abbreviate(&target, "TARGET");

    out.step("A CSI driver stages a block device with ext4 for a pod instead of mounting it");
    let device = node.ext4();
    let exclusive = [
        "--fs-group",
        "2000",
        "--access-mode",
        "SINGLE_NODE_SINGLE_WRITER",
    ];
    out.run(&node.try_stage(&target, device.path(), &exclusive).success());
    let info = node.entry(&target).join("mountInfo.json");
    out.text(&format!("{}:", info.display()));
    out.text(&fs::read_to_string(info).expect("read mountInfo.json"));

    out.step("The pod's sandbox is created: runcrust adds a tmpfs, the device and two hooks to its config");
    let bundle = node.sandbox_bundle(POD).write();
    let sandbox = create(&node, &out, &bundle);

    out.step("An app is created: its bind mount keeps its destination and options, and gets a new source");
    let bundle = node
        .app_bundle(&sandbox)
        .bind(&target, "/data", &[])
        .write();
    let one = create(&node, &out, &bundle);
    out.step("A second app is created with a subPath, which runcrust creates in the volume");
    let bundle = node
        .app_bundle(&sandbox)
        .bind(target.join("logs"), "/var/log/app", &[])
        .write();
    let two = create(&node, &out, &bundle);

    out.step("Both containers see the same file system, with the fsGroup applied");
    out.run_in(
        "one",
        &one,
        "echo hello > /data/logs/greeting; ls -lnd /data",
    );
    out.run_in(
        "two",
        &two,
        "cat /var/log/app/greeting; ls -lnd /var/log/app",
    );
    out.run_in(
        "one",
        &one,
        "stat -c 'st_dev %d' /data; grep ' /data ' /proc/self/mountinfo",
    );
    out.run_in("two", &two, "stat -c 'st_dev %d' /var/log/app");

    out.step("The host has no mount of the device, and no files in the target path");
    out.text(&format!(
        "mounts of {} on the host: {}",
        device.path().display(),
        device.host_mounts().len()
    ));
    out.text(&format!(
        "files in {}: {}",
        target.display(),
        fs::read_dir(&target).map_or(0, Iterator::count)
    ));

    out.step("Show the usage of the volume with the program that its runtime-cli names");
    out.run(&node.stats(&target).success());

    out.step("A second pod is refused: the access mode allows one pod to use the device (ReadWriteOncePod)");
    let other_target = node.stage(OTHER_POD, "pv-demo", &device, &exclusive);
    let other = node.sandbox(OTHER_POD);
    let bundle = node
        .app_bundle(&other)
        .bind(&other_target, "/data", &[])
        .write();
    let refused = node.container(&bundle);
    let _ = refused.create().failure();
    out.text(&refused.last_log_error().expect("a reason in the log"));

    out.step("After the pods have ended the device is free, and unstaging leaves nothing");
    for container in [refused, other, one, two, sandbox] {
        container.stop();
        let _ = container.delete();
        let _ = fs::remove_dir_all(container.bundle());
    }
    device.wait_until_free(WAIT_TIMEOUT);
    for target in [&target, &other_target] {
        out.run(&node.unstage(target).success());
    }
    out.text(&format!("records left: {:?}", node.records()));
}

fn create(node: &Node, out: &Transcript, bundle: &Bundle) -> Container {
    let container = node.run(bundle);
    out.difference(bundle.spec(), &bundle.config());
    container
}
