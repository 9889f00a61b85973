//! A volume that is mounted on the host, and that can be removed from all caches.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use runcrust_tests::{LoopDevice, Run, TestDir, mounts};

/// The size in MiB, which is enough for half a million inodes of ext4. The file is sparse.
const SIZE: u64 = 10 << 10;

/// A mounted volume. It is unmounted on drop.
pub(super) struct Volume {
    fstype: &'static str,
    root: PathBuf,
    /// `None` only during [`Volume::drop_caches`].
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

    /// Writes cached changes to the disk.
    pub(super) fn sync(&self) {
        let _ = Run::capture(Command::new("sync").arg("--file-system").arg(&self.root)).success();
    }

    /// Removes the volume from all caches. The device has to be detached, because an attached one keeps its pages.
    pub(super) fn drop_caches(&mut self) {
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
            // Otherwise the kernel writes inode tables in the background for minutes.
            mount.args(["-o", "noinit_itable"]);
        }
        let _ = Run::capture(mount.arg(self.device()).arg(&self.root)).success();
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        mounts::try_unmount(&self.root);
        if let Some(device) = self.device.take() {
            let file = device.file().to_owned();
            drop(device);
            // The next volume is just as large.
            let _ = fs::remove_file(file);
        }
    }
}
