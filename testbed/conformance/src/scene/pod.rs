//! A pod: kubelet's directory of it, its volumes, its sandbox and its app containers.

use std::cell::{OnceCell, RefCell};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use runcrust_tests::cleanup::Cleanup;
use runcrust_tests::kubelet::SubPath;
use runcrust_tests::{Bundle, TestDir};
use serde_json::Value;

use super::{Cli, Container, Entry, Scene, Volume, files_below};

/// A pod. Its sandbox is created on first use, so stage the volumes before.
#[derive(Debug)]
pub(crate) struct Pod<'s> {
    // The fields are dropped in this order.
    sandbox: OnceCell<Container>,
    entries: RefCell<Vec<(PathBuf, Entry)>>,
    _link: Option<Cleanup>,
    _directory: TestDir,
    scene: &'s Scene<'s>,
    uid: String,
}

impl<'s> Pod<'s> {
    pub(super) fn new(scene: &'s Scene<'s>) -> Self {
        let uid = uid();
        let directory = TestDir::at(&scene.suite().kubelet_dir.join("pods").join(&uid));
        Self::with(scene, uid, directory, None)
    }

    /// Returns a pod whose directory is a symbolic link, as /var/lib/kubelet can be on a node.
    pub(crate) fn behind_a_link(scene: &'s Scene<'s>) -> Self {
        let uid = uid();
        let directory = TestDir::at(&scene.dir().join("srv/pods").join(&uid));
        let link = scene.suite().kubelet_dir.join("pods").join(&uid);
        let owned = link.clone();
        let cleanup = Cleanup::register(move || {
            let _ = fs::remove_file(&owned);
            Vec::new()
        });
        symlink(directory.path(), &link).expect("ln -s in kubelet's directory");
        Self::with(scene, uid, directory, Some(cleanup))
    }

    fn with(scene: &'s Scene<'s>, uid: String, directory: TestDir, link: Option<Cleanup>) -> Self {
        Self {
            sandbox: OnceCell::new(),
            entries: RefCell::default(),
            _link: link,
            _directory: directory,
            scene,
            uid,
        }
    }

    pub(crate) fn uid(&self) -> &str {
        &self.uid
    }

