//! The `DaemonSet` on the node, run as kubelet would: it installs its own handler and runs its own daemon.

use std::fs;
use std::os::unix::net::UnixStream;
use std::process::Command;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::PodSpec;
use runcrust_tests::cleanup::Cleanup;
use runcrust_tests::cri::runtime_v1::ContainerState;
use runcrust_tests::installed::{property, systemctl};
use runcrust_tests::kubernetes::{Kubelet, document, manifests, parse_strictly, with_component};
use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::{Delegate, InstalledPod, Run, TestDir, process, wait_until};

use crate::{SERVICE, SOCKET, stage_disk};

const CONFIGURATION: &str = "/etc/containerd/config.toml";
const INSTALLED: [&str; 2] = ["/usr/local/bin/runcrust", "/usr/local/bin/crust-mount-hook"];

/// Returns the `DaemonSet`'s pod, from the base or with a component.
fn spec(component: Option<&str>) -> PodSpec {
    let base = document(&manifests().join("base/daemonset.yaml"));
    let set = match component {
        Some(component) => with_component(base, component),
        None => base,
    };
    let set: DaemonSet = parse_strictly(&set).unwrap();
    set.spec.unwrap().template.spec.unwrap()
}

fn run(program: &str, arguments: &[&str]) -> Run {
    Run::capture(Command::new(program).args(arguments))
}

/// Builds and imports the image that the pods name, with the programs that the packages have installed.
fn import_image(pod: &InstalledPod, dir: &TestDir) {
    let script = manifests().join("../image/build.sh");
    let archive = dir.join("image.tar");
    let version = env!("CARGO_PKG_VERSION");
    let _ = run(
        "sh",
        &[
            utf8(&script),
            "runcrust",
            "/usr/bin",
            version,
            utf8(&archive),
        ],
    )
    .success();
    pod.import(&archive, &format!("localhost/runcrust:{version}"));
}

/// Removes the packages' handler and stops their daemon. Both are restored when the guard is dropped.
fn remove_handler_and_daemon() -> Cleanup {
    let restore = Cleanup::register(|| {
        let steps: [(&str, &[&str]); 3] = [
            (
                "runcrust",
                &["install", "containerd", "--systemd-cgroup", "true"],
            ),
            ("systemctl", &["restart", "containerd.service"]),
            ("systemctl", &["start", SOCKET, SERVICE]),
        ];
        for file in INSTALLED {
            let _ = fs::remove_file(file);
        }
        let runs = steps.map(|(program, arguments)| run(program, arguments));
        let failed = runs.into_iter().filter(|run| !run.status.success());
        failed.map(|run| run.to_string()).collect()
    });
    let _ = systemctl(&["stop", SOCKET, SERVICE]);
    let _ = run("runcrust", &["uninstall", "containerd", "--restart"]).success();
    assert!(
        !fs::read_to_string(CONFIGURATION)
            .unwrap()
            .contains("runtimes.crust]")
    );
    restore
}

#[test]
#[ignore = "needs the e2e node; runs in the guest: make vm-test"]
fn the_daemonset_installs_the_handler_and_serves_drivers() {
    let pod = InstalledPod::new(Delegate::Runc);
    let dir = TestDir::new();
    import_image(&pod, &dir);
    let _restore = remove_handler_and_daemon();
    let settings = fs::read_to_string(manifests().join("base/crust_ops.toml")).unwrap();
    let kubelet = Kubelet::new(pod.cri(), dir.subdir("kubelet"))
        .config_map("crust-ops", &[("crust_ops.toml", &settings)]);

    let before = property("containerd.service", "MainPID");
    let set = kubelet.run("runcrust-1", &spec(None)).unwrap();
    let restarted = property("containerd.service", "MainPID");
    assert_ne!(before, restarted, "containerd was not restarted");
    let configuration = fs::read_to_string(CONFIGURATION).unwrap();
    assert!(
        configuration.contains("BinaryName = \"/usr/local/bin/runcrust\""),
        "{configuration}"
    );
    // The file of the socket may be the one of the packages' daemon.
    wait_until("crust_ops to listen", WAIT_TIMEOUT, || {
        UnixStream::connect("/run/crust_ops/crust_ops.sock").is_ok()
    });

    let _disk = stage_disk(&pod);
    let sandbox = pod.run();
    let app = pod.app(&sandbox, "one");
    let _ = pod.cri().sh(&app, "echo kept > /data/file");
    assert!(!pod.ops().stats(pod.target()).unwrap().usage.is_empty());

    // The next pod, as after an update of the template, finds nothing to do, and the test's pod keeps running.
    kubelet.remove(&set).unwrap();
    let set = kubelet.run("runcrust-2", &spec(None)).unwrap();
    let log = kubelet.log("runcrust-2", "install");
    assert!(
        log.contains("nothing to change") && log.contains("nothing to restart"),
        "{log}"
    );
    assert_eq!(property("containerd.service", "MainPID"), restarted);
    assert!(process::is_alive(pod.cri().pid(&app).unwrap()));
    wait_until("crust_ops to answer", WAIT_TIMEOUT, || {
        pod.ops().stats(pod.target()).is_ok()
    });
    let refused = run("runcrust", &["uninstall", "containerd", "--dry-run"]).failure();
    assert!(refused.stderr.contains("pv-1"), "{refused}");

    // With the component `uninstall` the handler is only removed after the test's pod, and crust_ops runs until then.
    kubelet.remove(&set).unwrap();
    let uninstall_spec = spec(Some("uninstall"));
    let set = kubelet.run("runcrust-3", &uninstall_spec).unwrap();
    let uninstall = &set.containers["uninstall"];
    wait_until("uninstall to be refused", WAIT_TIMEOUT, || {
        let status = pod.cri().status(uninstall).unwrap();
        status.state() == ContainerState::ContainerExited
    });
    let log = kubelet.log("runcrust-3", "uninstall");
    assert!(
        log.contains("handler crust is not removed") && log.contains("pv-1"),
        "{log}"
    );
    wait_until("crust_ops to answer", WAIT_TIMEOUT, || {
        pod.ops().stats(pod.target()).is_ok()
    });
    assert_eq!(pod.cri().sh(&app, "cat /data/file").trim(), "kept");
    pod.end(&sandbox);
    pod.ops().unstage(pod.target()).unwrap();
    let uninstall = kubelet
        .restart_container(&set, "runcrust-3", &uninstall_spec, "uninstall")
        .unwrap();
    wait_until("the handler's removal", WAIT_TIMEOUT, || {
        !fs::read_to_string(CONFIGURATION)
            .unwrap()
            .contains("runtimes.crust]")
    });
    wait_until("containerd to be restarted", WAIT_TIMEOUT, || {
        property("containerd.service", "MainPID") != restarted
    });
    wait_until("the CRI to answer", WAIT_TIMEOUT, || pod.cri().is_ready());
    assert!(
        process::is_alive(pod.cri().pid(&uninstall).unwrap()),
        "the container has ended"
    );
    kubelet.remove(&set).unwrap();
}
