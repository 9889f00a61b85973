//! Runs a program without a shell, in a clean environment, and with limits on its time and output.

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

/// The directories that are searched for programs, in this order. They are also the programs' `PATH`.
const DIRECTORIES: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];

/// The maximum number of bytes that are kept of each output stream. The rest is read and discarded.
const MAX_KEPT_BYTES: usize = 16 * 1024;

/// The maximum number of characters of the output in an error.
const MAX_SUMMARY_CHARS: usize = 500;

/// The longest time to wait for a killed program. It ends at once, unless it is in state D.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// The longest time to wait for the lock of another program.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// The reason why a program couldn't be run to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    #[error(
        "{program} isn't in /usr/sbin, /sbin, /usr/bin or /bin; hint: install it in the driver's image"
    )]
    Missing { program: &'static str },
    /// The program couldn't be started, or waited for.
    #[error("{}: {call}: {source}", program.display())]
    Call {
        program: PathBuf,
        call: &'static str,
        source: io::Error,
    },
    #[error("{}: did not end within {} s and was killed; hint: check whether the disk responds", program.display(), timeout.as_secs())]
    TimedOut { program: PathBuf, timeout: Duration },
    /// An earlier program holds the lock of the image.
    #[error(
        "image {image:?}: a program that was started earlier still runs; hint: find it with `lslocks`"
    )]
    Locked { image: PathBuf },
    /// The image can't be locked.
    #[error("image {image:?}: {call}: {source}")]
    Lock {
        image: PathBuf,
        call: &'static str,
        source: io::Error,
    },
}

/// The lock of an image. The program gets it as its standard input, so the image stays locked until the program and its
/// children have ended, even if the driver is killed meanwhile. The programs are run with flags that make them not read
/// it.
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

/// The exit status and the output of a program.
#[derive(Debug)]
pub(super) struct ProgramOutput {
    pub(super) status: ExitStatus,
    /// The beginning of the output, at most `MAX_KEPT_BYTES`. The same applies to `stderr`.
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
}

impl ProgramOutput {
    /// Returns the end of the output on one line. Programs write the cause of a failure there.
    pub(super) fn summary(&self) -> String {
        let all = [&self.stdout, &self.stderr].map(|stream| String::from_utf8_lossy(stream));
        let lines = all.iter().flat_map(|stream| stream.lines());
        let lines: Vec<&str> = lines
            .map(str::trim)
            .filter(|line| !line.is_empty())
            .collect();
        let summary = lines.join("; ");
        let summary: String = summary.chars().filter(|it| !it.is_control()).collect();
        match summary.char_indices().rev().nth(MAX_SUMMARY_CHARS) {
            Some((at, _)) => format!("…{}", &summary[at..]),
            None => summary,
        }
    }
}

/// Finds a program by its name and runs it until it has ended or the timeout is over.
pub(super) fn run(
    name: &'static str,
    arguments: &[&OsStr],
    lock: Option<ImageLock>,
    timeout: Duration,
) -> Result<ProgramOutput, RunError> {
    let mut paths = DIRECTORIES.iter().map(|it| Path::new(it).join(name));
    let program = paths
        .find(|path| path.is_file())
        .ok_or(RunError::Missing { program: name })?;
    run_at(&program, arguments, lock, timeout)
}

fn run_at(
    program: &Path,
    arguments: &[&OsStr],
    lock: Option<ImageLock>,
    timeout: Duration,
) -> Result<ProgramOutput, RunError> {
    let failed = |call| {
        move |source: io::Error| RunError::Call {
            program: program.to_owned(),
            call,
            source,
        }
    };
    let mut running = RunningProgram::start(program, arguments, lock).map_err(failed("spawn"))?;
    let deadline = Deadline::after(timeout);
    if running.read_until_exit(deadline).map_err(failed("poll"))? {
        return running.finish().map_err(failed("wait"));
    }
    drop(running);
    Err(RunError::TimedOut {
        program: program.to_owned(),
        timeout,
    })
}

/// A running program. Dropping it kills the program.
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
        reason = "only the runtime must not fork; the driver has to run mkfs and fsck"
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

    /// Reads the output until the program has ended. Returns whether it ended before the deadline.
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

    /// Kills what is left of the program's process group, and returns the result.
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
            "process {} was killed but does not end; hint: check whether it is in state D, waiting for a disk",
            self.pid
        );
        // The process holds the lock of the image. A thread waits for its end.
        std::thread::spawn(move || child.wait());
    }
}

impl OutputStream {
    /// Reads what is in the pipe now, without blocking.
    fn read(&mut self) -> io::Result<()> {
        let mut bytes = [0; 4096];
        // This is more than the capacity of a pipe. If the program writes faster, the next call reads the rest.
        for _ in 0..64 {
            let Some(pipe) = &mut self.pipe else {
                break;
            };
            match pipe.read(&mut bytes) {
                Ok(0) => self.pipe = None,
                Ok(length) => {
                    let free = MAX_KEPT_BYTES - self.kept.len();
                    self.kept.extend_from_slice(&bytes[..length.min(free)]);
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
