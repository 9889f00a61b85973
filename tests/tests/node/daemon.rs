//! `crust_ops` under systemd.

use std::fs;
use std::path::Path;
use std::process::Command;

use runcrust_tests::installed::{property, systemctl};
use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::{Delegate, InstalledPod, Run, process, wait_until};
use serde_json::Value;
use tonic::Code;

use crate::{SERVICE, SOCKET, daemon, staged};

#[test]
#[ignore = "needs the e2e node; runs in the guest: make vm-test"]
fn a_call_starts_it() {
    let pod = InstalledPod::new(Delegate::Runc);
    let _ = systemctl(&["stop", SERVICE]);
    assert_eq!(property(SERVICE, "ActiveState"), "inactive");
    assert_eq!(property(SOCKET, "ActiveState"), "active");
    let _disk = staged(&pod);
    assert_eq!(property(SERVICE, "ActiveState"), "active");
    pod.ops().unstage(pod.target()).unwrap();
}

#[test]
#[ignore = "needs the e2e node; runs in the guest: make vm-test"]
fn a_pod_outlives_it_reloaded_restarted_and_killed() {
    let pod = InstalledPod::new(Delegate::Runc);
    let _disk = staged(&pod);
    let sandbox = pod.run();
    let app = pod.app(&sandbox, "one");
    let _ = pod.cri().sh(&app, "echo kept > /data/file");
    let pid = pod.cri().pid(&app).unwrap();

    let first = daemon();
    let _ = systemctl(&["restart", SERVICE]);
    let second = daemon();
    assert_ne!(first, second);
    let _ = systemctl(&["reload", SERVICE]);
    let own = format!("_PID={second}");
    wait_until("it to have read its configuration", WAIT_TIMEOUT, || {
        let mut journal = Command::new("journalctl");
        let said = Run::of(journal.args(["--quiet", &own, "MESSAGE=reloaded"])).success();
        !said.stdout.is_empty()
    });
    assert_eq!(daemon(), second, "and it goes on");
    assert!(!pod.ops().stats(pod.target()).unwrap().usage.is_empty());

    let before: u32 = property(SERVICE, "NRestarts").parse().unwrap();
    process::kill_and_wait(second);
    wait_until("systemd to start it anew", WAIT_TIMEOUT, || {
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
    let disk = staged(&pod);
    let mut request = runcrust_tests::ops::stage_request_of(pod.target(), disk.path(), "ext4");
    request.fs_type = "vfat".to_owned();
    let refused = pod.ops().stage(request).unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    pod.ops().unstage(pod.target()).unwrap();
    let _ = Run::of(Command::new("journalctl").arg("--sync")).success();

    let volume = format!("CRUST_VOLUME={:?}", pod.target());
    let mut journal = Command::new("journalctl");
    journal.args(["--unit", SERVICE, "--output", "json", &volume]);
    let journal = Run::of(&mut journal).success();
    let entries = journal
        .stdout
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let entries: Vec<Value> = entries.collect();
    let us = std::process::id().to_string();
    for entry in &entries {
        assert_eq!(entry["CRUST_UID"], "0", "{entry}");
        assert_eq!(entry["CRUST_PID"], *us, "{entry}");
        assert_eq!(entry["_SYSTEMD_UNIT"], SERVICE, "{entry}");
    }
    let of = |method: &str, priority: &str| {
        let method = format!("crust.v1.Runtime/{method}");
        let found =
            |entry: &&Value| entry["CRUST_METHOD"] == *method && entry["PRIORITY"] == *priority;
        entries
            .iter()
            .find(found)
            .unwrap_or_else(|| panic!("no {method} in {journal}"))
    };
    let _ = of("RuntimeStageVolume", "6");
    let _ = of("RuntimeUnstageVolume", "6");
    let failed = of("RuntimeStageVolume", "4");
    assert_eq!(failed["CRUST_CODE"], "InvalidArgument");
}

#[test]
#[ignore = "needs the e2e node; runs in the guest: make vm-test"]
fn its_check_finds_the_packages_runtime() {
    let check = Run::of(Command::new("crust_ops").arg("--check")).success();
    for program in ["/usr/bin/runcrust", "/usr/local/bin/runcrust-crun"] {
        let line = format!("pass  runtime-cli: {program}");
        assert!(check.stdout.lines().any(|it| it == line), "{check}");
    }
    assert!(
        check.stdout.contains("hook: /usr/bin/crust-mount-hook\n"),
        "{check}"
    );
}

/// Of a process's status.
fn field(pid: i32, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{name}:")));
    line.unwrap().trim().to_owned()
}

#[test]
#[ignore = "needs the e2e node; runs in the guest: make vm-test"]
fn its_unit_keeps_it_from_what_it_says() {
    let _ = systemctl(&["start", SERVICE]);
    let pid = daemon();
    let allowed = property(SERVICE, "CapabilityBoundingSet");
    let allowed: Vec<&str> = allowed.split(' ').collect();
    assert!(allowed.contains(&"cap_sys_resource"), "{allowed:?}");
    let bounding = u64::from_str_radix(&field(pid, "CapBnd"), 16).unwrap();
    assert_eq!(bounding.count_ones() as usize, allowed.len(), "{allowed:?}");
    assert_eq!(field(pid, "CapEff"), field(pid, "CapBnd"));
    assert_eq!(field(pid, "NoNewPrivs"), "1");
    assert_eq!(field(pid, "Seccomp"), "2", "a filter");
    for property_of_ours in [
        "MemoryDenyWriteExecute",
        "LockPersonality",
        "RestrictRealtime",
    ] {
        assert_eq!(
            property(SERVICE, property_of_ours),
            "yes",
            "{property_of_ours}"
        );
    }
    // What it must not be kept from: the host's mounts and processes.
    let namespace =
        |pid: &str, kind| fs::read_link(Path::new("/proc").join(pid).join("ns").join(kind));
    for kind in ["mnt", "pid", "user"] {
        let (own, host) = (namespace(&pid.to_string(), kind), namespace("1", kind));
        assert_eq!(own.unwrap(), host.unwrap(), "{kind}");
    }
    let mut exposure = Command::new("systemd-analyze");
    exposure.args(["security", "--no-pager", "--threshold=60", SERVICE]);
    let exposure = Run::of(&mut exposure).success();
    println!(
        "{}",
        exposure.stdout.trim().lines().last().unwrap_or_default()
    );
}
