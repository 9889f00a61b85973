//! Loop devices and images that clean up after themselves.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test binary uses its own part"
)]

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crust_mount::device::Device;

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
        let image = Self::blank(32);
        let mut command = Command::new("mkfs.ext4");
        run(command.arg("-q").args(arguments).arg(image.path()));
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
    while device.in_use_exclusively().expect("the device answers") {
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
        .args(["--exact", test, "--nocapture"])
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
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}
