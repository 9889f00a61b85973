//! Processes that outlive a pid: what a record keeps to know one again.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::OnceLock;

use rustix::fs::stat;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use serde::{Deserialize, Serialize};

use crust_blockfs::bounded::{self, MAX_KERNEL_VALUE};

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
    /// The pid namespace of the pid (`/proc/self/ns/pid`): in another one the pid means nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid_namespace: Option<u64>,
}

impl Process {
    /// The process that has `pid` now.
    pub fn of(pid: i32) -> io::Result<Self> {
        let stat = stat_of(pid)?;
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

    /// The calling process. It stays the same process over an `execve`.
    pub fn current() -> io::Result<Self> {
        Self::of(rustix::process::getpid().as_raw_nonzero().get())
    }

    /// Whether it still runs. A zombie doesn't: it has left its namespaces and holds no mount; but
    /// one whose other threads live does (`pthread_exit(3)` in `main`).
    ///
    /// So does one that can't be looked at: what its death would allow can't be undone.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        !matches!(self.life(), Life::Ended(_))
    }

    /// The same with its reason.
    #[must_use]
    pub fn life(&self) -> Life {
        let boot = boot_id();
        if matches!(&boot, Ok(boot) if *boot != self.boot_id) {
            return Life::Ended(End::OtherBoot);
        }
        if self.pid_namespace.is_some() && self.pid_namespace != pid_namespace() {
            let pid = self.pid;
            return Life::Unknown(format!("process {pid} is of another pid namespace"));
        }
        match (self.look(), boot) {
            (Life::Lives, Err(error)) => Life::Unknown(format!("{BOOT_ID}: {error}")),
            (life, _) => life,
        }
    }

    fn look(&self) -> Life {
        self.judge(stat_of(self.pid), || is_there(self.pid))
    }

    /// `is_there`: whether the kernel knows the pid, whatever `/proc` shows.
    fn judge(&self, stat: io::Result<Vec<u8>>, is_there: impl FnOnce() -> bool) -> Life {
        let pid = self.pid;
        match stat {
            Ok(stat) => match Stat::parse(&stat) {
                Some(stat) if stat.start_time != self.start_time => Life::Ended(End::Reused(pid)),
                Some(stat) if !stat.is_of_the_living() => Life::Ended(End::Gone(pid)),
                Some(_) => Life::Lives,
                None => Life::Unknown(format!("/proc/{pid}/stat can't be understood")),
            },
            // ESRCH: it went while it was being read.
            Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => {
                Life::Ended(End::Gone(pid))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if is_there() {
                    return Life::Unknown(format!(
                        "process {pid} is there and not in /proc; hint: is that mounted with hidepid=?"
                    ));
                }
                Life::Ended(End::Gone(pid))
            }
            Err(error) => Life::Unknown(format!("/proc/{pid}/stat: {error}")),
        }
    }
}

/// The life of a recorded process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Life {
    /// It runs.
    Lives,
    /// It doesn't any more.
    Ended(End),
    /// It can't be looked at, and why.
    Unknown(String),
}

/// How it is known that a process has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Nothing has its pid, or what is left of it.
    Gone(i32),
    /// Another process has its pid.
    Reused(i32),
    /// The node has booted since.
    OtherBoot,
}

impl fmt::Display for End {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone(pid) => write!(formatter, "process {pid} has ended"),
            Self::Reused(pid) => write!(formatter, "pid {pid} is another process's by now"),
            Self::OtherBoot => formatter.write_str("it is from before the node's last boot"),
        }
    }
}

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The calling process's pid as `/proc` has it: in a container's own hook the pid namespace is the
/// container's, but `/proc` is the host's still.
pub(crate) fn own_pid() -> u32 {
    /// With the pid that the kernel tells: a child has another.
    static KNOWN: OnceLock<(u32, u32)> = OnceLock::new();
    let own = std::process::id();
    let of_proc = || {
        let link = std::fs::read_link("/proc/self").ok();
        let pid = link.and_then(|pid| pid.to_str()?.parse().ok());
        pid.unwrap_or(own)
    };
    match KNOWN.get_or_init(|| (own, of_proc())) {
        (of, pid) if *of == own => *pid,
        _ => of_proc(),
    }
}

fn pid_namespace() -> Option<u64> {
    Some(stat("/proc/self/ns/pid").ok()?.st_ino)
}

/// A `/proc` that is mounted with `hidepid=` doesn't show processes that may do more than this one;
/// kill(2) doesn't ask it.
pub(crate) fn is_there(pid: impl TryInto<i32>) -> bool {
    let pid = pid.try_into().ok().filter(|pid| *pid > 0);
    pid.and_then(Pid::from_raw)
        .is_some_and(|pid| test_kill_process(pid) != Err(Errno::SRCH))
}

