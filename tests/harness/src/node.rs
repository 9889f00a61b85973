//! A node with a private runcrust.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::wait::holds_within;
use crate::{
    Bundle, Container, Delegate, Handler, LoopDevice, Run, TestDir, Version, mounts, volume,
};

/// A timeout that no wait in a test should reach, even on a loaded machine.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// A directory with an installed runcrust and everything that belongs to it.
///
/// Declare the node first, so that it is dropped after everything that was made on it.
#[derive(Debug)]
pub struct Node {
    handler: Handler,
    dir: TestDir,
}

impl Node {
    /// Makes a node with the default configuration.
    pub fn new(delegate: Delegate) -> Self {
        Self::with(delegate, "")
    }

    /// Makes a node with the default configuration, and a device with an empty ext4.
    pub fn with_ext4(delegate: Delegate) -> (Self, LoopDevice) {
        let node = Self::new(delegate);
        let device = node.ext4();
        (node, device)
    }

    /// Makes a node with the default configuration, and a device with an empty file system of the smallest size.
    pub fn with_formatted(delegate: Delegate, fstype: &'static str) -> (Self, LoopDevice) {
        let node = Self::new(delegate);
        let device = node.formatted(fstype);
        (node, device)
    }

    /// Makes a node with extra lines in the configuration.
    pub fn with(delegate: Delegate, extra: &str) -> Self {
        let dir = TestDir::new();
        Self {
            handler: Handler::new(&dir, delegate, extra),
            dir,
        }
    }

    /// Makes a node whose runcrust can be run by `crust_ops`.
    pub fn trusted(delegate: Delegate, extra: &str) -> Self {
        let dir = TestDir::new();
        Self {
            handler: Handler::trusted(&dir, delegate, extra),
            dir,
        }
    }

    /// Makes a node in a directory that only root can change, so that a daemon's configuration may name files in it.
    pub fn root_only(delegate: Delegate, extra: &str) -> Self {
        let dir = TestDir::root_only();
        Self {
            handler: Handler::trusted(&dir, delegate, extra),
            dir,
        }
    }

    /// Makes a node on the root directory's mount, on which kubelet's directory usually is. `/tmp` may be a separate
    /// mount: in Debian 13 it is a tmpfs by default.
    pub fn on_root_mount(delegate: Delegate) -> Self {
        let dir = TestDir::root_only();
        Self {
            handler: Handler::new(&dir, delegate, ""),
            dir,
        }
    }

    /// Makes a node whose programs can be replaced while it runs.
    pub fn installed(delegate: Delegate, version: Version, extra: &str) -> Self {
        let dir = TestDir::new();
        Self {
            handler: Handler::installed(&dir, delegate, version, extra),
            dir,
        }
    }

    /// Makes a node that `doctor` accepts: only root can change its programs and directories, the crust and state
    /// directories are on a tmpfs, and kubelet's directory exists.
    pub fn well_configured(delegate: Delegate, extra: &str) -> Self {
        let dir = TestDir::root_only();
        for name in ["crust", "run"] {
            let directory = dir.subdir(name);
            mounts::tmpfs(&directory);
            fs::set_permissions(&directory, Permissions::from_mode(0o700)).expect("chmod");
        }
        let _ = dir.subdir("kubelet/pods");
        Self {
            handler: Handler::installed(&dir, delegate, Version::New, extra),
            dir,
        }
    }

    /// Makes a node whose runcrust writes a log to [`Self::log_path`].
    pub fn logging(delegate: Delegate) -> Self {
        let node = Self::new(delegate);
        let line = format!("log = {:?}", node.log_path());
        node.handler.reconfigure(&line);
        node
    }

    pub fn dir(&self) -> &TestDir {
        &self.dir
    }

    pub fn handler(&self) -> &Handler {
        &self.handler
    }

    /// Makes a device with an empty ext4. The device is one MiB larger than an ext4 needs.
    pub fn ext4(&self) -> LoopDevice {
        LoopDevice::ext4(&self.dir, 32)
    }

