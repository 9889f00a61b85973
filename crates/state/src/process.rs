//! Processes that outlive a pid: what a record keeps to know one again.

use std::io;

use serde::{Deserialize, Serialize};

/// A process as a record names it. A pid alone may have been given to another process since; with
/// the start time and the boot id it names this one, as far as the kernel's clock ticks (10 ms)
/// can tell. Where being wrong would matter, a pidfd and the sandbox's own id decide.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Process {
    /// In the host's pid namespace.
    pub pid: i32,
    /// Field 22 of `/proc/<pid>/stat`, clock ticks since boot.
    pub start_time: u64,
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
}

impl Process {
    /// The process that has `pid` now.
    pub fn of(pid: i32) -> io::Result<Self> {
        let stat = std::fs::read(format!("/proc/{pid}/stat"))?;
        let Some((_, start_time)) = parse_stat(&stat) else {
            return Err(io::Error::other(format!("/proc/{pid}/stat can't be read")));
        };
        Ok(Self {
            pid,
            start_time,
            boot_id: boot_id()?,
        })
    }

    /// The calling process. It stays the same process over an `execve`.
    pub fn current() -> io::Result<Self> {
        Self::of(rustix::process::getpid().as_raw_nonzero().get())
    }

    /// Whether it still runs. A zombie doesn't: it has left its namespaces and holds no mount.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        let Ok(stat) = std::fs::read(format!("/proc/{}/stat", self.pid)) else {
            return false;
        };
        let Some((state, start_time)) = parse_stat(&stat) else {
            return false;
        };
        start_time == self.start_time
            && !matches!(state, b'Z' | b'X' | b'x')
            && boot_id().is_ok_and(|boot| boot == self.boot_id)
    }
}

fn boot_id() -> io::Result<String> {
    let mut text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    text.truncate(text.trim_end().len());
    Ok(text)
}

/// State and start time of a `/proc/<pid>/stat`. The command's name is in parentheses and may
/// hold anything, parentheses too: `proc_pid_stat(5)`.
fn parse_stat(stat: &[u8]) -> Option<(u8, u64)> {
    let close = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(stat.get(close + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = *fields.next()?.as_bytes().first()?;
    // Field 22, where the state was field 3.
    let start_time = fields.nth(18)?.parse().ok()?;
    Some((state, start_time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_may_look_like_fields() {
        let stat = b"7 (a) R 1 (x)) S 1 7 7 0 -1 4194560 1 0 0 0 2 3 0 0 20 0 1 0 4242 9 9";
        assert_eq!(parse_stat(stat), Some((b'S', 4242)));
        assert_eq!(parse_stat(b"7 (a) S 1 2"), None);
        assert_eq!(parse_stat(b""), None);
    }

    #[test]
    fn a_process_is_alive_until_it_ends_and_a_zombie_is_not() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let process = Process::of(child.id().cast_signed()).unwrap();
        assert!(process.is_alive());
        let other = Process {
            start_time: process.start_time + 1,
            ..process.clone()
        };
        assert!(!other.is_alive(), "the pid was given to another process");
        let rebooted = Process {
            boot_id: "0".into(),
            ..process.clone()
        };
        assert!(!rebooted.is_alive(), "the record is from before a reboot");
        child.kill().unwrap();
        // Not waited for yet: it is running its last instructions, or a zombie.
        while process.is_alive() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(!process.is_alive());
    }
}
