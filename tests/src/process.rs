//! Processes, by pid.

use std::fs;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::node::PATIENCE;
use crate::wait_until;

/// Whether the process runs: there, and no zombie.
pub fn is_alive(pid: i32) -> bool {
    state_of(pid).is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// SIGKILL; a process that is gone is what was wanted.
pub fn kill_now(pid: i32) {
    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
}

/// Kills a process and waits until it has ended.
pub fn kill_and_wait(pid: i32) {
    kill_now(pid);
    wait_until("a killed process to end", PATIENCE, || !is_alive(pid));
}

/// The processes whose command line `wanted` accepts; arguments are separated by NUL.
pub fn with_command_line(wanted: impl Fn(&str) -> bool) -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid: &i32| {
        fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| wanted(&String::from_utf8_lossy(&line)))
    })
    .collect()
}

/// The processes of a process group that run.
pub fn in_group(group: i32) -> Vec<i32> {
    let mut pids = with_command_line(|_| true);
    pids.retain(|pid| is_alive(*pid) && group_of(*pid) == Some(group));
    pids
}

fn group_of(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(2)?.parse().ok()
}

/// The letter of proc(5)'s state; the name before it may hold anything but ends in `) `.
fn state_of(pid: i32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}
