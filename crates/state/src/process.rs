//! The identity of a process in a record, which stays valid when the pid is reused.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::OnceLock;

use rustix::fs::stat;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use serde::{Deserialize, Serialize};

use crust_blockfs::bounded::{self, MAX_KERNEL_VALUE};

/// A process in a record. The pid alone may have been reused by another process. With the start time and the boot id,
/// it is unique as far as the resolution of the kernel's clock ticks (10 ms) allows. Callers for whom that isn't enough
/// compare a pidfd and the sandbox's id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Process {
    /// The pid in the host's pid namespace.
    pub pid: i32,
    /// The start time in clock ticks since boot: field 22 of `/proc/<pid>/stat`.
    pub start_time: u64,
    /// The content of `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// The inode of the pid namespace that `pid` is in (`/proc/self/ns/pid`). In another pid namespace, `pid` isn't
    /// valid. Records of early versions have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid_namespace: Option<u64>,
}

impl Process {
    /// Returns the process that has `pid` now.
    pub fn from_pid(pid: i32) -> io::Result<Self> {
        let stat = read_stat(pid)?;
        let Some(stat) = Stat::parse(&stat) else {
            return Err(io::Error::other(format!("/proc/{pid}/stat can't be read")));
        };
        Ok(Self {
            pid,
            start_time: stat.start_time,
            boot_id: boot_id()?,
            pid_namespace: pid_namespace(),
        })
    }

    /// Returns the calling process. It stays the same process across an `execve`.
    pub fn current() -> io::Result<Self> {
        Self::from_pid(rustix::process::getpid().as_raw_nonzero().get())
    }

    /// Returns whether the process is alive, or may be. A zombie isn't alive: it has left its namespaces and keeps no
    /// mount. But a process whose other threads run is alive, even if its first thread has ended (`pthread_exit(3)` in
    /// `main`).
    ///
    /// A process in an unknown state counts as alive, because the cleanup after a process has ended can't be undone.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        !matches!(self.state(), ProcessState::Ended(_))
    }

    /// Returns whether the process was killed or has exited, and still waits for something, such as a file server that
    /// has to take its unwritten data.
    #[must_use]
    pub fn is_exiting(&self) -> bool {
        /// `PF_EXITING` of the kernel's `linux/sched.h`.
        const EXITING: u32 = 4;
        let stat = read_stat(self.pid).ok().and_then(|stat| Stat::parse(&stat));
        self.is_alive() && stat.is_some_and(|stat| stat.flags & EXITING != 0)
    }

    /// Returns the state of the process, with the reason if it has ended or if the state is unknown.
    #[must_use]
    pub fn state(&self) -> ProcessState {
        let boot = boot_id();
        if matches!(&boot, Ok(boot) if *boot != self.boot_id) {
            return ProcessState::Ended(EndReason::Rebooted);
        }
        if self.pid_namespace.is_some() && self.pid_namespace != pid_namespace() {
            let pid = self.pid;
            return ProcessState::Unknown(format!("process {pid} is in another pid namespace"));
        }
        let state = self.state_by_stat(read_stat(self.pid), || pid_exists(self.pid));
        match (state, boot) {
            (ProcessState::Alive, Err(error)) => {
                ProcessState::Unknown(format!("{BOOT_ID}: {error}"))
            }
            (state, _) => state,
        }
    }

    /// Returns the state by the content of `/proc/<pid>/stat`, without a check of the boot and the pid namespace.
    /// `pid_exists` returns whether the kernel knows the pid, even if `/proc` doesn't show it.
    fn state_by_stat(
        &self,
        stat: io::Result<Vec<u8>>,
        pid_exists: impl FnOnce() -> bool,
    ) -> ProcessState {
        let pid = self.pid;
        match stat {
            Ok(stat) => match Stat::parse(&stat) {
                Some(stat) if stat.start_time != self.start_time => {
                    ProcessState::Ended(EndReason::PidReused(pid))
                }
                Some(stat) if !stat.is_alive() => ProcessState::Ended(EndReason::Exited(pid)),
                Some(_) => ProcessState::Alive,
                None => ProcessState::Unknown(format!("/proc/{pid}/stat can't be parsed")),
            },
            // ESRCH: the process ended while the file was being read.
            Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => {
                ProcessState::Ended(EndReason::Exited(pid))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if pid_exists() {
                    return ProcessState::Unknown(format!(
                        "process {pid} exists, but /proc doesn't show it; hint: check whether /proc is mounted with hidepid="
                    ));
                }
                ProcessState::Ended(EndReason::Exited(pid))
            }
            Err(error) => ProcessState::Unknown(format!("/proc/{pid}/stat: {error}")),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessState {
    Alive,
    Ended(EndReason),
    /// The state can't be determined, for this reason.
    Unknown(String),
}

/// The evidence that a process has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndReason {
    /// No process has this pid, or only a zombie has it.
    Exited(i32),
    /// Another process has this pid now.
    PidReused(i32),
    /// The node has rebooted since.
    Rebooted,
}

impl fmt::Display for EndReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(pid) => write!(formatter, "process {pid} has ended"),
            Self::PidReused(pid) => write!(formatter, "pid {pid} belongs to another process now"),
            Self::Rebooted => formatter.write_str("it is from before the node's last boot"),
        }
    }
}

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Returns the pid of the calling process in `/proc`. In a createContainer hook, the pid namespace is the container's,
/// but `/proc` is still the host's.
pub(crate) fn own_pid() -> u32 {
    /// The pid by getpid(2), and the pid in `/proc`. If getpid(2) returns another pid, the caller is a forked child,
    /// and the cached pid is its parent's.
    static CACHED: OnceLock<(u32, u32)> = OnceLock::new();
    let getpid = std::process::id();
    let pid_in_proc = || {
        let link = std::fs::read_link("/proc/self").ok();
        let pid = link.and_then(|pid| pid.to_str()?.parse().ok());
        pid.unwrap_or(getpid)
    };
    match CACHED.get_or_init(|| (getpid, pid_in_proc())) {
        (cached, pid) if *cached == getpid => *pid,
        _ => pid_in_proc(),
    }
}

