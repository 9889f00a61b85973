//! A pod through the runtime's command line, which is called as containerd's shim calls it.

use std::fs;

use runcrust_harness::node::WAIT_TIMEOUT;
use runcrust_harness::{Bundle, Container, Delegate, Node};

use crate::transcript::Transcript;

const POD: &str = "7d2d62a4-0e0c-4a5f-9e4c-0c5b6b1d2f10";
const OTHER_POD: &str = "c1f7a1f0-5f5f-4c59-8f0b-2f0a6c1b7e55";

const STAGE_OPTIONS: [&str; 4] = [
    "--fs-group",
    "2000",
    "--access-mode",
    "SINGLE_NODE_SINGLE_WRITER",
];

pub(crate) fn show(delegate: Delegate, mut out: Transcript) {
    let node = Node::new(delegate);
    let device = node.ext4();
    let target = node.target(POD, "pv-demo");
    out.shorten_paths_of(&node, &target);

    out.step("A CSI driver hands over a disk with an ext4, instead of mounting it at the volume's TARGET path.");
    out.run(
        &node
            .try_stage(&target, device.path(), &STAGE_OPTIONS)
            .success(),
    );

    out.step("The pod starts: a sandbox, and two containers with a bind mount of TARGET, as kubelet asks for.");
    let sandbox = create(&node, &out, "sandbox", &node.sandbox_bundle(POD).write());
    let one_bundle = node.app_bundle(&sandbox).bind(&target, "/data", &[]);
    let one_bundle = one_bundle.write();
    let one = create(&node, &out, "one", &one_bundle);
    let two_bundle = node.app_bundle(&sandbox);
    let two_bundle = two_bundle.bind(target.join("logs"), "/var/log/app", &[]);
    let two = create(&node, &out, "two", &two_bundle.write());

    out.step("Both containers have the volume. Its files belong to the pod's fsGroup.");
    let _ = out.inside("one", &one, "echo hello >/data/logs/greeting");
    let greeting = out.inside("two", &two, "cat /var/log/app/greeting");
    assert_eq!(greeting, "hello", "the containers share the volume");
    let _ = out.inside("two", &two, "ls -ln /var/log/app");

    out.step("The host has no mount of the disk, and no file at TARGET.");
    let mounts = device.host_mounts().len();
    out.none(&format!("mounts of {}", device.path().display()), mounts);
    let files = fs::read_dir(&target).map_or(0, Iterator::count);
    out.none(&format!("files in {}", target.display()), files);

    out.step("This is what runcrust changed in the config of a container: the mount's source, and two hooks of its own.");
    out.difference(one_bundle.spec(), &one_bundle.config());

    out.step("The volume's usage comes from the runtime, which can see the mount. kubelet asks for it in this way.");
    out.run(&node.stats(&target).success());

    out.step("A second pod is refused, because the volume's access mode is ReadWriteOncePod.");
    let other_target = node.stage(OTHER_POD, "pv-demo", &device, &STAGE_OPTIONS);
    let other = node.sandbox(OTHER_POD);
    let bundle = node
        .app_bundle(&other)
        .bind(&other_target, "/data", &[])
        .write();
    let refused = node.container(&bundle);
    let _ = refused.create().failure();
    out.error(&refused.last_log_error().expect("a reason in the log"));

    out.step("When the pod has ended, the disk is free, and the driver takes it back.");
    for container in [refused, other, one, two, sandbox] {
        container.stop();
        let _ = container.delete();
        let _ = fs::remove_dir_all(container.bundle());
    }
    device.wait_until_free(WAIT_TIMEOUT);
    let _ = node.unstage(&other_target).success();
    out.run(&node.unstage(&target).success());
    out.none(
        "files that runcrust keeps about volumes",
        node.records().len(),
    );
}

fn create(node: &Node, out: &Transcript, name: &str, bundle: &Bundle) -> Container {
    let container = node.run(bundle);
    out.line(&format!(
        "$ runcrust create … {name}; runcrust start … {name}"
    ));
    container
}
