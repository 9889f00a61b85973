//! docker, with a daemon of the test's own.

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
use crate::engine::INTERVAL;
use crate::node::{WAIT_TIMEOUT, utf8};
use crate::wait::holds_within_polling;
use crate::{Delegate, Engine, Run, TestDir, cgroup, wait_until};

/// The image of all containers: busybox; its program sleeps.
pub const DOCKER_IMAGE: &str = "app:1";

/// How long the daemon may take until it answers.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// How long it may take to stop its containers and itself.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// dockerd, the containerd that it starts, and the client. Dropped, its containers are removed, and
/// what doesn't go that way is ended by name.
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
    /// Starts a daemon with these runtimes, by name, all of which have this delegate, and imports
    /// the image [`DOCKER_IMAGE`]. Containers get the first runtime; where there is none, docker's
    /// default. `settings` are added to its `daemon.json`.
    #[track_caller]
    pub fn start(
        dir: &TestDir,
        delegate: Delegate,
        runtimes: &[(&str, &Path)],
        settings: Value,
    ) -> Self {
        let others = Path::new("/run/containerd/containerd.sock");
        assert!(!others.exists(), "dockerd would use {}", others.display());
        // A socket's path is short.
        let files = Files::below(dir.subdir("d"));
        let cgroup = cgroup::parent();
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
        let ready = holds_within_polling(INTERVAL, START_TIMEOUT, || {
            ended = self.daemon.ended();
            ended.is_some() || self.run(&["version"]).status.success()
        });
        assert!(
            ready && ended.is_none(),
            "dockerd didn't come up ({ended:?}): {}",
            self.tail()
        );
    }

    /// Stops the daemon in good order, and waits until it and its containerd have ended.
    #[track_caller]
    pub fn stop(&self) {
        let _ = self.daemon.stop("dockerd", STOP_TIMEOUT);
        self.wait_for_containerd();
    }

    /// Kills the daemon, and waits until its containerd has died of that.
    #[track_caller]
    pub fn kill(&self) {
        self.daemon.kill();
        self.wait_for_containerd();
    }

    /// Has the daemon read its configuration again, as `systemctl reload docker` does.
    pub fn reload(&self) {
        self.daemon.signal(Signal::SIGHUP);
    }

    /// The daemon's `daemon.json`.
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

    /// dockerd has it die with itself (`PR_SET_PDEATHSIG`), which takes a moment.
    #[track_caller]
    fn wait_for_containerd(&self) {
        wait_until("dockerd's containerd to end", WAIT_TIMEOUT, || {
            self.files.containerds().is_empty()
        });
    }

    fn tail(&self) -> String {
        let log = self.daemon.log();
        let told = |line: &&str| !line.contains("loading plugin");
        let lines: Vec<&str> = log.lines().filter(told).collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }
}

impl Engine for Docker {
    fn run(&self, arguments: &[&str]) -> Run {
        Run::of(self.files.client().args(arguments))
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = writeln!(stderr(), "the end of dockerd's log:\n{}", self.tail());
        }
    }
}
