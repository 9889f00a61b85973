//! Running commands, and what they have written so far.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::describe;
use crate::cleanup::OperationGuard;
use crate::wait::holds_within;

/// A command that runs in its own process group. It is killed on drop.
pub(super) struct RunningCommand {
    child: Child,
    stdout: OutputFile,
    stderr: OutputFile,
    _operation: OperationGuard,
}

impl RunningCommand {
    /// Starts a command with empty standard input.
    pub(super) fn spawn(command: &mut Command) -> Self {
        let working = OperationGuard::begin();
        let (stdout, stderr) = (OutputFile::new(), OutputFile::new());
        let child = command
            .stdin(Stdio::null())
            .stdout(stdout.stream())
            .stderr(stderr.stream())
            .process_group(0)
            .spawn();
        Self {
            child: child.unwrap_or_else(|error| panic!("{}: {error}", describe(command))),
            stdout,
            stderr,
            _operation: working,
        }
    }

    pub(super) fn has_ended(&mut self) -> bool {
        self.status().is_some()
    }

    /// Waits until the command has ended. Kills its process group and returns `None` if it does not end within the
    /// limit.
    pub(super) fn end_within(&mut self, limit: Duration) -> Option<ExitStatus> {
        let mut status = None;
        holds_within(limit, || {
            status = self.status();
            status.is_some()
        });
        if status.is_none() {
            self.kill();
        }
        status
    }

    /// Returns the standard output and the standard error so far.
    pub(super) fn output(&self) -> (String, String) {
        (self.stdout.text(), self.stderr.text())
    }

    fn status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("waitpid")
    }

    fn kill(&mut self) {
        let group = Pid::from_raw(self.child.id().cast_signed());
        let _ = killpg(group, Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.kill();
        }
    }
}

/// Output in an anonymous file. A pipe would stay open as long as processes that the command leaves.
struct OutputFile(File);

impl OutputFile {
    fn new() -> Self {
        let file = memfd_create(c"output", MFdFlags::MFD_CLOEXEC).expect("memfd_create");
        Self(File::from(file))
    }

    fn stream(&self) -> Stdio {
        self.0.try_clone().expect("dup").into()
    }

    /// Reads the file through a new open file description, because the command writes at the offset of this one.
    fn text(&self) -> String {
        let path = format!("/proc/self/fd/{}", self.0.as_raw_fd());
        let bytes = fs::read(path).expect("read a file in memory");
        String::from_utf8_lossy(&bytes).into_owned()
    }
}
