//! podman with its own storage and state.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::bundle::{IDLE, rootfs};
use crate::cleanup::Cleanup;
use crate::containerd::app_layer;
use crate::dir::unique;
use crate::node::utf8;
use crate::{Engine, Run, Runtime, TestDir};

/// The image that [`Podman::import_image`] imports.
pub const PODMAN_IMAGE: &str = "localhost/app:1";

/// The settings of all containers. The ulimits are low enough to be set without privileges.
pub const PODMAN_CONFIGURATION: &str = r#"
[containers]
default_ulimits = ["nofile=512:512", "nproc=512:512"]
log_driver = "k8s-file"
netns = "none"

[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
infra_image = "localhost/app:1"
"#;

/// podman with a runtime. On drop its pods, containers and volumes are removed.
#[derive(Debug)]
pub struct Podman {
    settings: Settings,
    _cleanup: Cleanup,
}

/// The settings of a podman command.
#[derive(Debug, Clone)]
struct Settings {
    base: PathBuf,
    /// The path of a program, or a name in the configuration.
    runtime: PathBuf,
    /// The file that `CONTAINERS_CONF` names.
    configuration: PathBuf,
}

impl Podman {
    /// Makes a podman whose files are below the test's directory.
    pub fn new(dir: &TestDir, runtime: &Runtime) -> Self {
        let base = dir.subdir("podman");
        let configuration = base.join("containers.conf");
        fs::write(&configuration, PODMAN_CONFIGURATION).expect("podman's configuration");
        Self::with_settings(Settings {
            base,
            runtime: runtime.program().to_owned(),
            configuration,
        })
    }

    /// Makes a podman that uses a runtime named in a `containers.conf`, which must include [`PODMAN_CONFIGURATION`].
    pub fn configured(dir: &TestDir, configuration: &Path, runtime: &str) -> Self {
        Self::with_settings(Settings {
            base: dir.subdir("podman"),
            runtime: runtime.into(),
            configuration: configuration.to_owned(),
        })
    }

    fn with_settings(settings: Settings) -> Self {
        let owned = settings.clone();
        Self {
            settings,
            _cleanup: Cleanup::register(move || remove(&owned)),
        }
    }

    /// Starts a detached container that sleeps, in a new root file system that belongs to the host's user `owner`.
    pub fn start(&self, name: &str, flags: &[&str], owner: u32) -> Run {
        let root = self.rootfs(name, owner);
        let run = ["run", "--detach", "--name", name];
        self.run(&[&run, flags, &["--rootfs", utf8(&root)], &IDLE].concat())
    }

    /// Creates a volume for which podman binds a directory or device while it is in use.
    #[track_caller]
    pub fn create_bind_volume(&self, name: &str, device: &Path) {
        let device = format!("device={}", device.display());
        let options = ["--opt", "type=none", "--opt", "o=bind", "--opt", &device];
        let _ = self
            .run(&[&["volume", "create"], &options[..], &[name]].concat())
            .success();
    }

    /// Runs a script in the foreground, in a container with `--rm`.
    pub fn run_foreground(&self, flags: &[&str], script: &str) -> Run {
        let root = self.rootfs(&unique("foreground"), 0);
        let shell = ["--rootfs", utf8(&root), "/bin/sh", "-ec", script];
        self.run(&[&["run", "--rm"], flags, &shell].concat())
    }

    /// Imports the image [`PODMAN_IMAGE`], which sleeps. It is for the infra containers of pods and for `play kube`.
    pub fn import_image(&self) {
        let archive = self.settings.base.join("image.tar");
        fs::write(&archive, app_layer()).expect("an image's layer");
        let command = format!("CMD {IDLE:?}");
        // The container's process is pid 1 of its namespace, which ignores SIGTERM.
        let changes = [&command, "STOPSIGNAL SIGKILL", "ENV PATH=/bin"];
        let changes = changes.into_iter().flat_map(|change| ["--change", change]);
        let mut import = vec!["import", "--quiet"];
        import.extend(changes.chain([utf8(&archive)]));
        let _ = self.run(&[&import[..], &[PODMAN_IMAGE]].concat()).success();
        let _ = fs::remove_file(archive);
    }

    fn rootfs(&self, name: &str, owner: u32) -> PathBuf {
        let root = self.settings.base.join("rootfs").join(name);
        rootfs::make(&root);
        rootfs::chown(&root, owner, owner);
        root
    }
}

impl Engine for Podman {
    fn run(&self, arguments: &[&str]) -> Run {
        Run::capture(command(&self.settings).args(arguments))
    }
}

fn command(settings: &Settings) -> Command {
    let mut podman = Command::new("podman");
    podman.env("CONTAINERS_CONF", &settings.configuration);
    // podman 5 writes a warning about cgroup v1 to standard error on each call.
    podman.env("PODMAN_IGNORE_CGROUPSV1_WARNING", "1");
    for (flag, name) in [
        ("--root", "root"),
        ("--runroot", "run"),
        ("--tmpdir", "tmp"),
    ] {
        podman.arg(flag).arg(settings.base.join(name));
    }
    podman.args(["--storage-driver", "vfs", "--runtime"]);
    podman.arg(&settings.runtime);
    podman
}

fn remove(settings: &Settings) -> Vec<String> {
    let steps: [&[&str]; 3] = [
        &["pod", "rm", "--all", "--force", "--time", "0"],
        &["rm", "--all", "--force", "--time", "0"],
        &["volume", "rm", "--all", "--force"],
    ];
    let runs = steps.map(|step| Run::capture(command(settings).args(step)));
    let failed = runs.into_iter().filter(|run| !run.status.success());
    failed.map(|run| run.to_string()).collect()
}
