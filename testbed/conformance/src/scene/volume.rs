//! Block devices with a file system, as CSI drivers provide them.

use std::fs;
use std::path::Path;

use runcrust_tests::{LoopDevice, MountWatcher, TestDir, volume};
use serde_json::{Value, json};

use super::{Container, expect};

/// Large enough for an ext4 with a journal and some data.
const EXT4_MEBIBYTES: u64 = 16;

/// A device with a file system, identified by a file on it.
#[derive(Debug)]
pub(crate) struct Volume {
    device: LoopDevice,
    mark: String,
}

impl Volume {
    pub(crate) fn new(dir: &TestDir, fstype: &'static str) -> Self {
        let size = match fstype {
            "ext4" => EXT4_MEBIBYTES,
            other => volume::min_size_mib(other),
        };
        let device = LoopDevice::formatted(dir, fstype, size);
        let mark = format!("the volume on {}", device.file().display());
        volume::with_mounted(device.path(), |root| {
            fs::write(root.join("mark"), &mark).expect("write");
        });
        Self { device, mark }
    }

    /// Adds data to the volume, which must not be in use.
    #[must_use]
    pub(crate) fn with_data(self, work: impl FnOnce(&Path) + Send) -> Self {
        volume::with_mounted(self.device.path(), work);
        self
    }

    pub(crate) fn device(&self) -> &LoopDevice {
        &self.device
    }

    /// Returns the `mountInfo.json` of the volume without further fields.
    pub(crate) fn info(&self) -> Value {
        self.info_with(&json!({}))
    }

    /// Returns the `mountInfo.json` with these top-level fields set.
    pub(crate) fn info_with(&self, fields: &Value) -> Value {
        let mut info = json!({
            "version": 1,
            "volume-type": "block",
            "device": self.device.path(),
            "fstype": self.device.fstype(),
            "metadata": {},
        });
        for (key, value) in fields.as_object().expect("an object") {
            info[key] = value.clone();
        }
        info
    }

    /// Returns the `mountInfo.json` with these keys in `metadata`.
    pub(crate) fn with_metadata(&self, metadata: &Value) -> Value {
        self.info_with(&json!({"metadata": metadata}))
    }

    /// Asserts that the container sees the volume's root at a path.
    #[track_caller]
    pub(crate) fn assert_shown_at(&self, container: &Container, at: &str) {
        let run = container.exec(&["/bin/cat", &format!("{at}/mark")]);
        assert!(
            run.status.success() && run.stdout == self.mark,
            "the volume is not at {at} in the container: {}{}",
            run.stdout,
            run.stderr
        );
    }

    /// Records every mount of the device on the host from now on.
    pub(crate) fn watch(&self) -> MountWatcher {
        MountWatcher::start(self.device.path())
    }

    /// Returns whether no file system on the device is mounted in any mount namespace.
    pub(crate) fn is_free(&self) -> bool {
        self.device.is_free()
    }

    /// Asserts the content of a file on the volume, which must not be in use.
    #[track_caller]
    pub(crate) fn assert_file(&self, path: &str, content: &str) {
        let seen = volume::with_mounted(self.device.path(), |root| {
            fs::read_to_string(root.join(path)).map_err(|error| error.to_string())
        });
        expect(
            &format!("{path} on the device"),
            &seen,
            &Ok(content.to_owned()),
        );
    }

    /// Asserts that the file system was unmounted cleanly.
    #[track_caller]
    pub(crate) fn assert_clean(&self) {
        volume::fsck(self.device.fstype(), self.device.path());
    }
}
