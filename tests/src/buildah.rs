//! buildah with its own storage.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::bundle::rootfs;
use crate::cleanup::Cleanup;
use crate::dir::unique;
use crate::node::utf8;
use crate::podman::PODMAN_CONFIGURATION;
use crate::{Run, Runtime, TestDir};

/// buildah with a runtime. Its working containers are removed on drop.
#[derive(Debug)]
pub struct Buildah {
    base: PathBuf,
    /// The build context: it contains the directory `rootfs`.
    context: PathBuf,
    runtime: PathBuf,
    _cleanup: Cleanup,
}

impl Buildah {
    pub fn new(dir: &TestDir, runtime: &Runtime) -> Self {
        let base = dir.subdir(unique("buildah"));
        let context = base.join("context");
        rootfs::make(&context.join("rootfs"));
        // buildah's default limits may be higher than the machine allows.
        fs::write(configuration(&base), PODMAN_CONFIGURATION).expect("buildah's configuration");
        let owned = base.clone();
        Self {
            base,
            context,
            runtime: runtime.program().to_owned(),
            _cleanup: Cleanup::register(move || remove(&owned)),
        }
    }

    pub fn run(&self, arguments: &[&str]) -> Run {
        Run::capture(command(&self.base).args(arguments))
    }

    /// Creates a working container of busybox with these flags for `buildah from`, and returns its name.
    #[track_caller]
    pub fn container(&self, flags: &[&str]) -> String {
        let from = [&["from", "--quiet"], flags, &["scratch"]].concat();
        let container = self.run(&from).success().stdout.trim().to_owned();
        let root = self.context.join("rootfs");
        let _ = self
            .run(&["copy", "--quiet", &container, utf8(&root), "/"])
            .success();
        container
    }

    /// Runs a script in a working container with these flags for `buildah run`.
    pub fn step(&self, container: &str, flags: &[&str], script: &str) -> Run {
        let step = [container, "--", "/bin/sh", "-ec", script];
        self.run(&[&["run"], &self.isolation()[..], flags, &step].concat())
    }

    /// Builds an image of busybox with these flags for `buildah build`. Each script is one build step.
    pub fn build(&self, image: &str, flags: &[&str], scripts: &[&str]) -> Run {
        let mut lines = vec!["FROM scratch".to_owned(), "COPY rootfs /".to_owned()];
        lines.extend(
            scripts
                .iter()
                .map(|script| format!("RUN {:?}", ["/bin/sh", "-ec", script])),
        );
        let file = self.base.join("Containerfile");
        fs::write(&file, lines.join("\n")).expect("a Containerfile");
        let build = ["--tag", image, "--file", utf8(&file), utf8(&self.context)];
        self.run(&[&["bud"], &self.isolation()[..], flags, &build].concat())
    }

    /// Mounts an image's root file system and returns its mount point.
    #[track_caller]
    pub fn mount(&self, image: &str) -> PathBuf {
        let from = self.run(&["from", "--quiet", image]).success();
        let mount = self.run(&["mount", from.stdout.trim()]).success();
        mount.stdout.trim().into()
    }

    fn isolation(&self) -> [&str; 6] {
        let runtime = utf8(&self.runtime);
        [
            "--isolation",
            "oci",
            "--network",
            "none",
            "--runtime",
            runtime,
        ]
    }
}

fn configuration(base: &Path) -> PathBuf {
    base.join("containers.conf")
}

fn command(base: &Path) -> Command {
    let mut buildah = Command::new("buildah");
    buildah.env("CONTAINERS_CONF", configuration(base));
    for (flag, name) in [("--root", "root"), ("--runroot", "run")] {
        buildah.arg(flag).arg(base.join(name));
    }
    buildah.args(["--storage-driver", "vfs"]);
    buildah
}

fn remove(base: &Path) -> Vec<String> {
    let removed = Run::capture(command(base).args(["rm", "--all"]));
    let failed = (!removed.status.success()).then(|| removed.to_string());
    failed.into_iter().collect()
}
