//! The checks of directories and mounts.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;

use nix::mount::{MsFlags, mount, umount};
use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::{Delegate, Node, mounts, process, wait_until};

use crate::scene::{Report, doctor, doctor_by, well_configured};

#[test]
fn crust_and_state_directory_must_be_roots_alone() {
    let node = well_configured(Delegate::Runc);
    for (check, directory) in [
        ("crust directory", node.handler().crust_root()),
        ("state directory", node.handler().state_dir()),
    ] {
        let mode = |mode| fs::set_permissions(&directory, Permissions::from_mode(mode)).unwrap();
        mode(0o755);
        doctor(&node).assert(check, "warn", "has mode 0755");
        mode(0o777);
        doctor(&node).assert(check, "fail", "can be written by others");
        mode(0o700);
        chown(&directory, Some(1000), None).unwrap();
        doctor(&node).assert(check, "fail", "isn't owned by root");
        chown(&directory, Some(0), None).unwrap();
        doctor(&node).assert(check, "pass", directory.to_str().unwrap());
        umount(&directory).unwrap();
        fs::set_permissions(&directory, Permissions::from_mode(0o700)).unwrap();
        doctor(&node).assert(check, "warn", "isn't on a tmpfs");
        fs::remove_dir(&directory).unwrap();
        symlink("/run", &directory).unwrap();
        doctor(&node).assert(check, "fail", "is a link");
    }
}

#[test]
fn a_missing_state_directory_is_no_failure() {
    let node = well_configured(Delegate::Runc);
    let state = node.handler().state_dir().join("below");
    let configuration = node.handler().configuration();
    let text = fs::read_to_string(&configuration).unwrap();
    let own = format!("state_dir = {:?}", node.handler().state_dir());
    fs::write(
        &configuration,
        text.replace(&own, &format!("state_dir = {state:?}")),
    )
    .unwrap();
    doctor(&node).assert("state directory", "pass", "/below will be created");
    assert!(!state.exists());
}

const KUBELETS: &str = "kubelet's directories";

#[test]
fn unused_or_missing_kubelet_directories_are_warnings() {
    let node = well_configured(Delegate::Runc);
    let kubelet = node.handler().kubelet_dir();
    fs::remove_dir(kubelet.join("pods")).unwrap();
    doctor(&node).assert(KUBELETS, "warn", "no kubelet has used it");
    fs::remove_dir(kubelet).unwrap();
    let report = doctor(&node);
    report.assert(KUBELETS, "warn", "there is no such directory");
    assert!(report.succeeded, "{report:?}");
}

/// `doctor` and the kubelet run in a pid namespace of their own, because the machine itself may run a kubelet.
#[test]
fn a_kubelet_with_another_root_directory_is_a_failure() {
    let node = well_configured(Delegate::Runc);
    let with_kubelet = |root: &Path| {
        let script = format!(
            "(exec -a /usr/bin/kubelet bash -c 'sleep 1000; :' kubelet --v=2 --root-dir={}) &\n\
             until tr '\\0' ' ' < /proc/$!/cmdline | grep -q ^/usr/bin/kubelet; do :; done\n\
             exec \"$@\"",
            root.display()
        );
        let own = [
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "bash",
            "-c",
            &script,
            "-",
        ];
        doctor_by(&node, "unshare", &own)
    };
    with_kubelet(&node.handler().kubelet_dir()).assert(KUBELETS, "pass", "/kubelet");
    // The check fails although the configured directory has pods, as if of an earlier kubelet.
    let root = node.dir().subdir("k0s/kubelet");
    let report = with_kubelet(&root);
    let found = report.assert(KUBELETS, "fail", utf8(&root));
    let fix = found.fix.as_ref().unwrap();
    assert!(
        fix.contains("kubelet_dirs") && fix.contains(utf8(&root)),
        "{fix}"
    );
    assert!(!report.succeeded, "{report:?}");
}

#[test]
fn private_propagation_is_a_warning_if_kubelet_is_used() {
    let node = well_configured(Delegate::Runc);
    doctor(&node).assert("propagation", "pass", "/ is shared");
    let report = doctor_by(&node, "unshare", &["--mount", "--propagation", "private"]);
    report.assert("propagation", "warn", "/ is private");
    fs::remove_dir_all(node.handler().kubelet_dir()).unwrap();
    let report = doctor_by(&node, "unshare", &["--mount", "--propagation", "private"]);
    report.assert("propagation", "pass", "/ is private");
}

/// Runs `doctor` with these mounts below `/sys/fs/cgroup`.
fn doctor_with_cgroups(node: &Node, mounted: &[(&str, &str, &str)]) -> Report {
    mounts::in_private_namespace(|| {
        let root = Path::new("/sys/fs/cgroup");
        mounts::tmpfs(root);
        for (name, fstype, data) in mounted {
            fs::create_dir(root.join(name)).unwrap();
            let at = root.join(name);
            mount(
                Some("none"),
                &at,
                Some(*fstype),
                MsFlags::empty(),
                Some(*data),
            )
            .unwrap();
        }
        doctor(node)
    })
}

#[test]
fn cgroups_that_crun_refuses_are_a_failure_for_crun() {
    let v1 = ("v1", "cgroup", "none,name=runcrust-doctor");
    let unified = ("unified", "cgroup2", "");
    let crun = well_configured(Delegate::Crun);
    doctor_with_cgroups(&crun, &[v1, unified]).assert("cgroups", "fail", "which crun refuses");
    doctor_with_cgroups(&crun, &[v1]).assert("cgroups", "pass", "v1");
    let runc = well_configured(Delegate::Runc);
    doctor_with_cgroups(&runc, &[v1, unified]).assert("cgroups", "pass", "hybrid");
    let report = doctor_with_cgroups(&runc, &[unified]);
    assert!(
        !report.assert("cgroups", "pass", "v2").found.contains("v1"),
        "hidden mounts were counted"
    );
    doctor_with_cgroups(&runc, &[]).assert("cgroups", "fail", "none are mounted");
}

#[test]
fn a_log_that_cannot_be_written_is_a_warning() {
    let node = well_configured(Delegate::Runc);
    doctor(&node).assert("log", "pass", "none");
    let logs = node.dir().subdir("logs");
    let log = logs.join("log");
    let node = Node::well_configured(Delegate::Runc, &format!("log = {log:?}"));
    doctor(&node).assert("log", "pass", utf8(&log));
    assert!(!log.exists(), "doctor created the log");
    fs::set_permissions(&logs, Permissions::from_mode(0o777)).unwrap();
    let report = doctor(&node);
    report.assert("log", "warn", "nothing is logged: ");
    report.assert("log", "warn", "can be written by others");
    assert!(report.succeeded, "{report:?}");
}

#[test]
fn stale_records_are_counted() {
    let node = well_configured(Delegate::Runc);
    let device = node.ext4();
    let _ = node.stage("pod-a", "pv-1", &device, &[]);
    let sandbox = node.sandbox("pod-a");
    doctor(&node).assert("leftovers", "pass", "none");
    process::kill_and_wait(sandbox.pid());
    wait_until("a finding", WAIT_TIMEOUT, || {
        let report = doctor(&node);
        let mut all = report.findings.iter().filter(|it| it.check == "leftovers");
        all.any(|it| it.verdict == "warn" && it.found.starts_with("gc would remove "))
    });
    let _ = node.handler().crust(&["gc"]).success();
    doctor(&node).assert("leftovers", "pass", "none");
}
