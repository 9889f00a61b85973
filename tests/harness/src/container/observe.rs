//! Reads what can be observed of a container from outside.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use super::{Container, LogLine, parse_log};
use crate::{Run, process};

impl Container {
    /// Returns the output of `state`; `None` if the runtime does not know the container. It is called without a log, as
    /// CRI-O does, so that it leaves no error there.
    pub fn state(&self) -> Option<Value> {
        let mut command = self.runtime.command();
        let run = Run::capture(
            command
                .arg("--root")
                .arg(&self.root)
                .args(["state", &self.id]),
        );
        run.status.success().then(|| {
            serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run}"))
        })
    }

    /// Returns the state's `status`: `created`, `running` or `stopped`.
    pub fn status(&self) -> Option<String> {
        Some(self.state()?["status"].as_str()?.to_owned())
    }

    /// Returns the pid of the first process on the host, from the pid file.
    #[track_caller]
    pub fn pid(&self) -> i32 {
        let file = self.pid_file();
        let text = fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        text.trim()
            .parse()
            .unwrap_or_else(|error| panic!("{text:?} in the pid file: {error}"))
    }

    /// Returns whether the first process is alive.
    pub fn is_alive(&self) -> bool {
        // The file is empty while it is being written.
        let text = fs::read_to_string(self.pid_file()).unwrap_or_default();
        text.trim().parse().is_ok_and(process::is_alive)
    }

    /// Returns the path of the runtime's log (`--log`).
    pub fn log_path(&self) -> PathBuf {
        self.bundle.join("log.json")
    }

    /// Parses the runtime's log, which must be valid for containerd (see [`parse_log`]).
    #[track_caller]
    pub fn log_lines(&self) -> Vec<LogLine> {
        parse_log(&fs::read_to_string(self.log_path()).unwrap_or_default())
    }

    /// Returns the error that containerd would report for a failed command: the last entry with level `error`.
    #[track_caller]
    pub fn last_log_error(&self) -> Option<String> {
        let last = self
            .log_lines()
            .into_iter()
            .rfind(|line| line.level == "error");
        last.map(|line| line.msg.trim().to_owned())
    }

    /// Returns the standard output of the container and of the commands that created it.
    pub fn stdout(&self) -> String {
        fs::read_to_string(self.bundle.join("stdout")).unwrap_or_default()
    }

    /// Returns the standard error of the container and of the commands that created it.
    pub fn stderr(&self) -> String {
        fs::read_to_string(self.bundle.join("stderr")).unwrap_or_default()
    }
}
