//! A finished command, which can tell what it was.

use std::fmt;
use std::process::{Command, ExitStatus};

use crate::cleanup::Working;

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

/// A command's line, without quoting: for people.
pub(crate) fn describe(command: &Command) -> String {
    let mut line = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        line.push(' ');
        line.push_str(&argument.to_string_lossy());
    }
    line
}
