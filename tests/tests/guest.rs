//! Tests that need the guest (`make vm-test`): cgroup v2 only, and disks that are not loop devices.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use runcrust_tests::container::end;
use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::process::kill_and_wait as kill;
use runcrust_tests::volume::{fsck, mkfs};
use runcrust_tests::{
    Bundle, Container, Delegate, Disk, MountWatcher, Node, POD, StagedVolume, cgroup, host,
    on_each_delegate, wait_until,
};

const OTHER_POD: &str = "99999999-3333-1111-4444-555555555555";

/// Returns a disk with an empty file system, and the path where it is staged.
#[track_caller]
fn stage_new_disk(node: &Node, fstype: &str) -> (Disk, PathBuf) {
    let disk = Disk::take();
    mkfs(fstype, disk.path(), &[]);
    let target = stage(node, POD, fstype, &disk);
    (disk, target)
}

#[track_caller]
fn stage(node: &Node, pod: &str, fstype: &str, disk: &Disk) -> PathBuf {
    let target = node.target(pod, "pv-1");
    let _ = node
        .try_stage_as(fstype, &target, disk.path(), &[])
        .success();
    target
}

/// Returns a running container in a scope that systemd created, and the path of its control group.
#[track_caller]
fn scope(node: &Node, mut bundle: Bundle) -> (Container, String) {
    let (path, group) = cgroup::scope(bundle.id(), node.handler().delegate());
    bundle.spec_mut()["linux"]["cgroupsPath"] = path.into();
    let container = node.container(&bundle.write());
    // The shim does not pass `--systemd-cgroup` to `delete`.
    let pid_file = container.bundle().join("init.pid");
    let create = [
        "--systemd-cgroup",
        "create",
        "--bundle",
        utf8(container.bundle()),
    ];
    let create = [
        &create[..],
        &["--pid-file", utf8(&pid_file), container.id()],
    ]
    .concat();
    let _ = container.create_with(container.command(&create)).success();
    let _ = container.start().success();
    (container, group)
}

/// A container writes to the volume, and a container of another pod reads it.
fn a_volume_on_a_disk(delegate: Delegate, fstype: &str) {
    let node = Node::new(delegate);
    let (disk, target) = stage_new_disk(&node, fstype);
    let watcher = MountWatcher::start(disk.path());
    let sandbox = node.sandbox(POD);
    let app = node.app(&sandbox, &target, "/data");
    let _ = app.sh("echo kept > /data/file");
    let mounted = app.sh("grep ' /data ' /proc/self/mountinfo");
    let source = format!(" - {fstype} {} ", utf8(disk.path()));
    assert!(mounted.contains(&source), "{mounted}");
    end([app, sandbox]);
    let _ = node.unstage(&target).success();
    fsck(fstype, disk.path());

    let target = stage(&node, OTHER_POD, fstype, &disk);
    let sandbox = node.sandbox(OTHER_POD);
    let app = node.app(&sandbox, &target, "/data");
    assert_eq!(app.sh("cat /data/file"), "kept");
    assert!(!disk.is_free());
    end([app, sandbox]);
    let _ = node.unstage(&target).success();
    assert!(disk.is_free());
    watcher.assert_never_mounted();
    assert_eq!(node.records(), Vec::<PathBuf>::new());
}

