//! Directories and mounts.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;

use nix::mount::{MsFlags, mount, umount};
use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::{Delegate, Node, mounts, process, wait_until};

use crate::scene::{Told, doctor, doctor_by, in_order};

#[test]
fn a_directory_that_is_not_roots_alone() {
    let node = in_order(Delegate::Runc);
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
fn a_directory_that_is_made_on_its_first_use() {
    let node = in_order(Delegate::Runc);
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
fn a_directory_that_no_kubelet_has() {
    let node = in_order(Delegate::Runc);
    let kubelet = node.handler().kubelet_dir();
    fs::remove_dir(kubelet.join("pods")).unwrap();
    doctor(&node).assert(KUBELETS, "warn", "no kubelet has used it");
    fs::remove_dir(kubelet).unwrap();
    let told = doctor(&node);
    told.assert(KUBELETS, "warn", "there is no such directory");
    assert!(told.succeeded, "{told:?}");
}

/// In a PID namespace of its own: what runs on the machine has its kubelet, or none.
#[test]
fn a_kubelet_that_runs_elsewhere() {
    let node = in_order(Delegate::Runc);
    let beside_a_kubelet = |root: &Path| {
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
    beside_a_kubelet(&node.handler().kubelet_dir()).assert(KUBELETS, "pass", "/kubelet");
    // That the configured one has pods of an earlier kubelet doesn't help.
    let root = node.dir().subdir("k0s/kubelet");
    let told = beside_a_kubelet(&root);
    let found = told.assert(KUBELETS, "fail", utf8(&root));
    let fix = found.fix.as_ref().unwrap();
    assert!(
        fix.contains("kubelet_dirs") && fix.contains(utf8(&root)),
        "{fix}"
    );
    assert!(!told.succeeded, "{told:?}");
}

#[test]
fn mounts_that_reach_nobody() {
    let node = in_order(Delegate::Runc);
    doctor(&node).assert("propagation", "pass", "/ is shared");
    let told = doctor_by(&node, "unshare", &["--mount", "--propagation", "private"]);
    told.assert("propagation", "warn", "/ is private");
    fs::remove_dir_all(node.handler().kubelet_dir()).unwrap();
    let told = doctor_by(&node, "unshare", &["--mount", "--propagation", "private"]);
    told.assert("propagation", "pass", "/ is private");
}

/// Where `/sys/fs/cgroup` holds these, what is said of them.
fn with_cgroups(node: &Node, mounted: &[(&str, &str, &str)]) -> Told {
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
fn control_groups_that_crun_refuses() {
    let v1 = ("v1", "cgroup", "none,name=runcrust-doctor");
    let unified = ("unified", "cgroup2", "");
    let crun = in_order(Delegate::Crun);
    with_cgroups(&crun, &[v1, unified]).assert("cgroups", "fail", "which crun refuses");
    with_cgroups(&crun, &[v1]).assert("cgroups", "pass", "v1");
    let runc = in_order(Delegate::Runc);
    with_cgroups(&runc, &[v1, unified]).assert("cgroups", "pass", "hybrid");
    let told = with_cgroups(&runc, &[unified]);
    assert!(
        !told.assert("cgroups", "pass", "v2").found.contains("v1"),
        "what is hidden doesn't count"
    );
    with_cgroups(&runc, &[]).assert("cgroups", "fail", "none are mounted");
}

#[test]
fn a_log_that_is_not_written() {
    let node = in_order(Delegate::Runc);
    doctor(&node).assert("log", "pass", "none");
    let logs = node.dir().subdir("logs");
    let log = logs.join("log");
    let node = Node::well_configured(Delegate::Runc, &format!("log = {log:?}"));
    doctor(&node).assert("log", "pass", utf8(&log));
    assert!(!log.exists(), "a look makes nothing");
    fs::set_permissions(&logs, Permissions::from_mode(0o777)).unwrap();
    let told = doctor(&node);
    told.assert("log", "warn", "nothing is logged: ");
    told.assert("log", "warn", "can be written by others");
    assert!(told.succeeded, "{told:?}");
}

#[test]
fn what_a_killed_pod_left() {
    let node = in_order(Delegate::Runc);
    let device = node.ext4();
    let _ = node.stage("pod-a", "pv-1", &device, &[]);
    let sandbox = node.sandbox("pod-a");
    doctor(&node).assert("leftovers", "pass", "none");
    process::kill_and_wait(sandbox.pid());
    wait_until("a count", WAIT_TIMEOUT, || {
        let told = doctor(&node);
        let mut all = told.findings.iter().filter(|it| it.check == "leftovers");
        all.any(|it| it.verdict == "warn" && it.found.starts_with("gc would remove "))
    });
    let _ = node.handler().crust(&["gc"]).success();
    doctor(&node).assert("leftovers", "pass", "none");
}
