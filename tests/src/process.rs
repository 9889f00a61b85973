//! Processes, by pid.

use std::fs;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::node::WAIT_TIMEOUT;
use crate::wait_until;

/// Whether the process runs: there, and no zombie; one whose first thread alone has ended, as those
/// of a Go program that is killed may, one after the other, still holds all that it has.
pub fn is_alive(pid: i32) -> bool {
    let runs = |stat: &Stat| match stat.state {
        'Z' => stat.threads > 1,
        state => state != 'X',
    };
    Stat::of(pid).as_ref().is_some_and(runs)
}

/// A line of a process's `/proc/<pid>/status`, without its name; empty where there is none (more).
pub fn status(pid: impl std::fmt::Display, name: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    let found = lines.find(|(found, _)| *found == name);
    found.map_or_else(String::new, |(_, value)| value.trim().to_owned())
}

/// How many descriptors a process has.
pub fn descriptors(pid: i32) -> usize {
    let open = fs::read_dir(format!("/proc/{pid}/fd"));
    open.expect("it runs").count()
}

/// SIGKILL; a process that is gone is what was wanted.
pub fn kill_now(pid: i32) {
    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
}

/// Kills a process and waits until it has ended.
pub fn kill_and_wait(pid: i32) {
    kill_now(pid);
    wait_until("a killed process to end", WAIT_TIMEOUT, || !is_alive(pid));
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

/// The processes that have this parent, zombies too.
pub fn children(parent: i32) -> Vec<i32> {
    let mut pids = with_command_line(|_| true);
    pids.retain(|pid| Stat::of(*pid).is_some_and(|stat| stat.parent == parent));
    pids
}

/// A process and all below it, a line each: what it does, for a message about one that hangs.
pub fn tree(pid: i32) -> Vec<String> {
    let below: Vec<String> = children(pid).into_iter().flat_map(tree).collect();
    let file = |name| {
        let text = fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
        text.replace('\0', " ").trim_end().to_owned()
    };
    let state = Stat::of(pid).map_or('-', |stat| stat.state);
    let (waits, command) = (file("wchan"), file("cmdline"));
    let mut lines = vec![format!("{pid} {state} {waits}: {command}")];
    lines.extend(below);
    lines
}

fn group_of(pid: i32) -> Option<i32> {
    Some(Stat::of(pid)?.group)
}

/// What is asked for of `proc_pid_stat(5)`.
struct Stat {
    state: char,
    parent: i32,
    group: i32,
    threads: u32,
}

impl Stat {
    /// The name before the fields may hold anything but ends in `) `.
    fn of(pid: i32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let mut fields = stat.rsplit_once(") ")?.1.split(' ');
        // Fields 3, 4, 5 and 20.
        Some(Self {
            state: fields.next()?.chars().next()?,
            parent: fields.next()?.parse().ok()?,
            group: fields.next()?.parse().ok()?,
            threads: fields.nth(14)?.parse().ok()?,
        })
    }
}
