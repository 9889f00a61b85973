//! Running a program of the node's: without a shell, in an environment of its own, bounded in time
//! and output.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use crust_blockfs::Deadline;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, flock};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

/// The directories of programs in their order, and the PATH of the programs that run.
const DIRECTORIES: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];

/// The most bytes that are kept of each stream. The rest is read and dropped.
const MAX_KEPT_BYTES: usize = 16 * 1024;

/// The most characters of it in an error.
const MAX_SUMMARY_CHARS: usize = 500;

/// Whoever was killed is gone a moment later, unless the kernel has him.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// How long another program's lock is waited for.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// A program can't be run to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    /// It isn't installed.
    #[error(
        "{program} isn't in /usr/sbin, /sbin, /usr/bin or /bin; hint: the driver's image must have it"
    )]
    Missing {
        /// Its name.
        program: &'static str,
    },
    /// It can't be started, or waited for.
    #[error("{}: {call}: {source}", program.display())]
    Call {
        /// Its path.
        program: PathBuf,
        /// The system call.
        call: &'static str,
        /// The error.
        source: io::Error,
    },
    /// It takes too long.
    #[error("{}: hasn't ended in {} s, and was killed; hint: does the disk answer?", program.display(), limit.as_secs())]
    TimedOut {
        /// Its path.
        program: PathBuf,
        /// How long it had.
        limit: Duration,
    },
    /// One of before has the image.
    #[error(
        "image {image:?}: a program that was started on it before still runs; hint: `lslocks` shows it"
    )]
    Locked { image: PathBuf },
    /// The image can't be locked.
    #[error("image {image:?}: {call}: {source}")]
    Lock {
        image: PathBuf,
        /// The system call.
        call: &'static str,
        /// The error.
        source: io::Error,
    },
}

/// The lock of an image. A program gets it as its standard input, so the image stays locked until the program has ended
/// with all that it started, also if the driver is killed meanwhile. The programs don't read it: their flags say so.
#[derive(Debug)]
pub(super) struct ImageLock(File);

impl ImageLock {
    pub(super) fn acquire(image: &Path) -> Result<Self, RunError> {
        let failed = |call| {
            move |source| RunError::Lock {
                image: image.to_owned(),
                call,
                source,
            }
        };
        let file = File::open(image).map_err(failed("open"))?;
        let lock = || match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(())),
            Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(None),
            Err(errno) => Err(failed("flock")(errno.into())),
        };
        match Deadline::after(LOCK_TIMEOUT).poll(lock)? {
            Some(()) => Ok(Self(file)),
            None => Err(RunError::Locked {
                image: image.to_owned(),
            }),
        }
    }
}

/// A program that has ended.
#[derive(Debug)]
pub(super) struct ProgramOutput {
    pub(super) status: ExitStatus,
    /// Its beginning, if it is long.
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
}

impl ProgramOutput {
    /// Returns the end of its output in one line, where programs say why they end.
    pub(super) fn summary(&self) -> String {
        let all = [&self.stdout, &self.stderr].map(|stream| String::from_utf8_lossy(stream));
        let lines = all.iter().flat_map(|stream| stream.lines());
        let lines: Vec<&str> = lines
            .map(str::trim)
            .filter(|line| !line.is_empty())
            .collect();
        let said = lines.join("; ");
        let said: String = said.chars().filter(|it| !it.is_control()).collect();
        match said.char_indices().rev().nth(MAX_SUMMARY_CHARS) {
            Some((at, _)) => format!("…{}", &said[at..]),
            None => said,
        }
    }
}

/// Runs a program until it has ended.
pub(super) fn run(
    name: &'static str,
    arguments: &[&OsStr],
    lock: Option<ImageLock>,
    limit: Duration,
) -> Result<ProgramOutput, RunError> {
    let mut paths = DIRECTORIES.iter().map(|it| Path::new(it).join(name));
    let program = paths
        .find(|path| path.is_file())
        .ok_or(RunError::Missing { program: name })?;
    run_at(&program, arguments, lock, limit)
}

fn run_at(
    program: &Path,
    arguments: &[&OsStr],
    lock: Option<ImageLock>,
    limit: Duration,
) -> Result<ProgramOutput, RunError> {
    let failed = |call| {
        move |source: io::Error| RunError::Call {
            program: program.to_owned(),
            call,
            source,
        }
    };
    let mut running = RunningProgram::start(program, arguments, lock).map_err(failed("spawn"))?;
    let deadline = Deadline::after(limit);
    if running.read_until_exit(deadline).map_err(failed("poll"))? {
        return running.finish().map_err(failed("wait"));
    }
    drop(running);
    Err(RunError::TimedOut {
        program: program.to_owned(),
        limit,
    })
}

