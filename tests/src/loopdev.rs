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

/// A loop device over a sparse file in the test's directory. Dropped, it is detached; that waits
/// until the kernel has let go of it.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    file: PathBuf,
    number: String,
    fstype: &'static str,
    _cleanup: Cleanup,
}

impl LoopDevice {
    /// An empty device.
    pub fn new(dir: &TestDir, mebibytes: u64) -> Self {
        let file = dir.join(format!("{}.img", unique("disk")));
        File::create_new(&file)
            .and_then(|image| image.set_len(mebibytes << 20))
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        Self::on(&file)
    }

    /// A device with an empty ext4.
    pub fn ext4(dir: &TestDir, mebibytes: u64) -> Self {
        Self::formatted(dir, "ext4", mebibytes)
    }

    /// A device with an empty file system.
    pub fn formatted(dir: &TestDir, fstype: &'static str, mebibytes: u64) -> Self {
        let mut device = Self::new(dir, mebibytes);
        volume::mkfs(fstype, device.path(), &[]);
        device.fstype = fstype;
        device
    }

    /// A device on an existing file, which may have another one already: its alias.
    pub fn on(file: &Path) -> Self {
        Self::attached(file, &[])
    }

    /// A device on an existing file that refuses writes.
    pub fn read_only_on(file: &Path) -> Self {
        Self::attached(file, &["--read-only"])
    }

    /// A device on an existing file, attached by somebody who sees its directory as another one: a
    /// driver in a container.
    pub fn on_as_seen_at(file: &Path, directory: &Path) -> Self {
        let (above, name) = (file.parent(), file.file_name());
        let (above, name) = (above.expect("a file"), name.expect("a file"));
        let script = "mount --bind \"$1\" \"$2\" && exec losetup --find --show \"$3\"";
        let mut losetup = Command::new("unshare");
        losetup.args(["--mount", "sh", "-ec", script, "sh"]);
        losetup.args([above, directory, &directory.join(name)]);
        let _operation = OperationGuard::begin();
        let run = Run::of(&mut losetup).success();
        Self::adopted(PathBuf::from(run.stdout.trim()), file)
    }

    fn attached(file: &Path, arguments: &[&str]) -> Self {
        let _operation = OperationGuard::begin();
        Self::adopted(attach(file, arguments), file)
    }

    fn adopted(path: PathBuf, file: &Path) -> Self {
        let behind = backing_file(&path).unwrap_or_else(|| file.to_owned());
        let owned = (path.clone(), behind);
        Self {
            number: Device::of(&path).number().to_owned(),
            _cleanup: Cleanup::register(move || put_away(&owned.0, &owned.1)),
            fstype: volume::type_on(&path).unwrap_or("ext4"),
            path,
            file: file.to_owned(),
        }
    }

    /// Detaches it and attaches another file to its number; `None` where another test was quicker:
    /// [`retry_lost_race`].
    #[must_use]
    pub fn reattach(self, file: &Path) -> Option<Self> {
        let path = self.path.clone();
        drop(self);
        Self::at(&path, file)
    }

    /// Attaches a file to a number; `None` where that has one.
    #[must_use]
    pub fn at(path: &Path, file: &Path) -> Option<Self> {
        let _operation = OperationGuard::begin();
        let run = Run::of(Command::new("losetup").arg(path).arg(file));
        let path = path.to_owned();
        run.status.success().then(|| Self::adopted(path, file))
    }

    /// Whether a loop device shows nothing.
    pub fn is_idle(device: &Path) -> bool {
        let name = device.file_name().expect("/dev/loopN");
        let shown = Path::new("/sys/block").join(name).join("loop/backing_file");
        !shown.exists()
    }