/// Whether whoever has this pid by now can still do anything. One that has ended, and that nobody has
/// waited for, is there still.
pub(crate) fn runs(pid: u32) -> bool {
    match stat_of(pid) {
        Ok(stat) => Stat::parse(&stat).is_none_or(|stat| stat.is_of_the_living()),
        Err(_) => is_there(pid),
    }
}

fn stat_of(pid: impl fmt::Display) -> io::Result<Vec<u8>> {
    bounded::read(Path::new(&format!("/proc/{pid}/stat")), MAX_KERNEL_VALUE)
}

/// Returns the id of this boot of the node.
pub(crate) fn boot_id() -> io::Result<String> {
    /// No process outlives it.
    static KNOWN: OnceLock<String> = OnceLock::new();
    if let Some(known) = KNOWN.get() {
        return Ok(known.clone());
    }
    let mut text = bounded::read_to_string(Path::new(BOOT_ID), MAX_KERNEL_VALUE)?;
    text.truncate(text.trim_end().len());
    Ok(KNOWN.get_or_init(|| text).clone())
}

/// The fields of `/proc/<pid>/stat` that matter.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    state: u8,
    threads: u32,
    start_time: u64,
}

impl Stat {
    /// The command's name is in parentheses and may hold anything, parentheses too:
    /// `proc_pid_stat(5)`.
    fn parse(stat: &[u8]) -> Option<Self> {
        let close = stat.iter().rposition(|byte| *byte == b')')?;
        let rest = std::str::from_utf8(stat.get(close + 1..)?).ok()?;
        let mut fields = rest.split_ascii_whitespace();
        // Fields 3, 20 and 22.
        Some(Self {
            state: *fields.next()?.as_bytes().first()?,
            threads: fields.nth(16)?.parse().ok()?,
            start_time: fields.nth(1)?.parse().ok()?,
        })
    }

    fn is_of_the_living(&self) -> bool {
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
    fn the_command_may_look_like_fields() {
        let stat = b"7 (a) R 1 (x)) S 1 7 7 0 -1 4194560 1 0 0 0 2 3 0 0 20 0 6 0 4242 9 9";
        let expected = Stat {
            state: b'S',
            threads: 6,
            start_time: 4242,
        };
        assert_eq!(Stat::parse(stat), Some(expected));
        assert_eq!(Stat::parse(b"7 (a) S 1 2"), None);
        assert_eq!(Stat::parse(b""), None);
    }

    #[test]
    fn a_process_lives_with_its_last_thread() {
        for (state, threads, lives) in [
            (b'S', 1, true),
            (b'D', 1, true),
            (b'Z', 2, true),
            (b'Z', 1, false),
            (b'Z', 0, false),
            (b'X', 1, false),
        ] {
            let stat = Stat {
                state,
                threads,
                start_time: 1,
            };
            assert_eq!(stat.is_of_the_living(), lives, "{stat:?}");
        }
    }

    #[test]
    fn a_process_hidden_by_proc_has_ended_only_if_its_pid_is_free() {
        let process = Process::current().unwrap();
        let judge = |errno: Errno, is_there| process.judge(Err(errno.into()), || is_there);
        let gone = Life::Ended(End::Gone(process.pid));
        assert_eq!(judge(Errno::NOENT, false), gone);
        assert_eq!(judge(Errno::SRCH, true), gone);
        for life in [judge(Errno::NOENT, true), judge(Errno::ACCESS, false)] {
            assert!(matches!(life, Life::Unknown(_)), "{life:?}");
        }
        assert!(is_there(process.pid) && is_there(1));
        assert!(![i32::MAX, 0, -1].into_iter().any(is_there));
    }

    #[test]
    fn a_process_is_alive_until_it_ends_and_a_zombie_is_not() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let process = Process::of(child.id().cast_signed()).unwrap();
        assert!(process.is_alive());
        assert!(runs(child.id()));
        let other = Process {
            start_time: process.start_time + 1,
            ..process.clone()
        };
        let pid = process.pid;
        assert_eq!(other.life(), Life::Ended(End::Reused(pid)));
        assert!(!other.is_alive(), "the pid was given to another process");
        let rebooted = Process {
            boot_id: "0".into(),
            ..process.clone()
        };
        assert!(!rebooted.is_alive(), "the record is from before a reboot");
        assert_eq!(rebooted.life(), Life::Ended(End::OtherBoot));
        let elsewhere = Process {
            pid: i32::MAX,
            pid_namespace: Some(1),
            ..process.clone()
        };
        assert!(elsewhere.is_alive(), "that can't be told from here");
        assert!(matches!(elsewhere.life(), Life::Unknown(why) if why.contains("pid namespace")));
        child.kill().unwrap();
        // Not waited for yet: it is running its last instructions, or a zombie.
        while process.is_alive() {
            std::thread::yield_now();
        }
        assert!(!runs(child.id()), "nobody has asked for its end");
        child.wait().unwrap();
        assert_eq!(process.life(), Life::Ended(End::Gone(pid)));
        assert!(!runs(u32::MAX), "no pid is as large");
    }
}