    /// Makes a device with an empty file system of the smallest size.
    pub fn formatted(&self, fstype: &'static str) -> LoopDevice {
        LoopDevice::formatted(&self.dir, fstype, volume::min_size_mib(fstype))
    }

    /// Creates a volume's target path as an empty directory, as kubelet does before it publishes.
    pub fn target(&self, pod_uid: &str, volume: &str) -> PathBuf {
        let target = self.handler.target_path(pod_uid, volume);
        fs::create_dir_all(&target).expect("mkdir of a target path");
        target
    }

    /// Stages an ext4 device for a target path with options of `crust stage`.
    pub fn try_stage(&self, target: &Path, device: &Path, options: &[&str]) -> Run {
        self.try_stage_as("ext4", target, device, options)
    }

    /// Stages a device with this file system type.
    pub fn try_stage_as(
        &self,
        fstype: &str,
        target: &Path,
        device: &Path,
        options: &[&str],
    ) -> Run {
        let (target, device) = (utf8(target), utf8(device));
        let mut arguments = vec!["stage", target, "--device", device, "--fstype", fstype];
        arguments.extend(options);
        self.handler.crust(&arguments)
    }

    /// Creates a target path and stages a device for it, which must succeed.
    #[track_caller]
    pub fn stage(
        &self,
        pod_uid: &str,
        volume: &str,
        device: &LoopDevice,
        options: &[&str],
    ) -> PathBuf {
        let target = self.target(pod_uid, volume);
        let staged = self.try_stage_as(device.fstype(), &target, device.path(), options);
        let staged = staged.success();
        assert_eq!(staged.stdout, "{}\n", "{staged}");
        target
    }

    pub fn unstage(&self, target: &Path) -> Run {
        self.handler.crust(&["unstage", utf8(target)])
    }

    /// Runs `crust stats` for a target path.
    pub fn stats(&self, target: &Path) -> Run {
        self.handler.crust(&["stats", utf8(target)])
    }

    /// Runs `crust resize` for a target path. The sizes are bytes, and 0 is no limit.
    pub fn resize(&self, target: &Path, min: u64, max: u64) -> Run {
        let (min, max) = (min.to_string(), max.to_string());
        self.handler.crust(&["resize", utf8(target), &min, &max])
    }

    /// Returns the bundle of a sandbox. The bundle is not written yet.
    pub fn sandbox_bundle(&self, pod_uid: &str) -> Bundle {
        Bundle::sandbox(&self.dir, pod_uid)
    }

    /// Starts a sandbox.
    #[track_caller]
    pub fn sandbox(&self, pod_uid: &str) -> Container {
        let bundle = self.sandbox_bundle(pod_uid).write();
        Container::running(&self.handler.runtime(), &bundle)
    }

    /// Returns the bundle of an app container. The bundle is not written yet.
    pub fn app_bundle(&self, sandbox: &Container) -> Bundle {
        Bundle::app_in(&self.dir, sandbox)
    }

    /// Starts an app container with one bind mount.
    #[track_caller]
    pub fn app(&self, sandbox: &Container, source: &Path, destination: &str) -> Container {
        let bundle = self.app_bundle(sandbox).bind(source, destination, &[]);
        self.run(&bundle.write())
    }

    /// Creates and starts the container of a written bundle through runcrust.
    #[track_caller]
    pub fn run(&self, bundle: &Bundle) -> Container {
        Container::running(&self.handler.runtime(), bundle)
    }

    /// Makes the guard for a container of a written bundle, without creating the container.
    pub fn container(&self, bundle: &Bundle) -> Container {
        Container::new(&self.handler.runtime(), bundle)
    }

    /// Reads the log of runcrust and its hook, if the configuration names [`Self::log_path`].
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    pub fn log_path(&self) -> PathBuf {
        self.dir.join("runcrust.log")
    }

