//! Events about operations that can take long. `crust_state::logging` shows those of this module on a terminal.

use std::time::{Duration, Instant};

use crust_blockfs::device::{Device, DeviceFacts};
use crust_blockfs::fsgroup::WalkProgress;
use crust_state::TargetPath;

/// Reports that the walk has begun. Only a terminal shows this, because most walks end within milliseconds.
pub(super) fn fs_group_started(volume: &TargetPath, group: u32) {
    tracing::debug!(
        volume = volume.volume_name(),
        group,
        "fsGroup is being applied"
    );
}

/// Reports how far a walk is.
pub(super) fn fs_group(volume: &TargetPath, group: u32, progress: &WalkProgress) {
    tracing::info!(volume = volume.volume_name(), group, %progress, "fsGroup is being applied");
}

/// Reports that the kernel grows a file system. It doesn't report how far it is.
pub(super) fn growth_started(volume: &TargetPath, fstype: &str, device: &DeviceFacts) {
    tracing::debug!(
        volume = volume.volume_name(),
        fstype,
        device = %device.path().display(),
        "the file system is being grown"
    );
}

/// The wait of an unstage for a device.
pub(super) struct DeviceWait<'a> {
    volume: &'a TargetPath,
    device: &'a Device,
    started: Instant,
    /// The time of the next report, as the time since the start.
    next_report: Duration,
}

impl<'a> DeviceWait<'a> {
    pub(super) fn new(volume: &'a TargetPath, device: &'a Device) -> Self {
        Self {
            volume,
            device,
            started: Instant::now(),
            next_report: Duration::ZERO,
        }
    }

    /// Reports once a second that the device is still in use. Only a terminal shows this: a wait that fails is an error.
    pub(super) fn report(&mut self) {
        let elapsed = self.started.elapsed();
        if elapsed < self.next_report {
            return;
        }
        let seconds = elapsed.as_secs();
        self.next_report = Duration::from_secs(seconds + 1);
        tracing::debug!(
            volume = self.volume.volume_name(),
            device = %self.device.path().display(),
            seconds,
            "waiting until the device is free"
        );
    }
}
