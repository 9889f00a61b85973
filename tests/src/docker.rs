//! docker with a private daemon.

mod containers;
mod files;
mod leftovers;

use std::fs;
use std::io::{Write as _, stderr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use self::files::Files;
use self::leftovers::Leftovers;
use crate::bundle::IDLE;
use crate::cleanup::Cleanup;
use crate::containerd::app_layer;
use crate::containerd::shims::Shims;
use crate::daemon::Daemon;
use crate::node::{WAIT_TIMEOUT, utf8};
use crate::wait::holds_within;
use crate::{Delegate, Engine, Run, TestDir, cgroup, wait_until};

/// The image of all containers: busybox with a program that sleeps.
pub const DOCKER_IMAGE: &str = "app:1";

/// The longest time that the daemon may take to answer.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// The longest time that the daemon may take to stop its containers and itself.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// dockerd with the containerd that it starts, and the client. On drop its containers are removed. What remains is
/// killed or removed.
#[derive(Debug)]
pub struct Docker {
    files: Files,
    cgroup: String,
    runtime: Option<String>,
    shims: Shims,
    daemon: Daemon,
    _cleanup: Cleanup,
}

impl Docker {
    /// Starts a daemon with these runtimes by name, and imports the image [`DOCKER_IMAGE`]. All runtimes use
    /// `delegate`. Containers get the first runtime, or docker's default if there is none. `settings` are added to
    /// `daemon.json`. Panics with the end of the log if the daemon does not start.
    #[track_caller]
    pub fn start(
        dir: &TestDir,
        delegate: Delegate,
        runtimes: &[(&str, &Path)],
        settings: Value,
    ) -> Self {
        let others = Path::new("/run/containerd/containerd.sock");
        assert!(!others.exists(), "dockerd would use {}", others.display());
        // The path is short because a socket's path is limited.
        let files = Files::new(dir.subdir("d"));
        let cgroup = cgroup::new_parent();
        files.configure(&cgroup, runtimes, settings);
        let (socket, state) = files.containerd();
        let shims = Shims::new(socket, state);
        let daemon = Daemon::logging_to(&files.log());
        let leftovers = Leftovers {
            files: files.clone(),
            delegate,
            cgroup: cgroup.clone(),
            shims: shims.clone(),
            daemon: daemon.clone(),
        };
        let docker = Self {
            files,
            cgroup,
            runtime: runtimes.first().map(|(name, _)| (*name).to_owned()),
            shims,
            daemon,
            _cleanup: Cleanup::register(move || leftovers.remove()),
        };
        docker.start_daemon();
        docker.import_image();
        docker
    }

    /// Starts a daemon that was stopped or killed.
    #[track_caller]
    pub fn start_daemon(&self) {
        self.daemon.spawn(self.files.daemon());
        let mut ended = None;
        let ready = holds_within(START_TIMEOUT, || {
            ended = self.daemon.ended();
            ended.is_some() || self.run(&["version"]).status.success()
        });
        assert!(
            ready && ended.is_none(),
            "dockerd did not start ({ended:?}): {}",
            self.tail()
        );
    }

    /// Stops the daemon in order, and waits until it and its containerd have ended.
    #[track_caller]
    pub fn stop(&self) {
        let _ = self.daemon.stop("dockerd", STOP_TIMEOUT);
        self.wait_for_containerd();
    }

    /// Kills the daemon, and waits until its containerd has ended as a consequence.
    #[track_caller]
    pub fn kill(&self) {
        self.daemon.kill();
        self.wait_for_containerd();
    }

    /// Makes the daemon read its configuration again, as `systemctl reload docker` does.
    pub fn reload(&self) {
        self.daemon.signal(Signal::SIGHUP);
    }

    /// Returns the path of the daemon's `daemon.json`.
    pub fn configuration(&self) -> PathBuf {
        self.files.configuration()
    }

    fn import_image(&self) {
        let archive = self.files.image();
        fs::write(&archive, app_layer()).expect("an image's layer");
        let command = format!("CMD {IDLE:?}");
        let import = ["import", "--change", &command, utf8(&archive), DOCKER_IMAGE];
        let _ = self.run(&import).success();
        let _ = fs::remove_file(archive);
    }

    /// Waits for the end of containerd, which is killed with dockerd (`PR_SET_PDEATHSIG`).
    #[track_caller]
    fn wait_for_containerd(&self) {
        wait_until("dockerd's containerd to end", WAIT_TIMEOUT, || {
            self.files.containerds().is_empty()
        });
    }

    fn tail(&self) -> String {
        let log = self.daemon.log();
        let is_of_interest = |line: &&str| !line.contains("loading plugin");
        let lines: Vec<&str> = log.lines().filter(is_of_interest).collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }
}

impl Engine for Docker {
    fn run(&self, arguments: &[&str]) -> Run {
        Run::capture(self.files.client().args(arguments))
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = writeln!(stderr(), "the end of dockerd's log:\n{}", self.tail());
        }
    }
}
