//! A volume of the host's own, which can be made to be in no memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use runcrust_tests::{LoopDevice, Run, TestDir, mounts};

/// In MiB, for half a million inodes of an ext4; the file behind it is sparse.
const SIZE: u64 = 10 << 10;

/// Unmounted when dropped.
pub(super) struct Volume {
    fstype: &'static str,
    root: PathBuf,
    /// `None` only in [`Volume::cool`].
    device: Option<LoopDevice>,
}

impl Volume {
    pub(super) fn new(dir: &TestDir, fstype: &'static str) -> Self {
        let volume = Self {
            fstype,
            root: dir.subdir("volume"),
            device: Some(LoopDevice::formatted(dir, fstype, SIZE)),
        };
        volume.mount();
        volume
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn device(&self) -> &Path {
        self.device.as_ref().expect("a device").path()
    }

    /// What was written is on the disk.
    pub(super) fn sync(&self) {
        let _ = Run::of(Command::new("sync").arg("--file-system").arg(&self.root)).success();
    }

    /// Takes it out of all memory. A device that stays attached keeps pages that nobody drops.
    pub(super) fn cool(&mut self) {
        mounts::unmount(&self.root);
        let device = self.device.take().expect("a device");
        let file = device.file().to_owned();
        drop(device);
        fs::write("/proc/sys/vm/drop_caches", "3").expect("drop_caches");
        self.device = Some(LoopDevice::on(&file));
        self.mount();
    }

    fn mount(&self) {
        let mut mount = Command::new("mount");
        mount.args(["-t", self.fstype]);
        if self.fstype == "ext4" {
            // Or the kernel writes inode tables for minutes beside what is measured.
            mount.args(["-o", "noinit_itable"]);
        }
        let _ = Run::of(mount.arg(self.device()).arg(&self.root)).success();
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        mounts::try_unmount(&self.root);
        if let Some(device) = self.device.take() {
            let file = device.file().to_owned();
            drop(device);
            // The next one is as large.
            let _ = fs::remove_file(file);
        }
    }
}