/// A program that runs; it is killed with this.
struct RunningProgram {
    child: Option<Child>,
    pid: Pid,
    end: OwnedFd,
    streams: [OutputStream; 2],
}

/// The output of a program on one of its streams.
struct OutputStream {
    pipe: Option<File>,
    kept: Vec<u8>,
}

impl RunningProgram {
    #[expect(
        clippy::disallowed_methods,
        reason = "that one never forks is the runtime's rule: mkfs and fsck are programs"
    )]
    fn start(program: &Path, arguments: &[&OsStr], lock: Option<ImageLock>) -> io::Result<Self> {
        let mut child = Command::new(program)
            .args(arguments)
            .env_clear()
            .env("LC_ALL", "C")
            .env("PATH", DIRECTORIES.join(":"))
            .current_dir("/")
            .stdin(lock.map_or_else(Stdio::null, |ImageLock(file)| file.into()))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let pid = Pid::from_child(&child);
        let pipes = [
            child.stdout.take().map(OwnedFd::from),
            child.stderr.take().map(OwnedFd::from),
        ];
        let ready = || -> io::Result<(OwnedFd, [OutputStream; 2])> {
            for pipe in pipes.iter().flatten() {
                ioctl_fionbio(pipe, true)?;
            }
            let end = pidfd_open(pid, PidfdFlags::empty())?;
            let streams = pipes.map(|pipe| OutputStream {
                pipe: pipe.map(File::from),
                kept: Vec::new(),
            });
            Ok((end, streams))
        };
        match ready() {
            Ok((end, streams)) => Ok(Self {
                child: Some(child),
                pid,
                end,
                streams,
            }),
            Err(error) => {
                let _ = kill_process_group(pid, Signal::KILL);
                let _ = child.wait();
                Err(error)
            }
        }
    }

    /// Reads what it says until it has ended; whether it has in time.
    fn read_until_exit(&mut self, deadline: Deadline) -> io::Result<bool> {
        loop {
            let mut events = vec![PollFd::new(&self.end, PollFlags::IN)];
            let pipes = self.streams.iter().filter_map(|it| it.pipe.as_ref());
            events.extend(pipes.map(|pipe| PollFd::new(pipe, PollFlags::IN)));
            let left = deadline.remaining().map(Timespec::try_from);
            let left = left.and_then(Result::ok);
            match poll(&mut events, left.as_ref()) {
                Ok(0) => return Ok(false),
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            }
            let has_ended = !events[0].revents().is_empty();
            drop(events);
            for stream in &mut self.streams {
                stream.read()?;
            }
            if has_ended {
                return Ok(true);
            }
            if deadline.is_expired() {
                return Ok(false);
            }
        }
    }

    /// Whatever it has left in its group is ended with it.
    fn finish(mut self) -> io::Result<ProgramOutput> {
        let _ = kill_process_group(self.pid, Signal::KILL);
        let child = self.child.take().ok_or(ErrorKind::NotFound);
        let status = child?.wait()?;
        let [stdout, stderr] = &mut self.streams;
        Ok(ProgramOutput {
            status,
            stdout: std::mem::take(&mut stdout.kept),
            stderr: std::mem::take(&mut stderr.kept),
        })
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else {
            return;
        };
        let _ = kill_process_group(self.pid, Signal::KILL);
        let mut events = [PollFd::new(&self.end, PollFlags::IN)];
        let moment = Timespec::try_from(KILL_TIMEOUT).ok();
        if poll(&mut events, moment.as_ref()) == Ok(1) {
            let _ = child.wait();
            return;
        }
        tracing::warn!(
            "process {} can't be killed: see why it is in state D",
            self.pid
        );
        // It keeps the image's lock, and a thread that waits for it.
        std::thread::spawn(move || child.wait());
    }
}

impl OutputStream {
    /// Reads what is in the pipe now.
    fn read(&mut self) -> io::Result<()> {
        let mut bytes = [0; 4096];
        // More than a pipe holds; who writes faster than this reads is heard again later.
        for _ in 0..64 {
            let Some(pipe) = &mut self.pipe else {
                break;
            };
            match pipe.read(&mut bytes) {
                Ok(0) => self.pipe = None,
                Ok(length) => {
                    let room = MAX_KEPT_BYTES - self.kept.len();
                    self.kept.extend_from_slice(&bytes[..length.min(room)]);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
