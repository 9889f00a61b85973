//! The same pod through containerd's CRI with the handler `crust`.

use std::fs;

use runcrust_harness::node::{WAIT_TIMEOUT, utf8};
use runcrust_harness::{Containerd, Delegate, Node};

use crate::transcript::Transcript;

const POD: &str = "3f9a7c3e-51a5-4a0e-8d8e-2b1f6f0c9d77";

pub(crate) fn show(delegate: Delegate, mut out: Transcript) {
    let node = Node::new(delegate);
    let device = node.ext4();
    let target = node.stage(POD, "pv-demo", &device, &["--fs-group", "2000"]);
    out.shorten_paths_of(&node, &target);
    let containerd = Containerd::start(node.dir(), &[("crust", &node.handler().runtime())]);
    let cri = containerd.cri();
    let pod = containerd.pod(POD);

    out.step("kubelet's calls start the sandbox and two containers: RunPodSandbox, CreateContainer, StartContainer.");
    let sandbox = cri.run_pod(&pod, "crust").expect("RunPodSandbox");
    out.line(&format!("sandbox   {}", short_id(&sandbox)));
    let run = |name: &str, source: &str, destination: &str| {
        let config = containerd.app(name).mount(source, destination);
        let id = cri.run(&sandbox, &config, &pod);
        let id = id.expect("CreateContainer and StartContainer");
        out.line(&format!(
            "container {} ({name}): {destination}",
            short_id(&id)
        ));
        id
    };
    let one = run("one", utf8(&target), "/data");
    let two = run("two", utf8(&target.join("logs")), "/var/log/app");

    out.step("Both containers have the volume, and the host has no mount of it.");
    for (name, container, script, expected) in [
        ("one", &one, "echo hello >/data/logs/greeting", ""),
        ("two", &two, "cat /var/log/app/greeting", "hello"),
    ] {
        out.command(&format!("{name}$ {script}"));
        let output = cri.sh(container, script);
        out.output(&output);
        assert_eq!(output.trim(), expected, "{name}$ {script}");
    }
    let mounts = device.host_mounts().len();
    out.none(&format!("mounts of {}", device.path().display()), mounts);

    out.step("A volume that cannot be mounted fails its container, with the reason in the pod's events. The demo overwrites its metadata to show that.");
    let info = node.entry(&target).join("mountInfo.json");
    let staged = fs::read(&info).expect("read mountInfo.json");
    fs::write(&info, "{}").expect("write mountInfo.json");
    let config = containerd.app("bad").mount(utf8(&target), "/data");
    let bad = cri.create(&sandbox, &config, &pod);
    let error = cri
        .start(&bad.expect("CreateContainer"))
        .expect_err("StartContainer is refused");
    out.error(&error.message);
    fs::write(&info, staged).expect("write mountInfo.json");

    out.step("The pod is removed (StopPodSandbox, RemovePodSandbox), and the driver takes the disk back.");
    cri.stop_pod(&sandbox).expect("StopPodSandbox");
    cri.remove_pod(&sandbox).expect("RemovePodSandbox");
    device.wait_until_free(WAIT_TIMEOUT);
    out.run(&node.unstage(&target).success());
    out.none(
        "files that runcrust keeps about volumes",
        node.records().len(),
    );
}

/// Returns the part of an id that is shown.
fn short_id(id: &str) -> &str {
    id.get(..12).unwrap_or(id)
}
