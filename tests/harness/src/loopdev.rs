//! Loop devices on sparse files.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::cleanup::{Cleanup, OperationGuard};
use crate::dir::unique;
use crate::host::Device;
use crate::node::WAIT_TIMEOUT;
use crate::wait::{holds_within, wait_until};
use crate::{Run, TestDir, host, volume};

/// A loop device on a sparse file in the test's directory. On drop it is detached, which waits until the kernel has
/// released it.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    file: PathBuf,
    number: String,
    fstype: &'static str,
    _cleanup: Cleanup,
}

impl LoopDevice {
    /// Attaches an empty device.
    pub fn new(dir: &TestDir, mebibytes: u64) -> Self {
        let file = dir.join(format!("{}.img", unique("disk")));
        File::create_new(&file)
            .and_then(|image| image.set_len(mebibytes << 20))
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        Self::on(&file)
    }

    /// Attaches a device with an empty ext4.
    pub fn ext4(dir: &TestDir, mebibytes: u64) -> Self {
        Self::formatted(dir, "ext4", mebibytes)
    }

    /// Attaches a device with an empty file system.
    pub fn formatted(dir: &TestDir, fstype: &'static str, mebibytes: u64) -> Self {
        let mut device = Self::new(dir, mebibytes);
        volume::mkfs(fstype, device.path(), &[]);
        device.fstype = fstype;
        device
    }

    /// Attaches a device to an existing file. The file may have another device already.
    pub fn on(file: &Path) -> Self {
        Self::attached(file, &[])
    }

    /// Attaches a read-only device to an existing file.
    pub fn read_only_on(file: &Path) -> Self {
        Self::attached(file, &["--read-only"])
    }

    /// Attaches a device to an existing file from a mount namespace in which the file's directory is at another path,
    /// as a driver in a container does.
    pub fn on_as_seen_at(file: &Path, directory: &Path) -> Self {
        let (above, name) = (file.parent(), file.file_name());
        let (above, name) = (above.expect("a file"), name.expect("a file"));
        let script = "mount --bind \"$1\" \"$2\" && exec losetup --find --show \"$3\"";
        let mut losetup = Command::new("unshare");
        losetup.args(["--mount", "sh", "-ec", script, "sh"]);
        losetup.args([above, directory, &directory.join(name)]);
        let _operation = OperationGuard::begin();
        let run = Run::capture(&mut losetup).success();
        Self::adopt(PathBuf::from(run.stdout.trim()), file)
    }

    fn attached(file: &Path, arguments: &[&str]) -> Self {
        let _operation = OperationGuard::begin();
        Self::adopt(attach(file, arguments), file)
    }

    fn adopt(path: PathBuf, file: &Path) -> Self {
        let behind = backing_file(&path).unwrap_or_else(|| file.to_owned());
        let owned = (path.clone(), behind);
        Self {
            number: Device::from_path(&path).number().to_owned(),
            _cleanup: Cleanup::register(move || detach_and_wait(&owned.0, &owned.1)),
            fstype: volume::type_on(&path).unwrap_or("ext4"),
            path,
            file: file.to_owned(),
        }
    }

    /// Detaches the device and attaches another file to the same number; `None` if another process took the number
    /// first (see [`retry_lost_race`]).
    #[must_use]
    pub fn reattach(self, file: &Path) -> Option<Self> {
        let path = self.path.clone();
        drop(self);
        Self::at(&path, file)
    }

    /// Attaches a file to a device number; `None` if the number is in use.
    #[must_use]
    pub fn at(path: &Path, file: &Path) -> Option<Self> {
        let _operation = OperationGuard::begin();
        let run = Run::capture(Command::new("losetup").arg(path).arg(file));
        let path = path.to_owned();
        run.status.success().then(|| Self::adopt(path, file))
    }

    /// Returns whether a loop device has no file.
    pub fn is_idle(device: &Path) -> bool {
        let name = device.file_name().expect("/dev/loopN");
        let shown = Path::new("/sys/block").join(name).join("loop/backing_file");
        !shown.exists()
    }