fn pid_namespace() -> Option<u64> {
    Some(stat("/proc/self/ns/pid").ok()?.st_ino)
}

/// Returns whether a process or a zombie has this pid. This asks kill(2), because a `/proc` that is mounted with
/// `hidepid=` doesn't show processes with more privileges than this one.
fn pid_exists(pid: impl TryInto<i32>) -> bool {
    let pid = pid.try_into().ok().filter(|pid| *pid > 0);
    pid.and_then(Pid::from_raw)
        .is_some_and(|pid| test_kill_process(pid) != Err(Errno::SRCH))
}

/// Returns whether a process with this pid is alive, or may be. A zombie isn't alive.
pub(crate) fn is_running(pid: u32) -> bool {
    match read_stat(pid) {
        Ok(stat) => Stat::parse(&stat).is_none_or(|stat| stat.is_alive()),
        Err(_) => pid_exists(pid),
    }
}

fn read_stat(pid: impl fmt::Display) -> io::Result<Vec<u8>> {
    bounded::read(Path::new(&format!("/proc/{pid}/stat")), MAX_KERNEL_VALUE)
}

/// Returns the id of the node's current boot.
pub(crate) fn boot_id() -> io::Result<String> {
    /// Cached for the life of the process, which can't outlive the boot.
    static CACHED: OnceLock<String> = OnceLock::new();
    if let Some(cached) = CACHED.get() {
        return Ok(cached.clone());
    }
    let mut text = bounded::read_to_string(Path::new(BOOT_ID), MAX_KERNEL_VALUE)?;
    text.truncate(text.trim_end().len());
    Ok(CACHED.get_or_init(|| text).clone())
}

/// The fields of `/proc/<pid>/stat` that are used.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    state: u8,
    flags: u32,
    threads: u32,
    start_time: u64,
}

