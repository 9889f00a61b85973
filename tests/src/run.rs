//! A finished command, which can tell what it was.

use std::fmt;
use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::cleanup::Working;
use crate::wait::comes_true;

/// What came of a command.
#[derive(Debug, Clone)]
#[must_use]
pub struct Run {
    /// The command line, for messages.
    pub command: String,
    /// How it ended.
    pub status: ExitStatus,
    /// What it wrote to standard output.
    pub stdout: String,
    /// What it wrote to standard error.
    pub stderr: String,
}

impl Run {
    /// Runs a command with standard input empty and its output captured.
    ///
    /// # Panics
    ///
    /// When the program can't be started.
    pub fn of(command: &mut Command) -> Self {
        let line = describe(command);
        let _working = Working::begin();
        let output = command
            .stdin(std::process::Stdio::null())
            .output()
            .unwrap_or_else(|error| panic!("{line}: {error}"));
        Self {
            command: line,
            status: output.status,
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Runs a command that has to end within a limit (longer on a slow machine), with standard
    /// input empty; `None` where it was killed, with its process group, because it didn't. What
    /// outlives it, such as a container that it creates, may keep its output.
    ///
    /// # Panics
    ///
    /// When the program can't be started.
    pub fn within(command: &mut Command, limit: Duration) -> Option<Self> {
        let line = describe(command);
        let _working = Working::begin();
        let (stdout, stderr) = (Captured::new(), Captured::new());
        let child = command
            .stdin(Stdio::null())
            .stdout(stdout.stream())
            .stderr(stderr.stream())
            .process_group(0)
            .spawn();
        let mut child = child.unwrap_or_else(|error| panic!("{line}: {error}"));
        let mut status = None;
        let ended = comes_true(limit, || {
            status = child.try_wait().expect("waitpid");
            status.is_some()
        });
        if !ended {
            let group = Pid::from_raw(child.id().cast_signed());
            let _ = killpg(group, Signal::SIGKILL);
            let _ = child.wait();
        }
        Some(Self {
            command: line,
            status: status?,
            stdout: stdout.text(),
            stderr: stderr.text(),
        })
    }

    /// The run, which must have ended with 0.
    ///
    /// # Panics
    ///
    /// Shows everything about one that didn't.
    #[track_caller]
    pub fn success(self) -> Self {
        assert!(self.status.success(), "should have worked: {self}");
        self
    }

    /// The run, which must have failed.
    ///
    /// # Panics
    ///
    /// Shows everything about one that ended with 0.
    #[track_caller]
    pub fn failure(self) -> Self {
        assert!(!self.status.success(), "should have failed: {self}");
        self
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n{}", self.command, self.status)?;
        for (name, text) in [("stdout", &self.stdout), ("stderr", &self.stderr)] {
            if !text.is_empty() {
                write!(f, "\n{name}: {}", text.trim_end())?;
            }
        }
        Ok(())
    }
}

/// Output in a file without a name: a pipe would stay open as long as what the command leaves.
struct Captured(File);

impl Captured {
    fn new() -> Self {
        let file = memfd_create(c"output", MFdFlags::MFD_CLOEXEC).expect("memfd_create");
        Self(File::from(file))
    }

    fn stream(&self) -> Stdio {
        self.0.try_clone().expect("dup").into()
    }

    fn text(mut self) -> String {
        let mut bytes = Vec::new();
        let read = self
            .0
            .rewind()
            .and_then(|()| self.0.read_to_end(&mut bytes));
        read.expect("read a file in memory");
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// A command's line, without quoting: for people.
pub(crate) fn describe(command: &Command) -> String {
    let mut line = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        line.push(' ');
        line.push_str(&argument.to_string_lossy());
    }
    line
}
