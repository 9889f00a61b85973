//! The demo of the same pod through containerd's CRI with the handler `crust`.

use std::fs;

use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::{Containerd, Delegate, Node};

use crate::transcript::Transcript;

const POD: &str = "3f9a7c3e-51a5-4a0e-8d8e-2b1f6f0c9d77";

pub(crate) fn show(delegate: Delegate) {
    let node = Node::new(delegate);
    let title =
        format!("The same pod through containerd's CRI with the handler `crust`, on {delegate}");
    let out = Transcript::new(node.handler(), node.dir().path(), &title);
    let device = node.ext4();
    let target = node.stage(POD, "pv-demo", &device, &["--fs-group", "2000"]);
    let containerd = Containerd::start(node.dir(), &[("crust", &node.handler().runtime())]);
    let cri = containerd.cri();
    let pod = containerd.pod(POD);

    out.step("Run the sandbox and two containers: RunPodSandbox, CreateContainer, StartContainer");
    let sandbox = cri.run_pod(&pod, "crust").expect("RunPodSandbox");
    out.text(&format!("sandbox {sandbox}"));
    let config = containerd.app("app").mount(utf8(&target), "/data");
    let app = cri
        .run(&sandbox, &config, &pod)
        .expect("CreateContainer and StartContainer");
    out.text(&format!("container {app}"));

    let config = containerd
        .app("second")
        .mount(utf8(&target.join("logs")), "/var/log/app");
    let second = cri
        .run(&sandbox, &config, &pod)
        .expect("CreateContainer and StartContainer");
    out.text(&format!("container {second} with the subPath logs"));

    out.step("Run commands in the containers: ExecSync");
    for (container, script) in [
        (&app, "echo hello > /data/logs/greeting; ls -ln /data"),
        (&second, "cat /var/log/app/greeting; ls -lnd /var/log/app"),
        (&app, "grep ' /data ' /proc/self/mountinfo"),
    ] {
        out.text(&format!("$ {script}"));
        out.text(&cri.sh(container, script));
    }
    out.text(&format!(
        "mounts of {} on the host: {}",
        device.path().display(),
        device.host_mounts().len()
    ));

    out.step("The CRI returns runcrust's error if a volume can't be mounted");
    let info = node.entry(&target).join("mountInfo.json");
    let staged = fs::read(&info).expect("read mountInfo.json");
    fs::write(&info, "{}").expect("write mountInfo.json");
    let bad = cri.create(
        &sandbox,
        &containerd.app("bad").mount(utf8(&target), "/data"),
        &pod,
    );
    let error = cri
        .start(&bad.expect("CreateContainer"))
        .expect_err("StartContainer is refused");
    out.text(&error.message);
    fs::write(&info, staged).expect("write mountInfo.json");

    out.step("Stop and remove the pod: StopPodSandbox, RemovePodSandbox");
    cri.stop_pod(&sandbox).expect("StopPodSandbox");
    cri.remove_pod(&sandbox).expect("RemovePodSandbox");
    device.wait_until_free(WAIT_TIMEOUT);
    out.run(&node.unstage(&target).success());
    out.text(&format!("records left: {:?}", node.records()));
}
