//! The attendant, a process between the daemon and a program of the runtime. It starts the program, and is the parent
//! of every process that the program leaves (`PR_SET_CHILD_SUBREAPER`). It ends when they have ended, and kills them
//! when the daemon says so or is gone. Processes that hang in the kernel hold up only their attendant.
//!
//! Its standard input is a socket to the daemon: it writes the program's end to it, once. Closed by the daemon, it
//! means that the attendant has to end.

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
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, kill_process, kill_process_group, pidfd_open,
    set_child_subreaper, waitpid,
};

/// The first argument of an attendant. It isn't among the documented flags.
pub(crate) const ATTEND: &str = "--attend";

/// The first and the longest pause between two looks at the processes that are left, which end soon after they were
/// killed.
const MOMENT: Duration = Duration::from_millis(2);
const LONG_MOMENT: Duration = Duration::from_millis(100);

/// The end of the program, as the attendant reports it.
#[derive(Debug)]
pub(super) enum Word {
    /// The program has ended.
    Ended(ExitStatus),
    /// The program couldn't be started.
    Failed(io::Error),
}

impl Word {
    pub(super) const LENGTH: usize = 5;

    fn to_bytes(&self) -> [u8; Self::LENGTH] {
        let (kind, number) = match self {
            Self::Ended(status) => (0, status.into_raw()),
            Self::Failed(error) => (1, error.raw_os_error().unwrap_or(Errno::IO.raw_os_error())),
        };
        let [a, b, c, d] = number.to_ne_bytes();
        [kind, a, b, c, d]
    }

    pub(super) fn of_bytes([kind, a, b, c, d]: [u8; Self::LENGTH]) -> Self {
        let number = i32::from_ne_bytes([a, b, c, d]);
        match kind {
            0 => Self::Ended(ExitStatus::from_raw(number)),
            _ => Self::Failed(io::Error::from_raw_os_error(number)),
        }
    }
}

/// Runs the attendant. `arguments` are the program and the program's arguments.
#[expect(
    clippy::disallowed_methods,
    reason = "that one never forks is the runtime's rule: here a parent is what is wanted"
)]
pub(crate) fn run(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let Some(program) = arguments.next() else {
        return ExitCode::FAILURE;
    };
    let attended = || -> io::Result<()> {
        set_child_subreaper(Some(getpid()))?;
        // The program gets none of it.
        let us = fcntl_dupfd_cloexec(io::stdin().as_fd(), 3)?;
        let started = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .process_group(0)
            .spawn();
        let mut child = match started {
            Ok(child) => child,
            Err(error) => return tell(us, &Word::Failed(error)),
        };
        // What it says is read to its end, which is not ours.
        let nothing = fs::File::open("/dev/null")?;
        rustix::stdio::dup2_stdout(&nothing)?;
        rustix::stdio::dup2_stderr(&nothing)?;
        attend(&mut child, us).inspect_err(|_| {
            // Nobody else would.
            let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
        })
    };
    match attended() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn attend(child: &mut Child, us: OwnedFd) -> io::Result<()> {
    let pid = Pid::from_child(child);
    let end = pidfd_open(pid, PidfdFlags::empty())?;
    let mut both = [
        PollFd::new(&us, PollFlags::IN),
        PollFd::new(&end, PollFlags::IN),
    ];
    while let Err(error) = poll(&mut both, None) {
        if error != Errno::INTR {
            return Err(error.into());
        }
    }
    let _ = kill_process_group(pid, Signal::KILL);
    // It may have left its group.
    let _ = child.kill();
    let mut us = Some(us);
    let mut pause = MOMENT;
    loop {
        // The program is waited for by its own name: it has something to tell.
        if let Some(status) = child.try_wait()?
            && let Some(us) = us.take()
        {
            // Whoever asked may be gone.
            let _ = tell(us, &Word::Ended(status));
        }
        let left = children();
        for one in left.iter().filter(|one| **one != pid || us.is_none()) {
            let _ = kill_process(*one, Signal::KILL);
            let _ = waitpid(Some(*one), WaitOptions::NOHANG);
        }
        if left.is_empty() {
            return Ok(());
        }
        sleep(pause);
        pause = (pause * 2).min(LONG_MOMENT);
    }
}

fn tell(us: OwnedFd, word: &Word) -> io::Result<()> {
    fs::File::from(us).write_all(&word.to_bytes())
}

/// Returns the children of this process, which has one thread.
fn children() -> Vec<Pid> {
    let list = bounded::read_to_string(Path::new("/proc/thread-self/children"), MAX_KERNEL_VALUE);
    let list = list.unwrap_or_default();
    let pids = list.split_ascii_whitespace();
    pids.filter_map(|pid| Pid::from_raw(pid.parse().ok()?))
        .collect()
}
