//! Finished commands, with what a message about them needs.

mod running_command;

use std::fmt;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use self::running_command::RunningCommand;
use crate::cleanup::OperationGuard;
use crate::node::WAIT_TIMEOUT;
use crate::wait::holds_within;

/// The result of a command.
#[derive(Debug, Clone)]
#[must_use]
pub struct Run {
    /// The command line, for messages.
    pub command: String,
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Run {
    /// Runs a command with empty standard input and captures its output.
    pub fn capture(command: &mut Command) -> Self {
        let line = describe(command);
        let _operation = OperationGuard::begin();
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

    /// Runs a command with empty standard input, and kills its process group if it does not end within the limit (which
    /// is longer on a slow machine). Returns `None` in that case. A process that outlives the command, such as a
    /// container that it creates, may keep its output open.
    pub fn capture_within(command: &mut Command, limit: Duration) -> Option<Self> {
        let mut running = RunningCommand::spawn(command);
        let status = running.end_within(limit);
        let (stdout, stderr) = running.output();
        Some(Self {
            command: describe(command),
            status: status?,
            stdout,
            stderr,
        })
    }

    /// Runs a command with empty standard input. Calls `end`, which must end the command, when it has written `stdout`,
    /// and `stderr` after any warnings, or has not done so for long. `end` is not called if the command has ended before.
    #[track_caller]
    pub fn ended_after(
        command: &mut Command,
        [stdout, stderr]: [&str; 2],
        end: impl FnOnce(),
    ) -> Self {
        let mut running = RunningCommand::spawn(command);
        holds_within(WAIT_TIMEOUT, || {
            let (out, err) = running.output();
            running.has_ended() || (out == stdout && err.ends_with(stderr))
        });
        if !running.has_ended() {
            end();
        }
        let status = running.end_within(WAIT_TIMEOUT);
        let (stdout, stderr) = running.output();
        let command = describe(command);
        let Some(status) = status else {
            panic!("{command} does not end; it wrote {stdout:?} and {stderr:?}");
        };
        Self {
            command,
            status,
            stdout,
            stderr,
        }
    }

    /// Checks that the command succeeded.
    #[track_caller]
    pub fn success(self) -> Self {
        assert!(self.status.success(), "should have worked: {self}");
        self
    }

    /// Checks that standard error contains each of these words.
    #[track_caller]
    pub fn assert_contains(&self, words: &[&str]) {
        for word in words {
            assert!(self.stderr.contains(word), "{word:?} is missing in: {self}");
        }
    }

    /// Checks that the command failed.
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

/// Formats a command line for messages, without quoting.
pub fn describe(command: &Command) -> String {
    let mut line = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        line.push(' ');
        line.push_str(&argument.to_string_lossy());
    }
    line
}
