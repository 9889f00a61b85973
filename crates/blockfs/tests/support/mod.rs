//! Loop devices and images that clean up after themselves.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test binary uses its own part"
)]

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crust_blockfs::device::{Device, DeviceFacts};
use crust_blockfs::mountinfo::Mount;
use rustix::mount::{MoveMountFlags, move_mount};

/// A sparse image file in a directory of its own.
pub struct Image {
    directory: tempfile::TempDir,
}

impl Image {
    /// All zeroes.
    pub fn blank(mebibytes: u64) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let image = Self { directory };
        let file = File::create(image.path()).expect("the image is created");
        file.set_len(mebibytes << 20).expect("the image grows");
        image
    }

    /// 32 MiB with ext4, made with further arguments.
    pub fn ext4(arguments: &[&str]) -> Self {
        Self::made("ext4", arguments)
    }

    /// The smallest that is usual for the type, made with further arguments.
    pub fn made(fstype: &str, arguments: &[&str]) -> Self {
        let image = Self::blank(match fstype {
            "xfs" => 320,
            "btrfs" => 128,
            _ => 32,
        });
        let mut command = Command::new(format!("mkfs.{fstype}"));
        run(command.arg("-q").args(arguments).arg(image.path()));
        image
    }

    /// The same bytes, the same UUID: what restoring a snapshot gives.
    pub fn clone_of(other: &Self) -> Self {
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

    /// Room for more files, beside the image.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub fn attach(&self) -> Loop {
        self.attach_with(&[])
    }

    pub fn attach_with(&self, arguments: &[&str]) -> Loop {
        let mut command = Command::new("losetup");
        command
            .args(["--find", "--show"])
            .args(arguments)
            .arg(self.path());
        let path = run(&mut command);
        Loop {
            path: path.trim().into(),
        }
    }
}

/// A loop device, detached when dropped (once nobody has it open any more).
pub struct Loop {
    path: PathBuf,
}

impl Loop {
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

impl Drop for Loop {
    fn drop(&mut self) {
        // Failing here would hide the test's own failure.
        let _ = Command::new("losetup")
            .arg("--detach")
            .arg(&self.path)
            .status();
    }
}

/// The running kernel's version: what it can tell of an error depends on it.
pub fn kernel() -> (u32, u32) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("a version");
    let mut numbers = release.split(['.', '-']).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor),
        _ => panic!("{release:?} is no version"),
    }
}

/// Runs a tool that must succeed; its standard output.
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

/// Waits until nobody has the device for itself; how long that took is the kernel's business
/// (214 ms with 300 MB in flight), more than ten seconds is a leak.
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

/// A volume of its own, in a directory of its own: these tests run as root, and code that climbs
/// out or follows a link where it must not is to find nothing but what the test put there.
/// Removed by rm(1), which takes trees of any depth.
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

/// Group and permission bits of the entry itself, links not followed.
pub fn group_and_mode(path: &Path) -> (u32, u32) {
    use std::os::unix::fs::MetadataExt;
    let entry = std::fs::symlink_metadata(path).expect("the entry is there");
    (entry.gid(), entry.mode() & 0o7777)
}

/// Runs `body` in a process of its own with mounts of its own: this test again, under unshare(1).
pub fn in_own_mount_namespace(test: &str, body: impl FnOnce()) {
    const INSIDE: &str = "CRUST_MOUNT_TEST_INSIDE";
    if std::env::var_os(INSIDE).is_some() {
        return body();
    }
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation", "private"])
        .arg(std::env::current_exe().expect("our own path"))
        // What is ignored was asked for by name.
        .args(["--exact", test, "--nocapture", "--include-ignored"])
        .env(INSIDE, "1");
    let output = run(&mut command);
    assert!(output.contains("1 passed"), "{test} ran inside: {output}");
}

/// A mount that a test made, in a mount namespace of its own; unmounted when dropped.
pub struct Mounted(PathBuf);

impl Mounted {
    pub fn tmpfs(on: &Path) -> Self {
        run(Command::new("mount").args(["-t", "tmpfs", "test"]).arg(on));
        Self(on.into())
    }

    pub fn bind(from: &Path, on: &Path) -> Self {
        run(Command::new("mount").arg("--bind").args([from, on]));
        Self(on.into())
    }

    /// By mount(8); without `-n` it would note what only fstab knows in the host's /run.
    pub fn device(device: &Path, on: &Path, fstype: &str, options: &str) -> Result<Self, String> {
        let mut command = Command::new("mount");
        command.args(["-n", "-t", fstype, "-o", options]);
        let output = command.args([device, on]).output().expect("mount(8)");
        if output.status.success() {
            return Ok(Self(on.into()));
        }
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// A mount that is attached nowhere yet.
    pub fn attached(mount: &OwnedFd, on: &Path) -> Self {
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        move_mount(mount, "", rustix::fs::CWD, on, flags).expect("it is attached");
        Self(on.into())
    }

    /// What mountinfo says of it.
    pub fn info(&self) -> Mount {
        let mounts = crust_blockfs::mountinfo::read_own().expect("our mountinfo");
        let mut mounts = mounts.into_iter();
        mounts
            .rfind(|mount| mount.mount_point == self.0)
            .expect("it is mounted")
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Lazily: a descriptor of it may go on.
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}
