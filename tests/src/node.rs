//! A node with runcrust on it, for one test.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::wait::holds_within;
use crate::{
    Bundle, Container, Delegate, Handler, LoopDevice, Run, TestDir, Version, mounts, volume,
};

/// Longer than any wait in a test should take on a loaded machine.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// A directory, and runcrust installed with everything of its own below it.
///
/// Declare it first: what is made on it goes before it.
#[derive(Debug)]
pub struct Node {
    handler: Handler,
    dir: TestDir,
}

impl Node {
    /// With the default configuration.
    pub fn new(delegate: Delegate) -> Self {
        Self::with(delegate, "")
    }

    /// Makes a node with the default configuration, and a device with an empty ext4.
    pub fn with_ext4(delegate: Delegate) -> (Self, LoopDevice) {
        let node = Self::new(delegate);
        let device = node.ext4();
        (node, device)
    }

    /// Makes a node with the default configuration, and a device with an empty file system, as small as that can be.
    pub fn with_formatted(delegate: Delegate, fstype: &'static str) -> (Self, LoopDevice) {
        let node = Self::new(delegate);
        let device = node.formatted(fstype);
        (node, device)
    }

    /// With lines added to the configuration.
    pub fn with(delegate: Delegate, extra: &str) -> Self {
        let dir = TestDir::new();
        Self {
            handler: Handler::new(&dir, delegate, extra),
            dir,
        }
    }

    /// With a runcrust that `crust_ops` runs.
    pub fn trusted(delegate: Delegate, extra: &str) -> Self {
        let dir = TestDir::new();
        Self {
            handler: Handler::trusted(&dir, delegate, extra),
            dir,
        }
    }

    /// With a runcrust that a daemon's configuration may name, which may be in the directory.
    pub fn root_only(delegate: Delegate, extra: &str) -> Self {
        let dir = TestDir::root_only();
        Self {
            handler: Handler::trusted(&dir, delegate, extra),
            dir,
        }
    }

    /// With its directory on the root directory's mount, as a kubelet's usually is. `/tmp` may be a mount of its own:
    /// a tmpfs by default in Debian 13.
    pub fn on_root_mount(delegate: Delegate) -> Self {
        let dir = TestDir::root_only();
        Self {
            handler: Handler::new(&dir, delegate, ""),
            dir,
        }
    }

    /// With programs that are replaced while it runs.
    pub fn installed(delegate: Delegate, version: Version, extra: &str) -> Self {
        let dir = TestDir::new();
        Self {
            handler: Handler::installed(&dir, delegate, version, extra),
            dir,
        }
    }

    /// With everything as it should be: only root can change a program or a directory, what isn't to
    /// outlive a boot is in memory, and kubelet's directory is there.
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

    /// With its own log.
    pub fn logging(delegate: Delegate) -> Self {
        let node = Self::new(delegate);
        let line = format!("log = {:?}", node.log_path());
        node.handler.reconfigure(&line);
        node
    }

    /// The directory.
    pub fn dir(&self) -> &TestDir {
        &self.dir
    }

    /// The installed runcrust.
    pub fn handler(&self) -> &Handler {
        &self.handler
    }

    /// A device with an empty ext4, and one MiB more than that file system needs.
    pub fn ext4(&self) -> LoopDevice {
        LoopDevice::ext4(&self.dir, 32)
    }

    /// A device with an empty file system, as small as that can be.
    pub fn formatted(&self, fstype: &'static str) -> LoopDevice {
        LoopDevice::formatted(&self.dir, fstype, volume::smallest(fstype))
    }

    /// A volume's target path, as an empty directory; kubelet makes it before it publishes.
    pub fn target(&self, pod_uid: &str, volume: &str) -> PathBuf {
        let target = self.handler.target_path(pod_uid, volume);
        fs::create_dir_all(&target).expect("mkdir of a target path");
        target
    }

    /// Stages a device for a target path; `options` as on the command line.
    pub fn try_stage(&self, target: &Path, device: &Path, options: &[&str]) -> Run {
        self.try_stage_as("ext4", target, device, options)
    }

    /// The same with another file system.
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

    /// Makes a target path and stages a device for it.
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

    /// Unstages a target path.
    pub fn unstage(&self, target: &Path) -> Run {
        self.handler.crust(&["unstage", utf8(target)])
    }

