//! Control groups of tests, which are named uniquely: whatever still runs in one is the test's.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::dir::unique;
use crate::wait::holds_within;
use crate::{Delegate, Run, process};

const MOUNT: &str = "/sys/fs/cgroup";

/// What a runtime that is called with `--systemd-cgroup` reads as a group: a scope of this name in the
/// slice `runcrust_tests.slice`, and the group that its processes are in.
pub fn scope(name: &str, delegate: Delegate) -> (String, String) {
    let slice = "runcrust_tests.slice";
    let scope = format!("/{slice}/runcrust-{name}.scope");
    (format!("{slice}:runcrust:{name}"), within(&scope, delegate))
}

/// Where processes of a scope are: crun makes a group in it.
pub(crate) fn within(scope: &str, delegate: Delegate) -> String {
    match delegate {
        Delegate::Runc => scope.to_owned(),
        Delegate::Crun => format!("{scope}/container"),
    }
}

/// Whether v2 alone is mounted.
pub(crate) fn is_unified() -> bool {
    Path::new(MOUNT).join("cgroup.controllers").exists()
}

/// Whether containerd is to leave control groups to systemd, where that is the init: `systemd` in
/// `RUNCRUST_TEST_CGROUPS`.
pub fn are_systemds() -> bool {
    match std::env::var("RUNCRUST_TEST_CGROUPS") {
        Ok(driver) if driver == "systemd" => true,
        Ok(driver) => panic!("RUNCRUST_TEST_CGROUPS={driver}: `systemd` is the only one to name"),
        Err(_) => false,
    }
}

/// A new name for the group that a kubelet would put pods in.
pub(crate) fn parent() -> String {
    let name = unique("pods");
    if are_systemds() {
        // A dash would be a level.
        format!("/{}.slice", name.replace('-', "_"))
    } else {
        format!("/{name}")
    }
}

/// The same as [`kill_and_remove`] for a group of [`parent`]'s.
pub(crate) fn remove_parent(name: &str) -> Vec<String> {
    let errors = kill_and_remove(name);
    let unit = Path::new(name);
    if unit.extension().is_some_and(|kind| kind == "slice") {
        // systemd made it of itself, and keeps it otherwise.
        let _ = Run::of(Command::new("systemctl").arg("stop").args(unit.file_name()));
    }
    errors
}

/// Where the group `/name` is in each hierarchy: every v1 controller's, or the one of v2.
pub fn directories(name: &str) -> Vec<PathBuf> {
    let name = name.trim_start_matches('/');
    let mut hierarchies = vec![PathBuf::from(MOUNT)];
    hierarchies.extend(subdirectories(Path::new(MOUNT)));
    hierarchies
        .into_iter()
        .map(|at| at.join(name))
        .filter(|at| at.is_dir())
        .collect()
}

/// The processes in the group `/name` and the groups below it.
pub fn processes(name: &str) -> Vec<i32> {
    let mut pids = Vec::new();
    for directory in directories(name) {
        for group in with_descendants(&directory) {
            let listed = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
            pids.extend(listed.lines().filter_map(|line| line.parse::<i32>().ok()));
        }
    }
    pids.sort_unstable();
    pids.dedup();
    pids
}

/// Whether the device rules of a process's group let another process of the group read a device.
///
/// # Panics
///
/// When the group can't be entered.
#[track_caller]
pub fn lets_read(pid: i32, device: &Path) -> bool {
    let group = with_device_rules(pid);
    let script = "echo $$ > \"$1/cgroup.procs\" || exit 9
        exec dd if=\"$2\" of=/dev/null count=1";
    let mut enter = Command::new("/bin/sh");
    enter.args(["-c", script, "sh"]).arg(&group).arg(device);
    let run = Run::of(&mut enter);
    let refused = run.stderr.contains("Operation not permitted");
    assert!(
        run.status.success() || refused,
        "{}: {run}",
        group.display()
    );
    run.status.success()
}

/// The group of a process that has its device rules: v1's controller, or the one of v2.
fn with_device_rules(pid: i32) -> PathBuf {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("a process");
    let group = groups.lines().find_map(|line| {
        // cgroups(7): id:controllers:path
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?.trim_start_matches('/'));
        let at = match controllers {
            "" if is_unified() => PathBuf::from(MOUNT),
            "devices" => Path::new(MOUNT).join("devices"),
            _ => return None,
        };
        Some(at.join(path))
    });
    group.unwrap_or_else(|| panic!("no device rules are in force: {groups}"))
}

/// Whether all that runs in the group `/name` is frozen.
pub fn is_frozen(name: &str) -> bool {
    let says = |file: &Path, text: &str| {
        fs::read_to_string(file).is_ok_and(|found| found.lines().any(|line| line == text))
    };
    directories(name).iter().any(|at| {
        says(&at.join("freezer.state"), "FROZEN") || says(&at.join("cgroup.events"), "frozen 1")
    })
}

/// A frozen process doesn't die.
fn thaw(group: &Path) {
    for (file, text) in [("freezer.state", "THAWED"), ("cgroup.freeze", "0")] {
        // Never made: in a plain directory it would be in the way.
        let file = fs::File::options().write(true).open(group.join(file));
        let _ = file.and_then(|mut file| file.write_all(text.as_bytes()));
    }
}

/// Kills what runs in the group `/name` and removes it; returns what stays.
pub fn kill_and_remove(name: &str) -> Vec<String> {
    if name.trim_matches('/').is_empty() {
        return vec!["the root of the cgroups is nobody's own".to_owned()];
    }
    holds_within(Duration::from_secs(60), || {
        for pid in processes(name) {
            process::kill_now(pid);
        }
        for directory in directories(name) {
            for group in with_descendants(&directory) {
                thaw(&group);
                // Where there is no v2 mount, crun leaves a plain file in a plain directory.
                let _ = fs::remove_dir(&group)
                    .or_else(|_| fs::remove_file(group.join("cgroup.procs")))
                    .and_then(|()| fs::remove_dir(&group));
            }
        }
        directories(name).is_empty()
    });
    directories(name)
        .iter()
        .map(|left| format!("cgroup {} stays", left.display()))
        .collect()
}

/// A group and all below it, the deepest first.
fn with_descendants(group: &Path) -> Vec<PathBuf> {
    let mut groups = Vec::new();
    for child in subdirectories(group) {
        groups.extend(with_descendants(&child));
    }
    groups.push(group.to_owned());
    groups
}

fn subdirectories(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    let directories = entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    directories.map(|entry| entry.path()).collect()
}
