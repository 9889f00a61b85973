//! Control groups. Tests use unique names, so every process in such a group belongs to the test.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::dir::unique;
use crate::wait::holds_within;
use crate::{Delegate, Run, process};

const MOUNT: &str = "/sys/fs/cgroup";

/// Returns the cgroup path for a runtime that is called with `--systemd-cgroup` (a scope in the slice
/// `runcrust_tests.slice`), and the group that its processes are in.
pub fn scope(name: &str, delegate: Delegate) -> (String, String) {
    let slice = "runcrust_tests.slice";
    let scope = format!("/{slice}/runcrust-{name}.scope");
    (
        format!("{slice}:runcrust:{name}"),
        container_group(&scope, delegate),
    )
}

/// Returns the group of a scope's processes: crun makes a child group.
pub fn container_group(scope: &str, delegate: Delegate) -> String {
    match delegate {
        Delegate::Runc => scope.to_owned(),
        Delegate::Crun => format!("{scope}/container"),
    }
}

/// Returns whether only cgroup v2 is mounted.
pub fn is_unified() -> bool {
    Path::new(MOUNT).join("cgroup.controllers").exists()
}

/// Returns whether containerd must let systemd manage control groups: `RUNCRUST_TEST_CGROUPS=systemd`, on a machine
/// with systemd as init.
pub fn is_managed_by_systemd() -> bool {
    match std::env::var("RUNCRUST_TEST_CGROUPS") {
        Ok(driver) if driver == "systemd" => true,
        Ok(driver) => {
            panic!("RUNCRUST_TEST_CGROUPS={driver}: the only supported value is `systemd`")
        }
        Err(_) => false,
    }
}

/// Returns a new name for the parent cgroup of pods, which kubelet would create.
pub fn new_parent() -> String {
    let name = unique("pods");
    if is_managed_by_systemd() {
        // In a slice's name a dash separates levels.
        format!("/{}.slice", name.replace('-', "_"))
    } else {
        format!("/{name}")
    }
}

/// Removes a group whose name is from [`new_parent`], as [`kill_and_remove`] does.
pub fn remove_parent(name: &str) -> Vec<String> {
    let errors = kill_and_remove(name);
    let unit = Path::new(name);
    if unit.extension().is_some_and(|kind| kind == "slice") {
        // systemd created the slice implicitly, and keeps it until it is stopped.
        let _ = Run::capture(Command::new("systemctl").arg("stop").args(unit.file_name()));
    }
    errors
}

/// Returns the directories of the group `/name`: one for every v1 controller, or the one of v2.
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

/// Returns the processes in the group `/name` and in its descendants.
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

/// Returns whether the device rules of a process's group let another process in that group read a device.
#[track_caller]
pub fn allows_read(pid: i32, device: &Path) -> bool {
    let group = with_device_rules(pid);
    let script = "echo $$ > \"$1/cgroup.procs\" || exit 9
        exec dd if=\"$2\" of=/dev/null count=1";
    let mut enter = Command::new("/bin/sh");
    enter.args(["-c", script, "sh"]).arg(&group).arg(device);
    let run = Run::capture(&mut enter);
    let refused = run.stderr.contains("Operation not permitted");
    assert!(
        run.status.success() || refused,
        "{}: {run}",
        group.display()
    );
    run.status.success()
}

/// Returns the group that holds a process's device rules: the group of v1's `devices` controller, or the v2 group.
fn with_device_rules(pid: i32) -> PathBuf {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("a process");
    let group = groups.lines().find_map(|line| {
        // cgroups(7): hierarchy-ID:controllers:path
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?.trim_start_matches('/'));
        let at = match controllers {
            "" if is_unified() => PathBuf::from(MOUNT),
            "devices" => Path::new(MOUNT).join("devices"),
            _ => return None,
        };
        Some(at.join(path))
    });
    group.unwrap_or_else(|| panic!("the process has no group with device rules: {groups}"))
}

/// Returns whether the group `/name` is frozen.
pub fn is_frozen(name: &str) -> bool {
    let has_line = |file: &Path, text: &str| {
        fs::read_to_string(file).is_ok_and(|found| found.lines().any(|line| line == text))
    };
    directories(name).iter().any(|at| {
        has_line(&at.join("freezer.state"), "FROZEN")
            || has_line(&at.join("cgroup.events"), "frozen 1")
    })
}

/// Thaws a group, because a frozen process does not die.
fn thaw(group: &Path) {
    for (file, text) in [("freezer.state", "THAWED"), ("cgroup.freeze", "0")] {
        // Without O_CREAT: a file in a directory that is no cgroup would prevent its removal.
        let file = fs::File::options().write(true).open(group.join(file));
        let _ = file.and_then(|mut file| file.write_all(text.as_bytes()));
    }
}

/// Kills the processes in the group `/name` and removes the group. Returns what could not be removed.
pub fn kill_and_remove(name: &str) -> Vec<String> {
    if name.trim_matches('/').is_empty() {
        return vec!["the root cgroup is not a test's own".to_owned()];
    }
    holds_within(Duration::from_secs(60), || {
        for pid in processes(name) {
            process::kill_now(pid);
        }
        for directory in directories(name) {
            for group in with_descendants(&directory) {
                thaw(&group);
                // Without a v2 mount crun leaves an ordinary file in an ordinary directory.
                let _ = fs::remove_dir(&group)
                    .or_else(|_| fs::remove_file(group.join("cgroup.procs")))
                    .and_then(|()| fs::remove_dir(&group));
            }
        }
        directories(name).is_empty()
    });
    directories(name)
        .iter()
        .map(|left| format!("cgroup {} can't be removed", left.display()))
        .collect()
}

/// Returns a group and its descendants, deepest first.
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
