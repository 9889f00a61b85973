//! What can be seen of a container from outside.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use super::{Container, LogLine, parse_log};
use crate::{Run, process};

impl Container {
    /// What `state` says; `None` where the runtime knows no such container. It is asked as CRI-O
    /// asks, without a log, so that asking leaves no error there.
    pub fn state(&self) -> Option<Value> {
        let mut command = self.runtime.command();
        let run = Run::of(
            command
                .arg("--root")
                .arg(&self.root)
                .args(["state", &self.id]),
        );
        run.status.success().then(|| {
            serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run}"))
        })
    }

    /// The state's `status`: `created`, `running`, `stopped`.
    pub fn status(&self) -> Option<String> {
        Some(self.state()?["status"].as_str()?.to_owned())
    }

    /// Its first process on the host, as in the pid file.
    ///
    /// # Panics
    ///
    /// When it wasn't created.
    #[track_caller]
    pub fn pid(&self) -> i32 {
        let file = self.pid_file();
        let text = fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        text.trim()
            .parse()
            .unwrap_or_else(|error| panic!("{text:?} in the pid file: {error}"))
    }

    /// Whether its first process lives.
    pub fn is_alive(&self) -> bool {
        // Just being written it is empty.
        let text = fs::read_to_string(self.pid_file()).unwrap_or_default();
        text.trim().parse().is_ok_and(process::is_alive)
    }

    /// The runtime's log, `--log`.
    pub fn log_path(&self) -> PathBuf {
        self.bundle.join("log.json")
    }

    /// All lines of the runtime's log so far.
    ///
    /// # Panics
    ///
    /// When one would spoil the log for containerd (see [`parse_log`]).
    #[track_caller]
    pub fn log_lines(&self) -> Vec<LogLine> {
        parse_log(&fs::read_to_string(self.log_path()).unwrap_or_default())
    }

    /// What containerd would report of a failed command: the last line with level `error`.
    #[track_caller]
    pub fn last_log_error(&self) -> Option<String> {
        let last = self
            .log_lines()
            .into_iter()
            .rfind(|line| line.level == "error");
        last.map(|line| line.msg.trim().to_owned())
    }

    /// What it, and the commands that created it, wrote to standard output.
    pub fn stdout(&self) -> String {
        fs::read_to_string(self.bundle.join("stdout")).unwrap_or_default()
    }

    /// What it, and the commands that created it, wrote to standard error.
    pub fn stderr(&self) -> String {
        fs::read_to_string(self.bundle.join("stderr")).unwrap_or_default()
    }
}