    /// Asks for a volume's stats.
    pub fn stats(&self, target: &Path) -> Run {
        self.handler.crust(&["stats", utf8(target)])
    }

    /// Asks for a volume's growth; in bytes, 0 is no limit.
    pub fn resize(&self, target: &Path, min: u64, max: u64) -> Run {
        let (min, max) = (min.to_string(), max.to_string());
        self.handler.crust(&["resize", utf8(target), &min, &max])
    }

    /// The bundle of a sandbox, not written yet.
    pub fn sandbox_bundle(&self, pod_uid: &str) -> Bundle {
        Bundle::sandbox(&self.dir, pod_uid)
    }

    /// A running sandbox.
    #[track_caller]
    pub fn sandbox(&self, pod_uid: &str) -> Container {
        let bundle = self.sandbox_bundle(pod_uid).write();
        Container::running(&self.handler.runtime(), &bundle)
    }

    /// The bundle of an app, not written yet.
    pub fn app_bundle(&self, sandbox: &Container) -> Bundle {
        Bundle::app_in(&self.dir, sandbox)
    }

    /// A running app with one bind mount.
    #[track_caller]
    pub fn app(&self, sandbox: &Container, source: &Path, destination: &str) -> Container {
        let bundle = self.app_bundle(sandbox).bind(source, destination, &[]);
        self.run(&bundle.write())
    }

    /// Creates and starts a written bundle's container through runcrust.
    #[track_caller]
    pub fn run(&self, bundle: &Bundle) -> Container {
        Container::running(&self.handler.runtime(), bundle)
    }

    /// A container of a written bundle, not created yet.
    pub fn container(&self, bundle: &Bundle) -> Container {
        Container::new(&self.handler.runtime(), bundle)
    }

    /// What runcrust and its hook logged, where the configuration names [`Self::log_path`].
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// A place for runcrust's own log.
    pub fn log_path(&self) -> PathBuf {
        self.dir.join("runcrust.log")
    }

    /// The crust directory's entry of a target path.
    pub fn entry(&self, target: &Path) -> PathBuf {
        self.handler.crust_root().join(digest(utf8(target)))
    }

    /// A volume's lock file, which is there from its first use on.
    pub fn lock_file(&self, target: &Path) -> PathBuf {
        let mut name = self.entry(target).file_name().expect("a name").to_owned();
        name.push(".lock");
        self.handler.state_dir().join("locks").join(name)
    }

    /// All files below the crust directory and the runtime's state but its locks, relative to
    /// the test's directory. The index of target paths counts while it names one: file systems stay in it.
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

    /// The locks of volumes, each of which goes with its volume.
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

    /// There is no record, nothing staged, and no volume's lock.
    #[track_caller]
    pub fn assert_nothing_left(&self) {
        let left = (self.records(), self.volume_locks());
        assert_eq!(left, (Vec::new(), Vec::new()));
    }

    /// Waits until no record says that a volume is used or a sandbox lives: hooks take them away as
    /// containers end. An unstage sweeps up what they have missed, so this is asked before it.
    #[track_caller]
    pub fn assert_released(&self) {
        let mut left = Vec::new();
        let released = holds_within(WAIT_TIMEOUT, || {
            left = self.records();
            left.retain(|record| says_used(record));
            left.is_empty()
        });
        assert!(released, "nobody has released {left:?}");
    }

    /// Unstages volumes that were used: nothing is left, and their hooks have left nothing to it.
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

/// Whether a record is there only as long as somebody lives.
fn says_used(record: &Path) -> bool {
    let name = record.file_name().and_then(|name| name.to_str());
    matches!(name, Some("runtime-cli" | "runcrust.json")) || record.starts_with("run/sandboxes")
}

fn files_below(directory: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    for entry in entries {
        let entry = entry.expect("an entry of a directory of ours");
        if entry.file_type().expect("its type").is_dir() {
            files_below(&entry.path(), files);
        } else {
            files.push(entry.path());
        }
    }
}

/// A text's SHA-256, as names of directories have it.
pub(crate) fn digest(text: &str) -> String {
    let digest = <sha2::Sha256 as sha2::Digest>::digest(text.as_bytes());
    let digits = digest.iter().map(|byte| format!("{byte:02x}"));
    digits.collect::<Vec<_>>().concat()
}

/// A path as an argument.
pub fn utf8(path: &Path) -> &str {
    path.to_str().expect("paths in tests are UTF-8")
}