    /// Returns a directory below kubelet's directory of the pod. Creates it if it is missing.
    pub(crate) fn directory(&self, below: &str) -> PathBuf {
        let pods = self.scene.suite().kubelet_dir.join("pods");
        let path = pods.join(&self.uid).join(below);
        fs::create_dir_all(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        path
    }

    /// Returns the target path of a CSI volume, created as kubelet does. Nothing is staged for it.
    pub(crate) fn target(&self, volume: &str) -> PathBuf {
        self.directory(&format!("volumes/kubernetes.io~csi/{volume}/mount"))
    }

    /// Stages the pod's volume `pv-1`, and returns its target path.
    pub(crate) fn stage(&self, info: &Value) -> PathBuf {
        self.stage_as("pv-1", info)
    }

    /// Stages a volume by name. The target path is added to the metadata.
    pub(crate) fn stage_as(&self, volume: &str, info: &Value) -> PathBuf {
        let mut info = info.clone();
        if let Some(metadata) = info.get_mut("metadata").and_then(Value::as_object_mut) {
            let target = self.target(volume);
            metadata
                .entry("targetPath")
                .or_insert_with(|| target.to_str().expect("UTF-8").into());
        }
        self.stage_exactly(volume, &info)
    }

    /// Stages a volume with exactly this `mountInfo.json`.
    pub(crate) fn stage_exactly(&self, volume: &str, info: &Value) -> PathBuf {
        let target = self.target(volume);
        let mut entries = self.entries.borrow_mut();
        // Drop the old entry before the new one is written. If the old entry were dropped later, it would remove the
        // new one.
        entries.retain(|(staged, _)| *staged != target);
        let entry = Entry::write(&self.scene.suite().crust_root, &target, info);
        entries.push((target.clone(), entry));
        target
    }

    /// Calls `work` with the entry of a target path.
    #[track_caller]
    pub(crate) fn entry<T>(&self, target: &Path, work: impl FnOnce(&Entry) -> T) -> T {
        let entries = self.entries.borrow();
        let found = entries.iter().find(|(staged, _)| staged == target);
        work(&found.expect("a staged target path").1)
    }

    /// Returns the program that `runtime-cli` names for a volume in use.
    #[track_caller]
    pub(crate) fn cli(&self, target: &Path) -> Cli {
        self.entry(target, |entry| Cli::read(entry, self.scene.suite()))
    }

    /// Returns the bundle of the pod's sandbox.
    pub(crate) fn sandbox_bundle(&self) -> Bundle {
        Bundle::sandbox(self.scene.dir(), &self.uid)
    }

    #[track_caller]
    pub(crate) fn sandbox(&self) -> &Container {
        if self.sandbox.get().is_none() {
            let sandbox = self.scene.run(self.sandbox_bundle());
            let _ = self.sandbox.set(sandbox);
        }
        self.sandbox.get().expect("it was just set")
    }

    /// Returns the bundle of an app container without a volume.
    #[track_caller]
    pub(crate) fn bundle(&self) -> Bundle {
        let sandbox = self.sandbox();
        let pod = sandbox.pod().expect("a sandbox's pod");
        Bundle::app_of(self.scene.dir(), pod, sandbox.id(), sandbox.pid())
    }

    /// Returns the bundle of an app container with `source` at `/data`.
    #[track_caller]
    pub(crate) fn bundle_with(&self, source: &Path) -> Bundle {
        self.bundle_binding(source, "/data")
    }

    /// Returns the bundle of an app container with `source` at `at`. A missing source is created as a directory, as
    /// containerd does.
    #[track_caller]
    pub(crate) fn bundle_binding(&self, source: &Path, at: &str) -> Bundle {
        if !source.exists() {
            fs::create_dir_all(source).expect("mkdir of a source");
        }
        self.bundle().bind(source, at, &[])
    }

    /// Runs an app container with `source` at `/data`.
    #[track_caller]
    pub(crate) fn app(&self, source: &Path) -> Container {
        self.scene.run(self.bundle_with(source))
    }

    /// Runs an app container with the volume at `/data`, and asserts that it sees the volume.
    #[track_caller]
    pub(crate) fn app_with(&self, volume: &Volume, target: &Path) -> Container {
        let app = self.app(target);
        volume.assert_shown_at(&app, "/data");
        app
    }

    /// Asserts that an app container with this source cannot be created, because either the sandbox or the container is
    /// refused, and that nothing is left on the host. Returns the runtime's standard error.
    #[track_caller]
    pub(crate) fn refuses(&self, source: &Path) -> String {
        let refused = match self.sandbox.get() {
            Some(_) => None,
            None => self.sandbox_fails(),
        };
        let reason = refused.unwrap_or_else(|| self.scene.refuses(self.bundle_with(source)));
        let files = files_below(source);
        assert!(files.is_empty(), "files on the host: {files:?}");
        for (target, entry) in self.entries.borrow().iter() {
            let unused = !entry.runtime_cli().exists() || *target != source;
            assert!(
                unused,
                "runtime-cli exists, although no container was created"
            );
        }
        reason
    }

    /// Creates and starts the sandbox. Returns standard error if the create fails.
    fn sandbox_fails(&self) -> Option<String> {
        let bundle = self.sandbox_bundle().write();
        let sandbox = Container::new(self.scene.suite(), &bundle);
        let created = sandbox.create();
        if !created.status.success() {
            return Some(created.stderr);
        }
        super::container::assert_success(&sandbox.start());
        let _ = self.sandbox.set(sandbox);
        None
    }

    /// Ends the app containers, and then the sandbox.
    #[track_caller]
    pub(crate) fn end(&self, apps: impl IntoIterator<Item = Container>) {
        for app in apps {
            app.end();
        }
        self.sandbox().end();
    }

    /// Binds a subPath of a volume's directory on the host, as a kubelet without the KEP does.
    pub(crate) fn stock_subpath(&self, volume: &str, directory: &Path, path: &str) -> PathBuf {
        let subpath = SubPath {
            pod_uid: &self.uid,
            volume,
            directory,
            path,
            index: 0,
        };
        subpath.bind(&self.scene.suite().kubelet_dir)
    }
}

/// Returns a uid that no pod on this machine has.
fn uid() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{:08x}-c0f0-4000-8000-{number:012x}", process::id())
}