    /// Returns a target path's entry in the crust directory.
    pub fn entry(&self, target: &Path) -> PathBuf {
        self.handler.crust_root().join(digest(utf8(target)))
    }

    /// Returns the path of a volume's lock file, which exists from the volume's first use on.
    pub fn lock_file(&self, target: &Path) -> PathBuf {
        let mut name = self.entry(target).file_name().expect("a name").to_owned();
        name.push(".lock");
        self.handler.state_dir().join("locks").join(name)
    }

    /// Returns all files in the crust and state directories except locks, relative to the test's directory. The index
    /// of target paths is left out if it contains no path: it is never removed, because its list of file systems is
    /// kept.
    pub fn records(&self) -> Vec<PathBuf> {
        let mut files = Vec::new();
        for root in [self.handler.crust_root(), self.handler.state_dir()] {
            files_below(&root, &mut files);
        }
        files.retain(|file| !file.starts_with(self.handler.state_dir().join("locks")));
        files.retain(|file| !file.ends_with("targets.json") || names_a_target(file));
        let relative = files
            .iter()
            .filter_map(|file| file.strip_prefix(self.dir.path()).ok());
        let mut files: Vec<PathBuf> = relative.map(Path::to_path_buf).collect();
        files.sort();
        files
    }

    /// Returns the lock files of volumes, each of which is removed with its volume.
    pub fn volume_locks(&self) -> Vec<PathBuf> {
        let mut locks = Vec::new();
        files_below(&self.handler.state_dir().join("locks"), &mut locks);
        let is_of_a_volume = |path: &PathBuf| {
            let name = path.file_stem().and_then(|name| name.to_str());
            name.is_some_and(|name| name.len() == 64)
        };
        locks.retain(is_of_a_volume);
        locks
    }

    /// Checks that no record, no staged volume and no volume's lock exists.
    #[track_caller]
    pub fn assert_nothing_left(&self) {
        let left = (self.records(), self.volume_locks());
        assert_eq!(left, (Vec::new(), Vec::new()));
    }

    /// Waits until no record of a user or a sandbox is left. Hooks remove these records when containers end. Call it
    /// before an unstage, which removes what hooks have missed.
    #[track_caller]
    pub fn assert_released(&self) {
        let mut left = Vec::new();
        let released = holds_within(WAIT_TIMEOUT, || {
            left = self.records();
            left.retain(|record| is_record_of_use(record));
            left.is_empty()
        });
        assert!(released, "no hook has released {left:?}");
    }

    /// Checks that the hooks have released everything, unstages the volumes, and checks that nothing is left.
    #[track_caller]
    pub fn unstage_all(&self, volumes: &[&Path]) {
        self.assert_released();
        for volume in volumes {
            let _ = self.unstage(volume).success();
        }
        self.assert_nothing_left();
    }
}

fn names_a_target(index: &Path) -> bool {
    !fs::read_to_string(index).is_ok_and(|text| text.contains("\"elsewhere\":[]"))
}

/// Returns whether a record exists only as long as a container.
fn is_record_of_use(record: &Path) -> bool {
    let name = record.file_name().and_then(|name| name.to_str());
    matches!(name, Some("runtime-cli" | "runcrust.json")) || record.starts_with("run/sandboxes")
}

fn files_below(directory: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    for entry in entries {
        let entry = entry.expect("an entry of the test's directory");
        if entry.file_type().expect("a file type").is_dir() {
            files_below(&entry.path(), files);
        } else {
            files.push(entry.path());
        }
    }
}

/// Returns the SHA-256 of a text in hexadecimal, as it is used in names of directories.
pub fn digest(text: &str) -> String {
    let digest = <sha2::Sha256 as sha2::Digest>::digest(text.as_bytes());
    let digits = digest.iter().map(|byte| format!("{byte:02x}"));
    digits.collect::<Vec<_>>().concat()
}

/// Converts a path to an argument. Paths in tests are UTF-8.
pub fn utf8(path: &Path) -> &str {
    path.to_str().expect("paths in tests are UTF-8")
}
