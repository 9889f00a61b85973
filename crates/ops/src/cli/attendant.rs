//! The attendant, a process between the daemon and a `runtime-cli`. It starts the program, and becomes the parent of
//! all processes that the program leaves behind (`PR_SET_CHILD_SUBREAPER`).
//!
//! The attendant kills all of them when the program has ended, or when the daemon closes the socket or is gone. It ends
//! after the last one. Processes that hang in the kernel block only their attendant.
//!
//! The attendant's standard input is a socket to the daemon, to which it writes the program's exit once.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::Duration;

use crust_blockfs::bounded::{self, MAX_KERNEL_VALUE};
use crust_volume::HOLD_MOUNT;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, kill_process, kill_process_group, pidfd_open,
    set_child_subreaper, waitpid,
};

/// The first argument of an attendant, which isn't a documented flag.
pub(crate) const ATTEND: &str = "--attend";

/// The first and the longest pause between two checks for remaining processes. Killed processes usually end soon.
const MIN_PAUSE: Duration = Duration::from_millis(2);
const MAX_PAUSE: Duration = Duration::from_millis(100);

/// The exit of the program, as the attendant reports it.
#[derive(Debug)]
pub(super) enum ProgramExit {
    Ended(ExitStatus),
    /// The program couldn't be started.
    StartFailed(io::Error),
}

impl ProgramExit {
    pub(super) const LENGTH: usize = 5;

    fn to_bytes(&self) -> [u8; Self::LENGTH] {
        let (kind, number) = match self {
            Self::Ended(status) => (0, status.into_raw()),
            Self::StartFailed(error) => {
                (1, error.raw_os_error().unwrap_or(Errno::IO.raw_os_error()))
            }
        };
        let [a, b, c, d] = number.to_ne_bytes();
        [kind, a, b, c, d]
    }

    pub(super) fn from_bytes([kind, a, b, c, d]: [u8; Self::LENGTH]) -> Self {
        let number = i32::from_ne_bytes([a, b, c, d]);
        match kind {
            0 => Self::Ended(ExitStatus::from_raw(number)),
            _ => Self::StartFailed(io::Error::from_raw_os_error(number)),
        }
    }
}

/// Runs the attendant. `arguments` are the program and its arguments.
#[expect(
    clippy::disallowed_methods,
    reason = "only the runtime must not fork: the attendant has to be the program's parent"
)]
pub(crate) fn run(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let Some(program) = arguments.next() else {
        return ExitCode::FAILURE;
    };
    let attended = || -> io::Result<()> {
        set_child_subreaper(Some(getpid()))?;
        // The program doesn't inherit the socket.
        let daemon = fcntl_dupfd_cloexec(io::stdin().as_fd(), 3)?;
        let started = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .process_group(0)
            .spawn();
        let mut child = match started {
            Ok(child) => child,
            Err(error) => return report(daemon, &ProgramExit::StartFailed(error)),
        };
        // The daemon reads the program's output until end of file, so the attendant must not hold the pipes open.
        let null = fs::File::open("/dev/null")?;
        rustix::stdio::dup2_stdout(&null)?;
        rustix::stdio::dup2_stderr(&null)?;
        attend(&mut child, daemon).inspect_err(|_| {
            // No other process would kill the program and its children.
            let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
        })
    };
    match attended() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Waits until the program ends or the daemon closes the socket. Then kills the program and its descendants, reports
/// the exit, and waits for all of them.
fn attend(child: &mut Child, daemon: OwnedFd) -> io::Result<()> {
    let pid = Pid::from_child(child);
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    let mut events = [
        PollFd::new(&daemon, PollFlags::IN),
        PollFd::new(&pidfd, PollFlags::IN),
    ];
    while let Err(error) = poll(&mut events, None) {
        if error != Errno::INTR {
            return Err(error.into());
        }
    }
    let _ = kill_process_group(pid, Signal::KILL);
    // The program may have left its process group.
    let _ = child.kill();
    let mut daemon = Some(daemon);
    let mut pause = MIN_PAUSE;
    loop {
        // The program is waited for separately, because its exit status is reported.
        if let Some(status) = child.try_wait()?
            && let Some(daemon) = daemon.take()
        {
            // Fails if the daemon has closed the socket.
            let _ = report(daemon, &ProgramExit::Ended(status));
        }
        let remaining = children();
        for child in remaining
            .iter()
            .filter(|child| **child != pid || daemon.is_none())
        {
            let _ = kill_process(*child, Signal::KILL);
            let _ = waitpid(Some(*child), WaitOptions::NOHANG);
        }
        if remaining.is_empty() {
            return Ok(());
        }
        sleep(pause);
        pause = (pause * 2).min(MAX_PAUSE);
    }
}

fn report(daemon: OwnedFd, exit: &ProgramExit) -> io::Result<()> {
    fs::File::from(daemon).write_all(&exit.to_bytes())
}

/// Returns the children of this process, which has a single thread. Those that hold the mount of a share are left out:
/// they stay until the pod has ended.
fn children() -> Vec<Pid> {
    let list = bounded::read_to_string(Path::new("/proc/thread-self/children"), MAX_KERNEL_VALUE);
    let list = list.unwrap_or_default();
    let pids = list.split_ascii_whitespace();
    let pids = pids.filter_map(|pid| Pid::from_raw(pid.parse().ok()?));
    pids.filter(|pid| !holds_mount(*pid)).collect()
}

fn holds_mount(pid: Pid) -> bool {
    let file = format!("/proc/{}/comm", pid.as_raw_nonzero());
    let name = bounded::read_to_string(Path::new(&file), MAX_KERNEL_VALUE);
    name.is_ok_and(|name| name.trim_end() == HOLD_MOUNT)
}
