//! A private containerd with its CRI.

mod cni;
mod config;
mod image;
mod leftovers;
mod pod;
pub mod shims;

use std::fs;
use std::io::{Write as _, stderr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

pub use self::image::app_layer;
pub use self::image::{APP_IMAGE, PAUSE_IMAGE};
pub use self::image::{import as import_images, import_archive};
use self::leftovers::Leftovers;
pub use self::pod::CriPod;
use self::shims::Shims;
use crate::cleanup::Cleanup;
use crate::cri::Cri;
use crate::cri::runtime_v1::{ContainerConfig, PodSandboxConfig};
use crate::daemon::Daemon;
use crate::wait::holds_within;
use crate::{Runtime, TestDir, cgroup, mounts, process};

/// The longest time that the daemon's CRI may take to answer.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// The configuration of a containerd that has not been started.
#[derive(Debug)]
pub struct ContainerdConfig {
    base: PathBuf,
    handlers: Vec<config::Handler>,
}

impl ContainerdConfig {
    /// Writes a configuration with these handlers by name.
    pub fn new(dir: &TestDir, handlers: &[(&str, &Runtime)]) -> Self {
        // The path is short because a socket's path is limited.
        let base = dir.subdir("c");
        let handler = |&(name, runtime): &(&str, &Runtime)| config::Handler {
            name: name.to_owned(),
            runtime: runtime.clone(),
            root: base.join("rt").join(name),
            is_shared: false,
        };
        let handlers: Vec<config::Handler> = handlers.iter().map(handler).collect();
        config::write(&base, &base.join("s"), &handlers);
        Self { base, handlers }
    }

    /// Puts the state of containerd and of the runtimes on a tmpfs, as `/run` is on a node.
    #[must_use]
    pub fn in_memory(self) -> Self {
        for name in ["state", "rt"] {
            let directory = self.base.join(name);
            fs::create_dir_all(&directory).expect("a directory");
            mounts::tmpfs(&directory);
        }
        self
    }

    /// Returns the path of the configuration file.
    pub fn file(&self) -> PathBuf {
        self.base.join("config.toml")
    }

    /// Registers a handler that a test has added to the file. It has containerd's default `Root`, and its containers
    /// are removed with the others.
    pub fn added(&mut self, name: &str, runtime: &Runtime) {
        self.handlers.push(config::Handler {
            name: name.to_owned(),
            runtime: runtime.clone(),
            root: "/run/containerd/runc".into(),
            is_shared: true,
        });
    }
}

/// A running containerd. On drop its pods are removed through the CRI. What remains is killed or removed: the daemon,
/// its shims, its containers and their cgroups.
#[derive(Debug)]
pub struct Containerd {
    base: PathBuf,
    cgroup: String,
    shims: Shims,
    cri: Cri,
    daemon: Daemon,
    _cleanup: Cleanup,
}

impl Containerd {
    /// Starts a containerd with these handlers by name, and imports the images [`APP_IMAGE`] and [`PAUSE_IMAGE`].
    /// Panics with the end of its log if it does not start.
    pub fn start(dir: &TestDir, handlers: &[(&str, &Runtime)]) -> Self {
        Self::start_from(ContainerdConfig::new(dir, handlers))
    }

    /// Starts a containerd from a configuration that may have been edited, as [`Self::start`] does.
    pub fn start_from(configured: ContainerdConfig) -> Self {
        let ContainerdConfig { base, handlers } = configured;
        let socket = base.join("s");
        let cgroup = cgroup::new_parent();
        let daemon = Daemon::logging_to(&base.join("containerd.log"));
        let shims = Shims::new(socket.clone(), base.join("state"));
        let leftovers = Leftovers {
            socket: socket.clone(),
            shims: shims.clone(),
            cgroup: cgroup.clone(),
            handlers,
            daemon: daemon.clone(),
        };
        let containerd = Self {
            cri: Cri::new(&socket),
            cgroup,
            shims,
            daemon,
            base,
            _cleanup: Cleanup::register(move || leftovers.remove()),
        };
        containerd.daemon.spawn(command(&containerd.base));
        containerd.wait_until_ready();
        containerd.import_images();
        containerd
    }

    pub fn cri(&self) -> &Cri {
        &self.cri
    }

    /// Returns the config of a pod with this uid. Its cgroup and logs belong to this test.
    pub fn pod(&self, uid: &str) -> PodSandboxConfig {
        PodSandboxConfig::new(
            "pod-1",
            uid,
            &self.cgroup,
            &self.base.join("logs").join(uid),
        )
    }

    /// Returns the config of a container of the app image, which sleeps.
    pub fn app(&self, name: &str) -> ContainerConfig {
        ContainerConfig::new(name, APP_IMAGE)
    }

    /// Kills the daemon and starts it again. Shims and containers keep running.
    pub fn restart(&self) {
        self.daemon.kill();
        self.daemon.spawn(command(&self.base));
        self.wait_until_ready();
    }

    /// Kills the daemon. Shims and containers keep running.
    pub fn kill_daemon(&self) {
        self.daemon.kill();
    }

    pub fn socket(&self) -> PathBuf {
        self.base.join("s")
    }

    /// Returns the bundle of a started container or sandbox.
    pub fn bundle(&self, id: &str) -> PathBuf {
        self.base
            .join("state/io.containerd.runtime.v2.task/k8s.io")
            .join(id)
    }

    /// Returns the `--root` of a handler's runtime.
    pub fn runtime_root(&self, handler: &str) -> PathBuf {
        self.base.join("rt").join(handler).join("k8s.io")
    }

    /// Returns the pids of all running shims. Each pod has one, which has the pod's id in its command line.
    pub fn shims(&self) -> Vec<i32> {
        self.shims.running()
    }

    /// Returns the pid of a pod's only shim.
    #[track_caller]
    pub fn shim(&self, pod: &str) -> i32 {
        let of_the_pod =
            process::with_command_line(|line| line.split('\0').any(|word| word == pod));
        let mut shims = self.shims();
        shims.retain(|pid| of_the_pod.contains(pid));
        let [shim] = shims[..] else {
            panic!("pod {pod} has the shims {shims:?}");
        };
        shim
    }

    /// Returns the parent cgroup of all pods.
    pub fn cgroup(&self) -> &str {
        &self.cgroup
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.base.join("containerd.log")).unwrap_or_default()
    }

    fn wait_until_ready(&self) {
        let mut ended = None;
        let ready = holds_within(START_TIMEOUT, || {
            ended = self.daemon.ended();
            ended.is_some() || self.cri.is_ready()
        });
        assert!(
            ready && ended.is_none(),
            "containerd did not start ({ended:?}): {}",
            self.tail()
        );
    }

    fn import_images(&self) {
        let is_imported = import_images(&self.socket(), &self.cri, &self.base.join("images.tar"));
        assert!(
            is_imported,
            "the CRI doesn't see the imported images: {}",
            self.tail()
        );
    }

    fn tail(&self) -> String {
        let log = self.log();
        let is_of_interest =
            |line: &&str| !line.contains("loading plugin") && !line.contains("with config");
        let lines: Vec<&str> = log.lines().filter(is_of_interest).collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = writeln!(stderr(), "the end of containerd's log:\n{}", self.tail());
        }
    }
}

fn command(base: &Path) -> Command {
    let mut command = Command::new("containerd");
    command.arg("--config").arg(base.join("config.toml"));
    command
}
