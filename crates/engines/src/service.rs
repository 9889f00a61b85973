//! Restarts or reloads the systemd unit of an engine, so that the engine reads its configuration again.

use std::path::Path;
use std::process::Command;

use rustix::fs::stat;
use rustix::time::{ClockId, clock_gettime};

use crate::error::{HandlerError, Result};
use crate::node_root::NodeRoot;

/// The unit of an engine, which reads its configuration when it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Service<'a> {
    /// The name, such as `containerd.service`.
    pub unit: &'a str,
    /// Whether the engine also reads its configuration on a reload. In that case no restart is needed.
    pub reloads: bool,
}

/// The directories where systemd looks for units.
const UNITS: [&str; 5] = [
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];

/// The outcome of a restart or reload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartOutcome {
    /// The engine was made to read its configuration again.
    Done,
    /// The engine has already read the last change.
    UpToDate,
    /// The engine isn't running, and will read its configuration when it starts.
    Stopped,
}

impl Service<'_> {
    /// Returns the systemctl command that makes the engine read its configuration.
    #[must_use]
    pub const fn verb(self) -> &'static str {
        if self.reloads { "reload" } else { "restart" }
    }

    /// Returns whether the node has the unit.
    pub(crate) fn is_installed(self, node: &NodeRoot) -> bool {
        let mut files = UNITS
            .iter()
            .map(|directory| Path::new(directory).join(self.unit));
        files.any(|file| node.has_file(&file))
    }

    /// Restarts or reloads the unit if one of these files has changed since the engine read its configuration. Waits
    /// for systemd. If the node's root isn't this process's own, changes the root directory of this process to the
    /// node's.
    pub fn restart(self, node: &NodeRoot, files: &[&Path]) -> Result<RestartOutcome> {
        let changed = files.iter().map(|file| change_time(&node.find(file))).max();
        if !node.is_own_root() {
            rustix::process::chroot(node.path())
                .map_err(|errno| HandlerError::call("chroot", node.path(), errno))?;
            rustix::process::chdir("/").map_err(|errno| HandlerError::call("chdir", "/", errno))?;
        }
        let Some(read) = self.last_read()? else {
            return Ok(RestartOutcome::Stopped);
        };
        if changed.is_some_and(|changed| changed < read) {
            return Ok(RestartOutcome::UpToDate);
        }
        self.systemctl(&[self.verb(), self.unit])?;
        Ok(RestartOutcome::Done)
    }

    /// Returns the time at which the engine read its configuration, in microseconds since the epoch; `None` if it isn't
    /// running.
    fn last_read(self) -> Result<Option<i128>> {
        // Both properties are times since the boot. A reload starts no process, but changes the unit's state to
        // `reloading` and back.
        let name = if self.reloads {
            "StateChangeTimestampMonotonic"
        } else {
            "ExecMainStartTimestampMonotonic"
        };
        let properties = format!("--property={name},ReloadResult,ActiveState");
        let shown = self.systemctl(&["show", &properties, self.unit])?;
        let value = |name: &str| {
            let mut lines = shown.lines();
            lines.find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
        };
        if matches!(value("ActiveState"), Some("inactive" | "failed")) {
            return Ok(None);
        }
        if self.reloads && value("ReloadResult").is_some_and(|result| result != "success") {
            return Ok(Some(0));
        }
        let since_boot = value(name).and_then(|text| text.parse().ok());
        let since_boot: i128 = since_boot.ok_or_else(|| self.failed("show", &shown))?;
        // systemd's clock stops while the node is suspended. So the computed time is too late by the total time that
        // the node was suspended since then.
        let (now, uptime) = (now(ClockId::Realtime), now(ClockId::Monotonic));
        Ok(Some(now - uptime + since_boot))
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "an operator's command: no caller's descriptors or signals are lost by a fork"
    )]
    fn systemctl(self, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new("systemctl");
        command.args(arguments).env_clear();
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        // This process's root directory is the node's, even if it was another one before.
        command.env("SYSTEMD_IGNORE_CHROOT", "1");
        let command_line = arguments.join(" ");
        let output = command
            .output()
            .map_err(|error| self.failed(&command_line, &error.to_string()))?;
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            return Err(self.failed(&command_line, stderr.trim()));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn failed(self, arguments: &str, reason: &str) -> HandlerError {
        HandlerError::Service(
            arguments.to_owned(),
            reason.to_owned(),
            self.unit.to_owned(),
        )
    }
}

/// Returns the time at which a file was last written, renamed or removed, in microseconds since the epoch.
fn change_time(path: &Path) -> i128 {
    let found = path.ancestors().find_map(|path| stat(path).ok());
    found.map_or(i128::MAX, |stat| {
        i128::from(stat.st_ctime) * 1_000_000 + i128::from(stat.st_ctime_nsec) / 1000
    })
}

fn now(clock: ClockId) -> i128 {
    let now = clock_gettime(clock);
    i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1000
}