on_each_delegate! {
    #[ignore = "needs cgroup v2 only; runs in the guest: make vm-test"]
    fn containers_are_in_the_single_cgroup_hierarchy(delegate: Delegate) {
        let hierarchies = host::mounts().into_iter().filter(|mount| mount.fstype.starts_with("cgroup"));
        let hierarchies: Vec<String> =
            hierarchies.map(|mount| format!("{} {}", mount.fstype, mount.point.display())).collect();
        assert_eq!(hierarchies, ["cgroup2 /sys/fs/cgroup"]);
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        let app = volume.app(&sandbox);
        for container in [&sandbox, &app] {
            let groups = fs::read_to_string(format!("/proc/{}/cgroup", container.pid())).unwrap();
            assert_eq!(groups, format!("0::{}\n", container.cgroup()));
        }
    }

    #[ignore = "needs systemd as init; runs in the guest: make vm-test"]
    fn containers_are_scopes_with_the_systemd_cgroup_driver(delegate: Delegate) {
        let node = Node::new(delegate);
        let (disk, target) = stage_new_disk(&node, "ext4");
        let (sandbox, _) = scope(&node, node.sandbox_bundle(POD));
        let bundle = node.app_bundle(&sandbox).bind(&target, "/data", &[]);
        let (app, group) = scope(&node, bundle.all_capabilities());
        let _ = app.sh("echo kept > /data/file");
        assert_eq!(fs::read_to_string(format!("/proc/{}/cgroup", app.pid())).unwrap(), format!("0::{group}\n"));
        let (major, minor) = disk.number().split_once(':').unwrap();
        let _ = app.sh(&format!("mknod /raw b {major} {minor}"));
        let refused = app.exec(&["/bin/dd", "if=/raw", "of=/dev/null", "count=1"]).failure();
        assert!(refused.stderr.contains("Operation not permitted"), "{refused}");
        end([app, sandbox]);
        let _ = node.unstage(&target).success();
        assert!(disk.is_free());
        assert_eq!(node.records(), Vec::<PathBuf>::new());
    }

    /// cgroup v2 has no `devices` controller; a BPF program of the control group refuses access.
    #[ignore = "needs cgroup v2 only; runs in the guest: make vm-test"]
    fn the_device_filter_keeps_a_workload_from_the_device(delegate: Delegate) {
        let node = Node::new(delegate);
        let (disk, target) = stage_new_disk(&node, "ext4");
        let sandbox = node.sandbox(POD);
        assert!(!cgroup::allows_read(sandbox.pid(), disk.path()));
        let bundle = node.app_bundle(&sandbox).bind(&target, "/data", &[]).all_capabilities();
        let app = node.run(&bundle.write());
        let (major, minor) = disk.number().split_once(':').unwrap();
        let _ = app.sh(&format!("mknod /raw b {major} {minor}"));
        let refused = app.exec(&["/bin/dd", "if=/raw", "of=/dev/null", "count=1"]).failure();
        assert!(refused.stderr.contains("Operation not permitted"), "{refused}");

        // The same process may read the device once it is outside its control group.
        let script = "until dd if=/raw of=/dev/null count=1 2>/dev/null; do sleep 0.1; done";
        let mut tries = app.command(&["exec", app.id(), "/bin/sh", "-c", script]);
        let before = cgroup::processes(app.cgroup());
        let mut tries = tries.stdin(Stdio::null()).spawn().unwrap();
        wait_until("the reader to get access", WAIT_TIMEOUT, || {
            for pid in cgroup::processes(app.cgroup()) {
                if !before.contains(&pid) {
                    // This process may be a short-lived child of the reader, and may have ended.
                    let _ = fs::write("/sys/fs/cgroup/cgroup.procs", pid.to_string());
                }
            }
            tries.try_wait().unwrap().is_some()
        });
        assert!(tries.wait().unwrap().success());
    }

    #[ignore = "needs a spare disk; runs in the guest: make vm-test"]
    fn a_disk_with_ext4_is_a_volume(delegate: Delegate) {
        a_volume_on_a_disk(delegate, "ext4");
    }

    #[ignore = "needs a spare disk; runs in the guest: make vm-test"]
    fn a_disk_with_xfs_is_a_volume(delegate: Delegate) {
        a_volume_on_a_disk(delegate, "xfs");
    }

    #[ignore = "needs a spare disk; runs in the guest: make vm-test"]
    fn a_disk_with_btrfs_is_a_volume(delegate: Delegate) {
        a_volume_on_a_disk(delegate, "btrfs");
    }

    #[ignore = "needs a spare disk; runs in the guest: make vm-test"]
    fn a_disk_is_free_after_its_writing_pod_was_killed(delegate: Delegate) {
        let node = Node::new(delegate);
        let (disk, target) = stage_new_disk(&node, "ext4");
        let sandbox = node.sandbox(POD);
        let bundle = node.app_bundle(&sandbox).bind(&target, "/data", &[]);
        let script = "while true; do dd if=/dev/zero of=/data/zeros bs=1M count=64 2>/dev/null; done";
        let app = node.run(&bundle.script(script).write());
        wait_until("the app to write", WAIT_TIMEOUT, || {
            app.sh("cat /data/* | head -c 1 | wc -c") == "1"
        });
        kill(app.pid());
        kill(sandbox.pid());
        let _ = node.unstage(&target).success();
        assert!(disk.is_free());
        // The kernel unmounts cleanly when the last process ends, so nothing is lost.
        let target = stage(&node, POD, "ext4", &disk);
        let sandbox = node.sandbox(POD);
        let app = node.app(&sandbox, &target, "/data");
        assert_eq!(app.sh("ls /data/zeros"), "/data/zeros");
    }
}
