//! Images, loop devices, mounts and trees for tests, which are removed when they are dropped.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test binary uses a part of this module"
)]

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crust_blockfs::device::{Device, DeviceFacts};
use crust_blockfs::mountinfo::Mount;
use rustix::mount::{MoveMountFlags, move_mount};

/// A sparse image file in its own temporary directory.
pub struct Image {
    directory: tempfile::TempDir,
}

impl Image {
    /// Makes an image of zeroes.
    pub fn blank(mebibytes: u64) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let image = Self { directory };
        let file = File::create(image.path()).expect("the image is created");
        file.set_len(mebibytes << 20).expect("the image grows");
        image
    }

    /// Makes an image of 32 MiB with an ext4. `arguments` are further arguments for mkfs.
    pub fn ext4(arguments: &[&str]) -> Self {
        Self::formatted("ext4", arguments)
    }

    /// Makes a small image with a file system. `arguments` are further arguments for mkfs.
    pub fn formatted(fstype: &str, arguments: &[&str]) -> Self {
        let image = Self::blank(match fstype {
            "xfs" => 320,
            "btrfs" => 128,
            _ => 32,
        });
        let mut command = Command::new(format!("mkfs.{fstype}"));
        run(command.arg("-q").args(arguments).arg(image.path()));
        image
    }

    /// Makes an image with the same bytes, and so the same UUID, like a restored snapshot.
    pub fn cloned_from(other: &Self) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let image = Self { directory };
        let mut command = Command::new("cp");
        run(command
            .arg("--sparse=always")
            .args([other.path(), image.path()]));
        image
    }

    pub fn path(&self) -> PathBuf {
        self.directory.path().join("image")
    }

    /// Returns the image's directory, where a test may make other files.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub fn attach(&self) -> TestLoopDevice {
        self.attach_with(&[])
    }

    pub fn attach_with(&self, arguments: &[&str]) -> TestLoopDevice {
        let mut command = Command::new("losetup");
        command
            .args(["--find", "--show"])
            .args(arguments)
            .arg(self.path());
        let path = run(&mut command);
        TestLoopDevice {
            path: path.trim().into(),
        }
    }
}

/// A loop device. It is detached when this is dropped, or later when its last user closes it.
pub struct TestLoopDevice {
    path: PathBuf,
}

impl TestLoopDevice {
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn device(&self) -> Device {
        Device::open(&self.path).expect("a loop device is a block device")
    }

    pub fn facts(&self) -> DeviceFacts {
        self.device().into()
    }
}

impl Drop for TestLoopDevice {
    fn drop(&mut self) {
        // A panic here would hide the failure of the test.
        let _ = Command::new("losetup")
            .arg("--detach")
            .arg(&self.path)
            .status();
    }
}

/// Returns the version of the running kernel. Some errors depend on it.
pub fn kernel() -> (u32, u32) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("a version");
    let mut numbers = release.split(['.', '-']).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor),
        _ => panic!("{release:?} isn't a version"),
    }
}

/// Runs commands of debugfs(8) on an image or device, one in each line. debugfs sets any value, also one that makes the
/// file system invalid.
pub fn edit_ext4(path: &Path, commands: &str) {
    let script = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(&script, commands).expect("a script");
    let mut debugfs = Command::new("debugfs");
    run(debugfs.arg("-wf").args([script.path(), path]));
}

