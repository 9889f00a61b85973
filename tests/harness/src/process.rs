//! Queries and signals for processes by their pids.

use std::fs;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::node::WAIT_TIMEOUT;
use crate::wait_until;

/// Returns whether a process exists and is not a zombie. A process whose first thread has ended while others run still
/// counts: the threads of a killed Go program may end one after the other, and until the last one the process keeps its
/// files and mounts.
pub fn is_alive(pid: i32) -> bool {
    let runs = |stat: &Stat| match stat.state {
        'Z' => stat.threads > 1,
        state => state != 'X',
    };
    Stat::read(pid).as_ref().is_some_and(runs)
}

/// Returns the value of a line in `/proc/<pid>/status`; empty if there is no such process or line.
pub fn status(pid: impl std::fmt::Display, name: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    let found = lines.find(|(found, _)| *found == name);
    found.map_or_else(String::new, |(_, value)| value.trim().to_owned())
}

/// Returns the number of open descriptors of a running process.
pub fn descriptors(pid: i32) -> usize {
    let open = fs::read_dir(format!("/proc/{pid}/fd"));
    open.expect("the process is running").count()
}

/// Sends SIGKILL. It is no error if the process is gone.
pub fn kill_now(pid: i32) {
    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
}

/// Kills a process and waits until it has ended.
pub fn kill_and_wait(pid: i32) {
    kill_now(pid);
    wait_until("a killed process to end", WAIT_TIMEOUT, || !is_alive(pid));
}

/// Returns the processes whose command line `wanted` accepts. Its arguments are separated by NUL.
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

/// Returns the running processes of a process group.
pub fn in_group(group: i32) -> Vec<i32> {
    let mut pids = with_command_line(|_| true);
    pids.retain(|pid| is_alive(*pid) && group_of(*pid) == Some(group));
    pids
}

/// Returns the children of a process, including zombies.
pub fn children(parent: i32) -> Vec<i32> {
    let mut pids = with_command_line(|_| true);
    pids.retain(|pid| Stat::read(*pid).is_some_and(|stat| stat.parent == parent));
    pids
}

/// Describes a process and its descendants, one on each line, with their states and wait channels.
pub fn tree(pid: i32) -> Vec<String> {
    let below: Vec<String> = children(pid).into_iter().flat_map(tree).collect();
    let file = |name| {
        let text = fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
        text.replace('\0', " ").trim_end().to_owned()
    };
    let state = Stat::read(pid).map_or('-', |stat| stat.state);
    let (waits, command) = (file("wchan"), file("cmdline"));
    let mut lines = vec![format!("{pid} {state} {waits}: {command}")];
    lines.extend(below);
    lines
}

fn group_of(pid: i32) -> Option<i32> {
    Some(Stat::read(pid)?.group)
}

/// Fields of `/proc/<pid>/stat` (`proc_pid_stat(5)`).
struct Stat {
    state: char,
    parent: i32,
    group: i32,
    threads: u32,
}

impl Stat {
    /// Parses the fields after the name. The name may contain any characters and ends with `) `.
    fn read(pid: i32) -> Option<Self> {
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
