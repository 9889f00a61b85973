//! docker, with a daemon of the test's own.

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
use crate::dir::unique;
use crate::node::{PATIENCE, utf8};
use crate::wait::comes_true_by_looks;
use crate::{Delegate, Run, TestDir, cgroup, wait_until};

/// The image of all containers: busybox; its program sleeps.
pub const DOCKER_IMAGE: &str = "app:1";

/// How long the daemon may take until it answers.
const START: Duration = Duration::from_secs(60);
/// How long it may take to stop its containers and itself.
const STOP: Duration = Duration::from_secs(30);
/// Between two questions to the daemon.
const INTERVAL: Duration = Duration::from_millis(50);

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
    ///
    /// # Panics
    ///
    /// With the end of its log when it doesn't come up.
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
        docker.start_again();
        docker.import_image();
        docker
    }

    /// Starts a daemon that was stopped or killed.
    ///
    /// # Panics
    ///
    /// With the end of its log when it doesn't come up.
    #[track_caller]
    pub fn start_again(&self) {
        self.daemon.spawn(self.files.daemon());
        let mut ended = None;
        let ready = comes_true_by_looks(INTERVAL, START, || {
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
    ///
    /// # Panics
    ///
    /// When they don't end.
    #[track_caller]
    pub fn stop(&self) {
        let _ = self.daemon.stop("dockerd", STOP);
        self.wait_for_containerd();
    }

    /// Kills the daemon, and waits until its containerd has died of that.
    ///
    /// # Panics
    ///
    /// When that doesn't.
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

    /// Runs the client.
    pub fn run(&self, arguments: &[&str]) -> Run {
        Run::of(self.files.client().args(arguments))
    }

    /// Runs a container: `docker run` with the runtime, the image, and a command.
    pub fn run_image(&self, flags: &[&str], command: &[&str]) -> Run {
        let runtime = self.runtime.as_ref().map(|name| ["--runtime", name]);
        let runtime = runtime.as_ref().map_or(&[][..], |words| words);
        self.run(&[&["run"], runtime, flags, &[DOCKER_IMAGE], command].concat())
    }

    /// Starts a container that sleeps, detached.
    pub fn start_container(&self, name: &str, flags: &[&str]) -> Run {
        let detached = ["--detach", "--name", name];
        self.run_image(&[&detached, flags].concat(), &IDLE)
    }

    /// Runs a script in the foreground, in a container that is removed then.
    pub fn run_to_its_end(&self, flags: &[&str], script: &str) -> Run {
        let shell = ["/bin/sh", "-ec", script];
        self.run_image(&[&["--rm"], flags].concat(), &shell)
    }

    /// Runs a script in a container of its own, and returns what it wrote to standard output, from its log: a client
    /// that is attached may miss the words of a container that ends at once (seen with docker 26.1 on a busy machine).
    ///
    /// # Panics
    ///
    /// When it doesn't end with 0.
    #[track_caller]
    pub fn output_of(&self, flags: &[&str], script: &str) -> String {
        let name = unique("ends");
        let detached = ["--detach", "--name", &name];
        let shell = ["/bin/sh", "-ec", script];
        let _ = self
            .run_image(&[&detached, flags].concat(), &shell)
            .success();
        let ended = self.run(&["wait", &name]).success();
        let log = self.run(&["logs", &name]).success();
        let _ = self.run(&["rm", &name]).success();
        assert_eq!(ended.stdout.trim(), "0", "{flags:?} {script}: {log}");
        log.stdout
    }

    /// The trimmed output of a shell script in a container.
    ///
    /// # Panics
    ///
    /// When it doesn't end with 0.
    #[track_caller]
    pub fn sh(&self, name: &str, script: &str) -> String {
        let run = self.run(&["exec", name, "/bin/sh", "-ec", script]);
        run.success().stdout.trim().to_owned()
    }

    /// What the daemon knows of a container, by a Go template.
    ///
    /// # Panics
    ///
    /// When it knows of none.
    #[track_caller]
    pub fn inspect(&self, name: &str, format: &str) -> String {
        let run = self.run(&["inspect", "--format", format, name]);
        run.success().stdout.trim().to_owned()
    }

    /// Waits until the daemon says this of a container, by a Go template.
    ///
    /// # Panics
    ///
    /// When it doesn't come to that.
    #[track_caller]
    pub fn wait_until(&self, name: &str, format: &str, expected: &str) {
        let mut found = String::new();
        let came = comes_true_by_looks(INTERVAL, PATIENCE, || {
            found = self.inspect(name, format);
            found == expected
        });
        assert!(came, "{format} of {name} is {found}, not {expected}");
    }

    /// Removes containers, whether they run or not.
    ///
    /// # Panics
    ///
    /// When one can't be.
    #[track_caller]
    pub fn remove(&self, names: &[&str]) {
        let remove = ["rm", "--force", "--volumes"];
        let _ = self.run(&[&remove, names].concat()).success();
    }

    /// The control group of a container.
    ///
    /// # Panics
    ///
    /// When there is no such container.
    #[track_caller]
    pub fn cgroup(&self, name: &str) -> String {
        format!("{}/{}", self.cgroup, self.inspect(name, "{{.Id}}"))
    }

    /// The shims that run, one for each container.
    pub fn shims(&self) -> Vec<i32> {
        self.shims.running()
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
        wait_until("dockerd's containerd to end", PATIENCE, || {
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

impl Drop for Docker {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = writeln!(stderr(), "the end of dockerd's log:\n{}", self.tail());
        }
    }
}