    /// Which disk it is among all that the kernel ever made.
    pub fn disk_seq(&self) -> String {
        let file = format!("/sys/dev/block/{}/diskseq", self.number);
        let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file}: {error}"));
        text.trim_end().to_owned()
    }

    /// Gives the file and the device another size, as expanding a volume on the storage side does.
    #[track_caller]
    pub fn set_size(&self, bytes: u64) {
        let image = File::options().write(true).open(&self.file);
        image
            .and_then(|image| image.set_len(bytes))
            .unwrap_or_else(|error| panic!("{}: {error}", self.file.display()));
        let mut losetup = Command::new("losetup");
        let _ = Run::of(losetup.arg("--set-capacity").arg(&self.path)).success();
    }

    /// Has the mounted ext4 find an error in itself.
    pub fn fail_ext4(&self) {
        fail_ext4(&self.path);
    }

    /// `/dev/loopN`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file behind it.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The type of what was made on it; ext4 where nothing was.
    pub fn fstype(&self) -> &'static str {
        self.fstype
    }

    /// `major:minor`.
    pub fn number(&self) -> &str {
        &self.number
    }

    /// The host's mounts of it, as lines of mountinfo.
    pub fn host_mounts(&self) -> Vec<String> {
        host::mounts_of_device(&self.path)
    }

    /// The mounts of it that process `pid` sees, as lines of mountinfo.
    pub fn mounts_of(&self, pid: i32) -> Vec<String> {
        host::lines_of_device(host::mounts_of(pid), &self.path)
    }

    /// A device on a copy of this one's file: what cloning a volume gives.
    #[must_use]
    pub fn clone_in(&self, dir: &TestDir) -> Self {
        let file = dir.join(format!("{}.img", unique("clone")));
        let mut copy = Command::new("cp");
        let _ = Run::of(copy.arg("--sparse=always").args([&self.file, &file])).success();
        Self::on(&file)
    }

    /// Whether nothing on the machine, in any mount namespace, holds the device.
    pub fn is_free(&self) -> bool {
        host::is_free(&self.path)
    }

    /// Waits until nothing holds the device, and says how long that took.
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

/// Tries until no other test takes a device's number between two files.
#[track_caller]
pub fn retry_lost_race<T>(attempt: impl Fn() -> Option<T>) -> T {
    let mut attempts = (0..20).filter_map(|_| attempt());
    attempts.next().expect("a number of its own")
}

/// Between finding a free number and taking it, another process may take it.
fn attach(file: &Path, arguments: &[&str]) -> PathBuf {
    let mut last = None;
    let attached = holds_within(Duration::from_secs(60), || {
        let mut losetup = Command::new("losetup");
        let losetup = losetup.args(["--find", "--show"]).args(arguments);
        let run = Run::of(losetup.arg(file));
        let worked = run.status.success();
        last = Some(run);
        worked
    });
    let run = last.expect("tried at least once");
    assert!(attached, "no loop device: {run}");
    let device = PathBuf::from(run.stdout.trim());
    if arguments.is_empty() {
        // It is a number that blockdev(8) makes read-only, and stays so for the next image, where another
        // test's volume that isn't written to has just let go of it.
        let _ = Run::of(Command::new("blockdev").arg("--setrw").arg(&device)).success();
    }
    device
}

/// Detaches a device, as an administrator does by hand. One that is in use goes with its last user.
#[track_caller]
pub fn detach(device: &Path) {
    let _ = losetup_detach(device).success();
}

fn losetup_detach(device: &Path) -> Run {
    Run::of(Command::new("losetup").arg("--detach").arg(device))
}

/// A device that is still in use goes away when the last user does: wait for that. By then its
/// number may be another test's, so what counts is the file behind it.
pub(crate) fn put_away(device: &Path, file: &Path) -> Vec<String> {
    let ours = || backing_file(device).is_some_and(|behind| behind == file);
    if !ours() {
        return Vec::new();
    }
    let run = losetup_detach(device);
    if holds_within(Duration::from_secs(60), || !ours()) {
        return Vec::new();
    }
    vec![format!("{} is still in use: {run}", device.display())]
}

/// The machine's loop devices on files below a directory, with their files.
pub(crate) fn on_files_below(directory: &Path) -> Vec<(PathBuf, PathBuf)> {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let devices = devices.map(|entry| Path::new("/dev").join(entry.file_name()));
    let attached = devices.filter_map(|device| Some((backing_file(&device)?, device)));
    let of_it = attached.filter(|(file, _)| file.starts_with(directory));
    of_it.map(|(file, device)| (device, file)).collect()
}

fn backing_file(device: &Path) -> Option<PathBuf> {
    let name = device.file_name()?.to_str()?;
    let file = fs::read_to_string(format!("/sys/block/{name}/loop/backing_file")).ok()?;
    let file = file.trim_end_matches('\n');
    // The test's directory may have gone first.
    Some(PathBuf::from(
        file.strip_suffix(" (deleted)").unwrap_or(file),
    ))
}

/// Has the ext4 that is mounted from a loop device find an error in itself, and waits until the kernel has counted it:
/// since Linux 5.11 a work queue does that (`update_super_work`).
pub fn fail_ext4(device: &Path) {
    let name = device.file_name().expect("/dev/loopN");
    let directory = Path::new("/sys/fs/ext4").join(name);
    fs::write(directory.join("trigger_fs_error"), "a test\n").expect("trigger_fs_error");
    wait_until("ext4 to count an error", WAIT_TIMEOUT, || {
        fs::read_to_string(directory.join("errors_count")).is_ok_and(|count| count != "0\n")
    });
}