impl Stat {
    /// Parses the file as `proc_pid_stat(5)` describes it. The name of the command is in parentheses, and may contain
    /// any byte, parentheses too.
    fn parse(stat: &[u8]) -> Option<Self> {
        let close = stat.iter().rposition(|byte| *byte == b')')?;
        let rest = std::str::from_utf8(stat.get(close + 1..)?).ok()?;
        let mut fields = rest.split_ascii_whitespace();
        // Fields 3, 9, 20 and 22.
        Some(Self {
            state: *fields.next()?.as_bytes().first()?,
            flags: fields.nth(5)?.parse().ok()?,
            threads: fields.nth(10)?.parse().ok()?,
            start_time: fields.nth(1)?.parse().ok()?,
        })
    }

    fn is_alive(&self) -> bool {
        match self.state {
            b'Z' => self.threads > 1,
            state => !matches!(state, b'X' | b'x'),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_name_that_looks_like_fields_is_skipped() {
        let stat = b"7 (a) R 1 (x)) S 1 7 7 0 -1 4194560 1 0 0 0 2 3 0 0 20 0 6 0 4242 9 9";
        let expected = Stat {
            state: b'S',
            flags: 4_194_560,
            threads: 6,
            start_time: 4242,
        };
        assert_eq!(Stat::parse(stat), Some(expected));
        assert_eq!(Stat::parse(b"7 (a) S 1 2"), None);
        assert_eq!(Stat::parse(b""), None);
    }

    #[test]
    fn a_process_is_alive_until_its_last_thread_ends() {
        for (state, threads, alive) in [
            (b'S', 1, true),
            (b'D', 1, true),
            (b'Z', 2, true),
            (b'Z', 1, false),
            (b'Z', 0, false),
            (b'X', 1, false),
        ] {
            let stat = Stat {
                state,
                flags: 0,
                threads,
                start_time: 1,
            };
            assert_eq!(stat.is_alive(), alive, "{stat:?}");
        }
    }

    #[test]
    fn a_process_hidden_by_proc_has_ended_only_if_its_pid_is_free() {
        let process = Process::current().unwrap();
        let state =
            |errno: Errno, pid_exists| process.state_by_stat(Err(errno.into()), || pid_exists);
        let exited = ProcessState::Ended(EndReason::Exited(process.pid));
        assert_eq!(state(Errno::NOENT, false), exited);
        assert_eq!(state(Errno::SRCH, true), exited);
        for state in [state(Errno::NOENT, true), state(Errno::ACCESS, false)] {
            assert!(matches!(state, ProcessState::Unknown(_)), "{state:?}");
        }
        assert!(pid_exists(process.pid) && pid_exists(1));
        assert!(![i32::MAX, 0, -1].into_iter().any(pid_exists));
    }

    #[test]
    fn a_process_is_alive_until_it_ends_and_a_zombie_is_not() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let process = Process::from_pid(child.id().cast_signed()).unwrap();
        assert!(process.is_alive());
        assert!(is_running(child.id()));
        let other = Process {
            start_time: process.start_time + 1,
            ..process.clone()
        };
        let pid = process.pid;
        assert_eq!(
            other.state(),
            ProcessState::Ended(EndReason::PidReused(pid))
        );
        assert!(!other.is_alive(), "the pid was given to another process");
        let rebooted = Process {
            boot_id: "0".into(),
            ..process.clone()
        };
        assert!(!rebooted.is_alive(), "the record is from before a reboot");
        assert_eq!(rebooted.state(), ProcessState::Ended(EndReason::Rebooted));
        let elsewhere = Process {
            pid: i32::MAX,
            pid_namespace: Some(1),
            ..process.clone()
        };
        assert!(elsewhere.is_alive(), "unknown counts as alive");
        assert!(
            matches!(elsewhere.state(), ProcessState::Unknown(reason) if reason.contains("pid namespace"))
        );
        child.kill().unwrap();
        // This process hasn't waited for the child yet, so the child runs its last instructions, or is a zombie.
        while process.is_alive() {
            std::thread::yield_now();
        }
        assert!(!is_running(child.id()), "a zombie isn't running");
        child.wait().unwrap();
        assert_eq!(process.state(), ProcessState::Ended(EndReason::Exited(pid)));
        assert!(!is_running(u32::MAX), "no pid is that large");
    }
}
