//! A containerd of the test's own, with its CRI.

mod cni;
mod config;
mod image;
mod leftovers;
mod pod;
pub(crate) mod shims;

use std::fs;
use std::io::{Write as _, stderr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

pub(crate) use self::image::app_layer;
pub use self::image::{APP_IMAGE, PAUSE_IMAGE};
pub(crate) use self::image::{import as import_images, import_archive};
use self::leftovers::Leftovers;
pub use self::pod::CriPod;
use self::shims::Shims;
use crate::cleanup::Cleanup;
use crate::cri::Cri;
use crate::cri::runtime_v1::{ContainerConfig, PodSandboxConfig};
use crate::daemon::Daemon;
use crate::wait::holds_within;
use crate::{Runtime, TestDir, cgroup, mounts, process};

/// How long the daemon may take until its CRI answers.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A configuration, and no daemon yet.
#[derive(Debug)]
pub struct ContainerdConfig {
    base: PathBuf,
    handlers: Vec<config::Handler>,
}

impl ContainerdConfig {
    /// One with these handlers, by name.
    pub fn new(dir: &TestDir, handlers: &[(&str, &Runtime)]) -> Self {
        // A socket's path is short.
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

    /// With the state of containerd and of the runtimes in memory, as `/run` is on a node.
    ///
    /// # Panics
    ///
    /// When nothing can be mounted.
    #[must_use]
    pub fn in_memory(self) -> Self {
        for name in ["state", "rt"] {
            let directory = self.base.join(name);
            fs::create_dir_all(&directory).expect("a directory");
            mounts::tmpfs(&directory);
        }
        self
    }

    /// Its file.
    pub fn file(&self) -> PathBuf {
        self.base.join("config.toml")
    }

    /// Says that this runtime has been added to it as one more handler, with containerd's own
    /// `Root`: so that what it leaves is put away.
    pub fn added(&mut self, name: &str, runtime: &Runtime) {
        self.handlers.push(config::Handler {
            name: name.to_owned(),
            runtime: runtime.clone(),
            root: "/run/containerd/runc".into(),
            is_shared: true,
        });
    }
}

/// The daemon and all that it runs. Dropped, its pods are removed through the CRI, and what
/// doesn't go that way is ended by name: the daemon, its shims, its containers, their cgroups.
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
    /// Starts a containerd with these handlers, by name, and imports the images [`APP_IMAGE`] and
    /// [`PAUSE_IMAGE`].
    ///
    /// # Panics
    ///
    /// With the end of its log when it doesn't come up.
    pub fn start(dir: &TestDir, handlers: &[(&str, &Runtime)]) -> Self {
        Self::start_from(ContainerdConfig::new(dir, handlers))
    }

    /// Starts one from a configuration that is there, whoever edited it since.
    ///
    /// # Panics
    ///
    /// With the end of its log when it doesn't come up.
    pub fn start_from(configured: ContainerdConfig) -> Self {
        let ContainerdConfig { base, handlers } = configured;
        let socket = base.join("s");
        let cgroup = cgroup::parent();
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

    /// Its CRI.
    pub fn cri(&self) -> &Cri {
        &self.cri
    }

    /// A pod with this uid, to be run; its cgroup and logs are this test's own.
    pub fn pod(&self, uid: &str) -> PodSandboxConfig {
        PodSandboxConfig::new(
            "pod-1",
            uid,
            &self.cgroup,
            &self.base.join("logs").join(uid),
        )
    }

    /// A container of the app image, which sleeps, to be created.
    pub fn app(&self, name: &str) -> ContainerConfig {
        ContainerConfig::new(name, APP_IMAGE)
    }

    /// Kills the daemon and starts it anew. Shims and containers go on meanwhile.
    pub fn restart(&self) {
        self.daemon.kill();
        self.daemon.spawn(command(&self.base));
        self.wait_until_ready();
    }

    /// Kills the daemon; shims and containers go on without it.
    pub fn kill_daemon(&self) {
        self.daemon.kill();
    }

    /// Its socket.
    pub fn socket(&self) -> PathBuf {
        self.base.join("s")
    }

    /// The bundle of a started container or sandbox.
    pub fn bundle(&self, id: &str) -> PathBuf {
        self.base
            .join("state/io.containerd.runtime.v2.task/k8s.io")
            .join(id)
    }

    /// The `--root` that a handler's runtime is called with.
    pub fn runtime_root(&self, handler: &str) -> PathBuf {
        self.base.join("rt").join(handler).join("k8s.io")
    }

    /// The shims that run, of all pods: one a pod, which has the pod's id in its command line.
    pub fn shims(&self) -> Vec<i32> {
        self.shims.running()
    }

    /// The shim of a pod.
    ///
    /// # Panics
    ///
    /// When there isn't exactly one.
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

    /// The cgroup that all its pods are in.
    pub fn cgroup(&self) -> &str {
        &self.cgroup
    }

    /// The daemon's log.
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
            "containerd didn't come up ({ended:?}): {}",
            self.tail()
        );
    }

    fn import_images(&self) {
        let there = import_images(&self.socket(), &self.cri, &self.base.join("images.tar"));
        assert!(
            there,
            "the CRI doesn't see the imported images: {}",
            self.tail()
        );
    }

    fn tail(&self) -> String {
        let log = self.log();
        let told = |line: &&str| !line.contains("loading plugin") && !line.contains("with config");
        let lines: Vec<&str> = log.lines().filter(told).collect();
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
