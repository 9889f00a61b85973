//! podman, with storage and state of its own.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::bundle::rootfs;
use crate::cleanup::Cleanup;
use crate::{Run, Runtime, TestDir};

/// podman with a runtime. Dropped, its containers and volumes are removed.
#[derive(Debug)]
pub struct Podman {
    called: Called,
    _cleanup: Cleanup,
}

/// How podman is called.
#[derive(Debug, Clone)]
struct Called {
    base: PathBuf,
    /// A program, or a name that the configuration has.
    runtime: PathBuf,
    /// `CONTAINERS_CONF`.
    configuration: Option<PathBuf>,
}

impl Podman {
    /// podman with its files below the test's directory.
    pub fn new(dir: &TestDir, runtime: &Runtime) -> Self {
        Self::called(Called {
            base: dir.subdir("podman"),
            runtime: runtime.program().to_owned(),
            configuration: None,
        })
    }

    /// podman with a runtime that a `containers.conf` names.
    pub fn configured(dir: &TestDir, configuration: &Path, runtime: &str) -> Self {
        Self::called(Called {
            base: dir.subdir("podman"),
            runtime: runtime.into(),
            configuration: Some(configuration.to_owned()),
        })
    }

    fn called(called: Called) -> Self {
        let owned = called.clone();
        Self {
            called,
            _cleanup: Cleanup::register(move || remove(&owned)),
        }
    }

    /// Runs podman.
    pub fn run(&self, arguments: &[&str]) -> Run {
        Run::of(command(&self.called).args(arguments))
    }

    /// Starts a container that sleeps, detached, in a rootfs of its own whose root is the host's
    /// user `owner`. Limits are some that a container without privileges may set.
    pub fn start(&self, name: &str, flags: &[&str], owner: u32) -> Run {
        let root = self.rootfs(name, owner);
        let mut podman = command(&self.called);
        podman.args(["run", "--detach", "--name", name, "--network", "none"]);
        podman.args(["--log-driver", "k8s-file"]);
        podman.args(["--ulimit", "nofile=512:512", "--ulimit", "nproc=512:512"]);
        podman.args(flags).arg("--rootfs").arg(root);
        Run::of(podman.args(crate::bundle::IDLE))
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

    /// What podman knows of a container, by a Go template.
    ///
    /// # Panics
    ///
    /// When it knows of none.
    #[track_caller]
    pub fn inspect(&self, name: &str, format: &str) -> String {
        let run = self.run(&["inspect", "--format", format, name]);
        run.success().stdout.trim().to_owned()
    }

    fn rootfs(&self, name: &str, owner: u32) -> PathBuf {
        let root = self.called.base.join("rootfs").join(name);
        rootfs::make(&root);
        rootfs::give(&root, owner, owner);
        root
    }
}

fn command(called: &Called) -> Command {
    let mut podman = Command::new("podman");
    if let Some(file) = &called.configuration {
        podman.env("CONTAINERS_CONF", file);
    }
    for (flag, name) in [
        ("--root", "root"),
        ("--runroot", "run"),
        ("--tmpdir", "tmp"),
    ] {
        podman.arg(flag).arg(called.base.join(name));
    }
    podman.args(["--storage-driver", "vfs", "--cgroup-manager", "cgroupfs"]);
    podman.args(["--events-backend", "none", "--runtime"]);
    podman.arg(&called.runtime);
    podman
}

fn remove(called: &Called) -> Vec<String> {
    let steps: [&[&str]; 2] = [
        &["rm", "--all", "--force", "--time", "0"],
        &["volume", "prune", "--force"],
    ];
    let runs = steps.map(|step| Run::of(command(called).args(step)));
    let failed = runs.into_iter().filter(|run| !run.status.success());
    failed.map(|run| run.to_string()).collect()
}
