//! The daemon, which reads its configuration when it starts.

use std::path::Path;
use std::process::Command;

use rustix::fs::stat;
use rustix::time::{ClockId, clock_gettime};

use crate::error::HandlerError;
use crate::node::Node;

/// How a daemon is brought to read its configuration anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Service<'a> {
    /// Its unit.
    pub unit: &'a str,
    /// What is asked of it.
    pub verb: Verb,
}

/// How it is brought to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// It reads its configuration when it starts.
    Restart,
    /// It reads it when it is told to, too.
    Reload,
}

impl Verb {
    /// systemctl's word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Restart => "restart",
            Self::Reload => "reload",
        }
    }

    /// The unit's property that says when it was read last, on a clock that begins with the boot. A
    /// reload doesn't start a process: the unit goes to `reloading` and back.
    const fn property(self) -> &'static str {
        match self {
            Self::Restart => "ExecMainStartTimestampMonotonic",
            Self::Reload => "StateChangeTimestampMonotonic",
        }
    }
}

/// Where systemd looks for units.
const UNITS: [&str; 5] = [
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It reads the configuration anew.
    Done,
    /// It has read it since it was changed.
    Fresh,
    /// It doesn't run, and will read it when it does.
    Stopped,
}

impl Service<'_> {
    /// Whether the node has its unit.
    pub(crate) fn is_on(self, node: &Node) -> bool {
        let files = UNITS.map(|directory| Path::new(directory).join(self.unit));
        files.iter().any(|file| node.has_file(file))
    }

    /// Has the daemon read its configuration, if one of these files is newer than its start.
    /// Where the node isn't this process's own root, this process is in it from then on.
    pub fn restart(self, node: &Node, files: &[&Path]) -> Result<Outcome, HandlerError> {
        let changed = files.iter().map(|file| changed_at(&node.find(file))).max();
        if !node.is_here() {
            rustix::process::chroot(node.root())
                .map_err(|errno| HandlerError::call("chroot", node.root(), errno))?;
            rustix::process::chdir("/").map_err(|errno| HandlerError::call("chdir", "/", errno))?;
        }
        let Some(read) = self.read_at()? else {
            return Ok(Outcome::Stopped);
        };
        if changed.is_some_and(|changed| changed < read) {
            return Ok(Outcome::Fresh);
        }
        self.systemctl(&[self.verb.word(), self.unit])?;
        Ok(Outcome::Done)
    }

    /// When it has read its configuration, in microseconds since the epoch; `None` for a daemon that
    /// doesn't run.
    fn read_at(self) -> Result<Option<i128>, HandlerError> {
        let name = self.verb.property();
        let properties = format!("--property={name},ReloadResult,ActiveState");
        let shown = self.systemctl(&["show", &properties, self.unit])?;
        let value = |name: &str| {
            let mut lines = shown.lines();
            lines.find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
        };
        if matches!(value("ActiveState"), Some("inactive" | "failed")) {
            return Ok(None);
        }
        if self.verb == Verb::Reload && value("ReloadResult").is_some_and(|it| it != "success") {
            return Ok(Some(0));
        }
        let since_boot = value(name).and_then(|text| text.parse().ok());
        let since_boot: i128 = since_boot.ok_or_else(|| self.failed("show", &shown))?;
        // The clock that systemd tells is stopped while the node sleeps: the daemon seems to have
        // started later than it has by as much, at most.
        let (now, uptime) = (now(ClockId::Realtime), now(ClockId::Monotonic));
        Ok(Some(now - uptime + since_boot))
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "an operator's command: no caller's descriptors or signals are lost by a fork"
    )]
    fn systemctl(self, arguments: &[&str]) -> Result<String, HandlerError> {
        let mut command = Command::new("systemctl");
        command.args(arguments).env_clear();
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        // A root directory that is the node's own, whatever this process's was.
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

    fn failed(self, asked: &str, reason: &str) -> HandlerError {
        HandlerError::Service {
            arguments: asked.to_owned(),
            reason: reason.to_owned(),
            unit: self.unit.to_owned(),
        }
    }
}

/// When a file got its content or its name, or went, in microseconds since the epoch.
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
