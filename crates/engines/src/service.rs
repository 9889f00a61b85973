//! The systemd unit of an engine, which reads its configuration when it starts or is reloaded.

use std::path::Path;
use std::process::Command;

use rustix::fs::stat;
use rustix::time::{ClockId, clock_gettime};

use crate::error::{HandlerError, Result};
use crate::node_root::NodeRoot;

/// The unit of an engine, which reads its configuration when it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Service<'a> {
    /// Its name.
    pub unit: &'a str,
    /// Whether it also reads its configuration on a reload, which is then enough.
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
    /// The engine reads its configuration again.
    Done,
    /// It has read it since the last change.
    Fresh,
    /// It doesn't run, and will read it when it starts.
    Stopped,
}

impl Service<'_> {
    /// Returns what systemctl is asked to do with it.
    #[must_use]
    pub const fn verb(self) -> &'static str {
        if self.reloads { "reload" } else { "restart" }
    }

    /// Returns whether the node has the unit.
    pub(crate) fn is_on(self, node: &NodeRoot) -> bool {
        let mut files = UNITS
            .iter()
            .map(|directory| Path::new(directory).join(self.unit));
        files.any(|file| node.has_file(&file))
    }

    /// Restarts or reloads the unit if one of these files is newer than what the engine has read. Waits for systemd. If
    /// the node's root isn't this process's own, this process changes its root directory to the node's.
    pub fn restart(self, node: &NodeRoot, files: &[&Path]) -> Result<RestartOutcome> {
        let changed = files.iter().map(|file| changed_at(&node.find(file))).max();
        if !node.is_here() {
            rustix::process::chroot(node.path())
                .map_err(|errno| HandlerError::call("chroot", node.path(), errno))?;
            rustix::process::chdir("/").map_err(|errno| HandlerError::call("chdir", "/", errno))?;
        }
        let Some(read) = self.read_at()? else {
            return Ok(RestartOutcome::Stopped);
        };
        if changed.is_some_and(|changed| changed < read) {
            return Ok(RestartOutcome::Fresh);
        }
        self.systemctl(&[self.verb(), self.unit])?;
        Ok(RestartOutcome::Done)
    }

    /// Returns when the engine has read its configuration, in microseconds since the epoch. `None`: it doesn't run.
    fn read_at(self) -> Result<Option<i128>> {
        // On a clock that starts with the boot. A reload starts no process: the unit's state becomes `reloading` and
        // then what it was.
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
        if self.reloads && value("ReloadResult").is_some_and(|it| it != "success") {
            return Ok(Some(0));
        }
        let since_boot = value(name).and_then(|text| text.parse().ok());
        let since_boot: i128 = since_boot.ok_or_else(|| self.failed("show", &shown))?;
        // systemd's clock stands still while the node sleeps: the engine seems to have started later by as much.
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
        let asked = arguments.join(" ");
        let output = command
            .output()
            .map_err(|error| self.failed(&asked, &error.to_string()))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(self.failed(&asked, said.trim()));
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

/// Returns when a file was written, renamed or removed, in microseconds since the epoch.
fn changed_at(path: &Path) -> i128 {
    let found = path.ancestors().find_map(|path| stat(path).ok());
    found.map_or(i128::MAX, |stat| {
        i128::from(stat.st_ctime) * 1_000_000 + i128::from(stat.st_ctime_nsec) / 1000
    })
}

fn now(clock: ClockId) -> i128 {
    let now = clock_gettime(clock);
    i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1000
}