    /// Returns the device's disk sequence number.
    pub fn disk_seq(&self) -> String {
        let file = format!("/sys/dev/block/{}/diskseq", self.number);
        let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file}: {error}"));
        text.trim_end().to_owned()
    }

    /// Changes the size of the file and the device, as expanding a volume in the storage does.
    #[track_caller]
    pub fn set_size(&self, bytes: u64) {
        let image = File::options().write(true).open(&self.file);
        image
            .and_then(|image| image.set_len(bytes))
            .unwrap_or_else(|error| panic!("{}: {error}", self.file.display()));
        let mut losetup = Command::new("losetup");
        let _ = Run::capture(losetup.arg("--set-capacity").arg(&self.path)).success();
    }

    /// Makes the mounted ext4 detect an error.
    pub fn fail_ext4(&self) {
        fail_ext4(&self.path);
    }

    /// Returns the device's path, `/dev/loopN`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of the file that the device is on.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Returns the type of the file system that was made on the device, or ext4 for an empty device.
    pub fn fstype(&self) -> &'static str {
        self.fstype
    }

    /// Returns the device number as `major:minor`.
    pub fn number(&self) -> &str {
        &self.number
    }

    /// Returns the host's mounts of the device, as lines of mountinfo.
    pub fn host_mounts(&self) -> Vec<String> {
        host::mounts_of_device(&self.path)
    }

    /// Returns the mounts of the device in a process's namespace, as lines of mountinfo.
    pub fn mounts_of(&self, pid: i32) -> Vec<String> {
        host::lines_of_device(host::mounts_of(pid), &self.path)
    }

    /// Attaches a device to a copy of this one's file, which is what cloning a volume gives.
    #[must_use]
    pub fn clone_in(&self, dir: &TestDir) -> Self {
        let file = dir.join(format!("{}.img", unique("clone")));
        let mut copy = Command::new("cp");
        let _ = Run::capture(copy.arg("--sparse=always").args([&self.file, &file])).success();
        Self::on(&file)
    }

    /// Returns whether nothing on the machine holds the device, in any mount namespace.
    pub fn is_free(&self) -> bool {
        host::is_free(&self.path)
    }

    /// Waits until nothing holds the device, and returns how long that took.
    #[track_caller]
    pub fn wait_until_free(&self, limit: Duration) -> Duration {
        let start = Instant::now();
        crate::wait_until(
            &format!("{} to be free", self.path.display()),
            limit,
            || self.is_free(),
        );
        start.elapsed()
    }
}

/// Repeats an attempt that is `None` if another test took a device's number between two steps.
#[track_caller]
pub fn retry_lost_race<T>(attempt: impl Fn() -> Option<T>) -> T {
    let mut attempts = (0..20).filter_map(|_| attempt());
    attempts
        .next()
        .expect("every attempt lost the race for a device number")
}

/// Attaches a file to a free number. It retries, because another process may take the number first.
fn attach(file: &Path, arguments: &[&str]) -> PathBuf {
    let mut last = None;
    let attached = holds_within(Duration::from_secs(60), || {
        let mut losetup = Command::new("losetup");
        let losetup = losetup.args(["--find", "--show"]).args(arguments);
        let run = Run::capture(losetup.arg(file));
        let worked = run.status.success();
        last = Some(run);
        worked
    });
    let run = last.expect("at least one attempt was made");
    assert!(attached, "no loop device: {run}");
    let device = PathBuf::from(run.stdout.trim());
    if arguments.is_empty() {
        // blockdev(8) makes the number read-only, not the image. It stays so for the next image if another test has
        // just released the number after making its volume read-only.
        let _ = Run::capture(Command::new("blockdev").arg("--setrw").arg(&device)).success();
    }
    device
}

/// Detaches a device as an administrator does. A device that is in use is detached when its last user ends.
#[track_caller]
pub fn detach(device: &Path) {
    let _ = losetup_detach(device).success();
}

fn losetup_detach(device: &Path) -> Run {
    Run::capture(Command::new("losetup").arg("--detach").arg(device))
}

/// Detaches a device and waits for it, because a device in use is only detached when its last user ends. By then
/// another test may have its number, so the backing file is compared.
pub fn detach_and_wait(device: &Path, file: &Path) -> Vec<String> {
    let is_ours = || backing_file(device).is_some_and(|behind| behind == file);
    if !is_ours() {
        return Vec::new();
    }
    let run = losetup_detach(device);
    if holds_within(Duration::from_secs(60), || !is_ours()) {
        return Vec::new();
    }
    vec![format!("{} is still in use: {run}", device.display())]
}

/// Returns the machine's loop devices on files below a directory, with their files.
pub fn on_files_below(directory: &Path) -> Vec<(PathBuf, PathBuf)> {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let devices = devices.map(|entry| Path::new("/dev").join(entry.file_name()));
    let attached = devices.filter_map(|device| Some((backing_file(&device)?, device)));
    let attached = attached.filter(|(file, _)| file.starts_with(directory));
    attached.map(|(file, device)| (device, file)).collect()
}

fn backing_file(device: &Path) -> Option<PathBuf> {
    let name = device.file_name()?.to_str()?;
    let file = fs::read_to_string(format!("/sys/block/{name}/loop/backing_file")).ok()?;
    let file = file.trim_end_matches('\n');
    // The test's directory may already have been removed.
    Some(PathBuf::from(
        file.strip_suffix(" (deleted)").unwrap_or(file),
    ))
}

/// Makes the ext4 that is mounted from a loop device detect an error, and waits until the kernel has counted it. Since
/// Linux 5.11 a work queue does that (`update_super_work`).
pub fn fail_ext4(device: &Path) {
    let name = device.file_name().expect("/dev/loopN");
    let directory = Path::new("/sys/fs/ext4").join(name);
    fs::write(directory.join("trigger_fs_error"), "a test\n").expect("trigger_fs_error");
    wait_until("ext4 to count an error", WAIT_TIMEOUT, || {
        fs::read_to_string(directory.join("errors_count")).is_ok_and(|count| count != "0\n")
    });
}
