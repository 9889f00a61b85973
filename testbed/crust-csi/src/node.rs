//! Volumes on this node.

mod decide;
mod expand;
mod health;
mod publish;
mod stage;
mod stats;
mod unpublish;

use std::time::Duration;

use crust_blockfs::Deadline;
use crust_blockfs::device::Device;
use crust_blockfs::loops;
use crust_state::TargetPath;

use crate::driver::Driver;
use crate::features::Feature;
use crate::refusal::Refusal;
use crate::store::Record;

/// A pod's mounts go a little later than its processes.
const DETACH_TIMEOUT: Duration = Duration::from_secs(30);

/// For a volume that nothing should use: whoever asks for its end waits less long than kubelet, and asks again.
const DETACH_UNUSED_TIMEOUT: Duration = Duration::from_secs(5);

impl Driver {
    /// A volume's loop device, as large as the volume. It is the one that is there, or it is made.
    fn attach(&self, id: &str, record: &Record) -> Result<Device, Refusal> {
        let image = self.images.path(id);
        self.check_not_truncated(id, record)?;
        let attached = loops::attach(&image, false).map_err(Refusal::node(id))?;
        loops::refresh(&image).map_err(Refusal::node(id))?;
        Device::open(&attached.device).map_err(Refusal::node(id))
    }

    /// Keeps a record that says less than before. Where it can't be kept, what it says too much isn't believed, and
    /// mustn't hold up who gives something back.
    fn save_removal(&self, id: &str, record: &Record) {
        if let Err(error) = self.store.save_removal(id, record) {
            tracing::warn!("volume {id}: {}", crust_state::error_message(&error));
        }
    }

    /// Gives a volume's loop device back, if it has one.
    pub(crate) fn detach(&self, id: &str) -> Result<(), Refusal> {
        self.detach_within(id, DETACH_TIMEOUT)
    }

    /// The same of a volume that nobody has published. Whatever uses its device nevertheless is an error.
    pub(crate) fn detach_unused(&self, id: &str) -> Result<(), Refusal> {
        self.detach_within(id, DETACH_UNUSED_TIMEOUT)
    }

    fn detach_within(&self, id: &str, patience: Duration) -> Result<(), Refusal> {
        let deadline = Deadline::after(patience);
        let detached = loops::detach(&self.images.path(id), deadline);
        detached.map(drop).map_err(Refusal::node(id))
    }

    /// A volume that an earlier driver has deferred, before a downgrade, is the runtime's until its pod ends
    /// (KEP-2857, story 5).
    fn check_can_defer(&self, id: &str) -> Result<(), Refusal> {
        if self.features.has(Feature::DeferFsOps) {
            return Ok(());
        }
        let what = "the container runtime has it mounted, and this driver can't ask it (no DEFER_FS_OPS); hint: \
                    its pod has to end, or the driver to be upgraded again";
        Err(Refusal::state(id, what))
    }
}

/// Neither published nor staged there.
fn not_at_path(id: &str, place: &TargetPath) -> Refusal {
    Refusal::NotAtPath {
        volume: id.to_owned(),
        path: place.as_path().to_owned(),
        hint: "volume_path is the target path of NodePublishVolume, or the staging path",
    }
}