/// Runs a program, which must succeed, and returns its standard output.
pub fn run(command: &mut Command) -> String {
    let output = command
        .stderr(Stdio::piped())
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Waits until nothing holds the device exclusively. The kernel may need some time for that (214 ms after 300 MB were
/// written), but more than ten seconds mean that a mount or descriptor has leaked.
pub fn wait_until_free(device: &Device) {
    let start = Instant::now();
    while device.is_held_exclusively().expect("the device answers") {
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "{device:?} is still in use"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A directory tree that stands for a volume, below its own temporary directory.
///
/// The tests run as root. Code that wrongly leaves the tree or follows a link finds only files of the test. The tree is
/// removed by rm(1), which supports any depth.
pub struct Tree {
    outer: PathBuf,
    root: PathBuf,
}

impl Tree {
    pub fn new() -> Self {
        let outer = tempfile::tempdir().expect("a temporary directory").keep();
        let root = outer.join("volume");
        std::fs::create_dir(&root).expect("the volume's root");
        Self { outer, root }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn open(&self) -> File {
        File::open(&self.root).expect("the root opens")
    }

    pub fn file(&self, name: &str, mode: u32) -> PathBuf {
        let path = self.root.join(name);
        std::fs::write(&path, "").expect("a file");
        set_mode(&path, mode);
        path
    }

    pub fn directory(&self, name: &str, mode: u32) -> PathBuf {
        let path = self.root.join(name);
        std::fs::create_dir(&path).expect("a directory");
        set_mode(&path, mode);
        path
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = Command::new("rm")
            .args(["-rf", "--one-file-system"])
            .arg(&self.outer)
            .status();
    }
}

pub fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    let permissions = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(path, permissions).expect("the mode is set");
}

/// Returns the group and the permission bits of an entry. Symbolic links aren't followed.
pub fn group_and_mode(path: &Path) -> (u32, u32) {
    use std::os::unix::fs::MetadataExt;
    let entry = std::fs::symlink_metadata(path).expect("the entry is there");
    (entry.gid(), entry.mode() & 0o7777)
}

/// Runs `body` in a new mount namespace. For that, this runs the named test again as a process under unshare(1).
pub fn in_mount_namespace(test: &str, body: impl FnOnce()) {
    const INSIDE: &str = "CRUST_MOUNT_TEST_INSIDE";
    if std::env::var_os(INSIDE).is_some() {
        return body();
    }
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation", "private"])
        .arg(std::env::current_exe().expect("our own path"))
        // The test runs even if it is ignored by default: it was asked for by name.
        .args(["--exact", test, "--nocapture", "--include-ignored"])
        .env(INSIDE, "1");
    let output = run(&mut command);
    assert!(output.contains("1 passed"), "{test} ran inside: {output}");
}

/// A mount in a test's own mount namespace. It is unmounted when this is dropped.
pub struct TestMount(PathBuf);

impl TestMount {
    pub fn tmpfs(mount_point: &Path) -> Self {
        run(Command::new("mount")
            .args(["-t", "tmpfs", "test"])
            .arg(mount_point));
        Self(mount_point.into())
    }

    pub fn bind(from: &Path, mount_point: &Path) -> Self {
        run(Command::new("mount")
            .arg("--bind")
            .args([from, mount_point]));
        Self(mount_point.into())
    }

    /// Mounts a device with mount(8). Without `-n`, mount(8) would record some options in the host's /run.
    pub fn device(
        device: &Path,
        mount_point: &Path,
        fstype: &str,
        options: &str,
    ) -> Result<Self, String> {
        let mut command = Command::new("mount");
        command.args(["-n", "-t", fstype, "-o", options]);
        let output = command
            .args([device, mount_point])
            .output()
            .expect("mount(8)");
        if output.status.success() {
            return Ok(Self(mount_point.into()));
        }
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// Attaches a detached mount.
    pub fn attached(mount: &OwnedFd, mount_point: &Path) -> Self {
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        move_mount(mount, "", rustix::fs::CWD, mount_point, flags).expect("the mount is attached");
        Self(mount_point.into())
    }

    /// Returns the mount's entry in mountinfo.
    pub fn info(&self) -> Mount {
        let mounts = crust_blockfs::mountinfo::read_own().expect("our mountinfo");
        let mut mounts = mounts.into_iter();
        mounts
            .rfind(|mount| mount.mount_point == self.0)
            .expect("the volume is mounted")
    }
}

impl Drop for TestMount {
    fn drop(&mut self) {
        // A lazy unmount works even if the test still has a descriptor of the mount.
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}
