//! `crust_ops` as a service of systemd.

use std::fs;
use std::path::Path;
use std::process::Command;

use runcrust_tests::installed::{property, systemctl};
use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::{Delegate, InstalledPod, Run, process, wait_until};
use serde_json::Value;
use tonic::Code;

use crate::{SERVICE, SOCKET, daemon, stage_disk};

#[test]
#[ignore = "needs the e2e node; runs in the guest: make vm-test"]
fn a_call_starts_the_daemon() {
    let pod = InstalledPod::new(Delegate::Runc);
    let _ = systemctl(&["stop", SERVICE]);
    assert_eq!(property(SERVICE, "ActiveState"), "inactive");
    assert_eq!(property(SOCKET, "ActiveState"), "active");
    let _disk = stage_disk(&pod);
    assert_eq!(property(SERVICE, "ActiveState"), "active");
    pod.ops().unstage(pod.target()).unwrap();
}

#[test]
#[ignore = "needs the e2e node; runs in the guest: make vm-test"]
fn a_pod_outlives_a_reloaded_restarted_and_killed_daemon() {
    let pod = InstalledPod::new(Delegate::Runc);
    let _disk = stage_disk(&pod);
    let sandbox = pod.run();
    let app = pod.app(&sandbox, "one");
    let _ = pod.cri().sh(&app, "echo kept > /data/file");
    let pid = pod.cri().pid(&app).unwrap();

    let first = daemon();
    let _ = systemctl(&["restart", SERVICE]);
    let second = daemon();
    assert_ne!(first, second);
    let _ = systemctl(&["reload", SERVICE]);
    let pid_field = format!("_PID={second}");
    wait_until("the line about the reload", WAIT_TIMEOUT, || {
        let mut journal = Command::new("journalctl");
        let lines =
            Run::capture(journal.args(["--quiet", &pid_field, "MESSAGE=reloaded"])).success();
        !lines.stdout.is_empty()
    });
    assert_eq!(daemon(), second, "the reload restarted the daemon");
    assert!(!pod.ops().stats(pod.target()).unwrap().usage.is_empty());

    let before: u32 = property(SERVICE, "NRestarts").parse().unwrap();
    process::kill_and_wait(second);
    wait_until("systemd to restart the daemon", WAIT_TIMEOUT, || {
        ![0, second].contains(&daemon())
    });
    let after: u32 = property(SERVICE, "NRestarts").parse().unwrap();
    assert_eq!(after, before + 1);
    assert!(!pod.ops().stats(pod.target()).unwrap().usage.is_empty());
    assert!(process::is_alive(pid));
    assert_eq!(pod.cri().sh(&app, "cat /data/file").trim(), "kept");

    pod.end(&sandbox);
    pod.ops().unstage(pod.target()).unwrap();
}

#[test]
#[ignore = "needs the e2e node; runs in the guest: make vm-test"]
fn the_journal_has_a_calls_fields() {
    let pod = InstalledPod::new(Delegate::Runc);
    let disk = stage_disk(&pod);
    let mut request = runcrust_tests::ops::stage_request_of(pod.target(), disk.path(), "ext4");
    request.fs_type = "vfat".to_owned();
    let refused = pod.ops().stage(request).unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    pod.ops().unstage(pod.target()).unwrap();
    let _ = Run::capture(Command::new("journalctl").arg("--sync")).success();

    let volume = format!("CRUST_VOLUME={:?}", pod.target());
    let mut journal = Command::new("journalctl");
    journal.args(["--unit", SERVICE, "--output", "json", &volume]);
    let journal = Run::capture(&mut journal).success();
    let entries = journal
        .stdout
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let entries: Vec<Value> = entries.collect();
    let own_pid = std::process::id().to_string();
    for entry in &entries {
        assert_eq!(entry["CRUST_UID"], "0", "{entry}");
        assert_eq!(entry["CRUST_PID"], *own_pid, "{entry}");
        assert_eq!(entry["_SYSTEMD_UNIT"], SERVICE, "{entry}");
    }
    let find = |method: &str, priority: &str| {
        let method = format!("crust.v1.Runtime/{method}");
        let matches =
            |entry: &&Value| entry["CRUST_METHOD"] == *method && entry["PRIORITY"] == *priority;
        entries
            .iter()
            .find(matches)
            .unwrap_or_else(|| panic!("no {method} in {journal}"))
    };
    let _ = find("RuntimeStageVolume", "6");
    let _ = find("RuntimeUnstageVolume", "6");
    let failed = find("RuntimeStageVolume", "4");
    assert_eq!(failed["CRUST_CODE"], "InvalidArgument");
}

#[test]
#[ignore = "needs the e2e node; runs in the guest: make vm-test"]
fn crust_ops_check_finds_the_packages_runtime() {
    let check = Run::capture(Command::new("crust_ops").arg("--check")).success();
    for program in ["/usr/bin/runcrust", "/usr/local/bin/runcrust-crun"] {
        let line = format!("pass  runtime-cli: {program}");
        assert!(check.stdout.lines().any(|it| it == line), "{check}");
    }
    assert!(
        check.stdout.contains("hook: /usr/bin/crust-mount-hook\n"),
        "{check}"
    );
}

/// Returns a field of a process's status.
fn field(pid: i32, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{name}:")));
    line.unwrap().trim().to_owned()
}

#[test]
#[ignore = "needs the e2e node; runs in the guest: make vm-test"]
fn the_unit_restricts_the_daemon_but_not_its_mounts() {
    let _ = systemctl(&["start", SERVICE]);
    let pid = daemon();
    let allowed = property(SERVICE, "CapabilityBoundingSet");
    let allowed: Vec<&str> = allowed.split(' ').collect();
    assert!(allowed.contains(&"cap_sys_resource"), "{allowed:?}");
    let bounding = u64::from_str_radix(&field(pid, "CapBnd"), 16).unwrap();
    assert_eq!(bounding.count_ones() as usize, allowed.len(), "{allowed:?}");
    assert_eq!(field(pid, "CapEff"), field(pid, "CapBnd"));
    assert_eq!(field(pid, "NoNewPrivs"), "1");
    assert_eq!(field(pid, "Seccomp"), "2", "no seccomp filter");
    for restriction in [
        "MemoryDenyWriteExecute",
        "LockPersonality",
        "RestrictRealtime",
    ] {
        assert_eq!(property(SERVICE, restriction), "yes", "{restriction}");
    }
    // The daemon has to see the host's mounts and processes.
    let namespace =
        |pid: &str, kind| fs::read_link(Path::new("/proc").join(pid).join("ns").join(kind));
    for kind in ["mnt", "pid", "user"] {
        let (daemons, host) = (namespace(&pid.to_string(), kind), namespace("1", kind));
        assert_eq!(daemons.unwrap(), host.unwrap(), "{kind}");
    }
    let mut exposure = Command::new("systemd-analyze");
    exposure.args(["security", "--no-pager", "--threshold=60", SERVICE]);
    let exposure = Run::capture(&mut exposure).success();
    println!(
        "{}",
        exposure.stdout.trim().lines().last().unwrap_or_default()
    );
}
