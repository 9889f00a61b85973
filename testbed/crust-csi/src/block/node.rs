//! The calls of the node service: stage, publish, statistics, health, expansion.

mod expand;
mod health;
mod inline;
mod publish;
mod stage;
mod stats;
mod unpublish;

use std::time::Duration;

use crust_blockfs::Deadline;
use crust_blockfs::device::Device;
use crust_blockfs::loops;
use crust_state::TargetPath;

use crate::block::BlockDriver;
use crate::block::record::Record;
use crate::refusal::Refusal;

/// The time to wait until a device is unused. A pod's mounts disappear a little later than its processes.
const DETACH_TIMEOUT: Duration = Duration::from_secs(30);

/// The time to wait until the device of a volume that is being deleted is unused. The volume should have no users. The
/// caller has a shorter timeout than kubelet, and retries.
const DETACH_UNUSED_TIMEOUT: Duration = Duration::from_secs(5);

impl BlockDriver {
    /// Attaches a volume's image, unless it is attached already, and updates the size of the loop device.
    fn attach(&self, id: &str, record: &Record) -> Result<Device, Refusal> {
        let image = self.images.path(id);
        self.check_not_truncated(id, record)?;
        let attached = loops::attach(&image, false).map_err(Refusal::node(id))?;
        loops::refresh(&image).map_err(Refusal::node(id))?;
        Device::open(&attached.device).map_err(Refusal::node(id))
    }

    /// Saves a record from which something was removed. A failure is only logged, and must not block unpublishing and
    /// unstaging: outdated parts of the record are found by comparing it with the mounts and the crust directory.
    fn save_removal(&self, id: &str, record: &Record) {
        if let Err(error) = self.store.save_removal(id, record) {
            tracing::warn!("volume {id}: {}", crust_state::error_message(&error));
        }
    }

    /// Detaches a volume's loop device, if it has one.
    pub(crate) fn detach(&self, id: &str) -> Result<(), Refusal> {
        self.detach_within(id, DETACH_TIMEOUT)
    }

    /// Detaches the loop device of a volume that is not published. Fails if the device is in use nevertheless.
    pub(crate) fn detach_unused(&self, id: &str) -> Result<(), Refusal> {
        self.detach_within(id, DETACH_UNUSED_TIMEOUT)
    }

    fn detach_within(&self, id: &str, timeout: Duration) -> Result<(), Refusal> {
        let deadline = Deadline::after(timeout);
        let detached = loops::detach(&self.images.path(id), deadline);
        detached.map(drop).map_err(Refusal::node(id))
    }
}

/// Returns the error that the volume is neither published nor staged at a path.
fn not_at_path(id: &str, path: &TargetPath) -> Refusal {
    Refusal::NotAtPath {
        volume: id.to_owned(),
        path: path.as_path().to_owned(),
        hint: "set volume_path to the target path of NodePublishVolume, or to the staging path",
    }
}
