//! The driver's state, which the calls share: records and images of volumes, and the client of `crust_ops`.

mod publications;

use std::fs::File;
use std::path::PathBuf;
use std::sync::Mutex;

use crust_blockfs::device::Device;
use crust_blockfs::loops::{self, LoopDevice};
use crust_serve::{KeyedLockGuard, KeyedLocks};
use crust_state::files::{Directory, FileError};
use crust_state::{Config, CrustDirectory, TargetPath};

use crate::features::{Feature, Features};
use crate::images::{ImageError, Images};
use crate::kubelet_paths::default_quarantine;
use crate::ops::Ops;
use crate::refusal::DataError;
use crate::refusal::Refusal;
use crate::settings::{MAX_LABEL_BYTES, Settings};
use crate::store::{Lifecycle, Record, Store};
use crate::target_cleanup::remove_target;

/// In the data directory: held as long as the driver runs.
const LOCK: &str = "lock";

/// The driver can't start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// An error of the data directory.
    #[error(transparent)]
    Data(#[from] FileError),
    /// An error of a volume in it.
    #[error(transparent)]
    Volume(#[from] DataError),
    /// The host's name is too long for what it is needed for.
    #[error(
        "node id {0:?}: it has to have 1 to {MAX_LABEL_BYTES} bytes, for it is a label's value too; hint: --node-id"
    )]
    NodeId(String),
    /// Another driver has the data directory.
    #[error("{}: another crust-csi has the data directory; hint: give this one another --data-dir", .0.display())]
    Taken(PathBuf),
    /// The data directory can't be locked.
    #[error("{call} {}: {source}", path.display())]
    Lock {
        /// The system call.
        call: &'static str,
        /// The file.
        path: PathBuf,
        /// The error.
        source: std::io::Error,
    },
}

/// The driver. All of its state is on the disk: killed at any moment and started again, it goes on from that.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) settings: Settings,
    pub(crate) features: Features,
    pub(crate) store: Store,
    pub(crate) images: Images,
    pub(crate) ops: Ops,
    crust: CrustDirectory,
    /// Space is promised to one volume after the other.
    pub(crate) reservation: Mutex<()>,
    /// And a target path is given to one.
    targets: KeyedLocks<TargetPath>,
    #[expect(dead_code, reason = "the open file is the lock")]
    lock: File,
}

impl Driver {
    /// With its data directory to itself: two of them would attach an image twice.
    pub(crate) fn new(settings: Settings, ops: Ops) -> Result<Self, StartError> {
        let node_id = settings.node_id();
        if node_id.is_empty() || node_id.len() > MAX_LABEL_BYTES {
            return Err(StartError::NodeId(node_id));
        }
        let data = Directory::create(&settings.data_dir)?;
        let path = settings.data_dir.join(LOCK);
        let failed = |call| {
            let path = path.clone();
            move |source| StartError::Lock { call, path, source }
        };
        let lock = File::options().create(true).append(true).open(&path);
        let lock = lock.map_err(failed("open"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => {
                return Err(StartError::Taken(settings.data_dir));
            }
            Err(std::fs::TryLockError::Error(error)) => return Err(failed("flock")(error)),
        }
        let config = Config {
            crust_root: settings.crust_root.clone(),
            ..Config::default()
        };
        let driver = Self {
            features: settings.features(),
            store: Store::open(&settings.data_dir)?,
            images: Images::open(&data)?,
            crust: CrustDirectory::new(&config),
            reservation: Mutex::new(()),
            targets: KeyedLocks::default(),
            ops,
            lock,
            settings,
        };
        driver.finish()?;
        Ok(driver)
    }

    /// Removes what was being made or deleted when a driver ended, volumes and file systems. There is no data on it,
    /// and the caller will ask again.
    fn finish(&self) -> Result<(), StartError> {
        if let Err(error) = self.store.remove_leftovers() {
            tracing::warn!("{}", crust_state::error_message(&error));
        }
        for (id, record) in self.store.all().map_err(DataError::from)? {
            let is_ready = record.is_none_or(|record| record.lifecycle == Lifecycle::Ready);
            let cleared = if is_ready {
                self.images
                    .discard_replacement(&id)
                    .map_err(DataError::from)
            } else {
                self.remove_volume(&id)
            };
            if let Err(error) = cleared {
                // The others' pods wait.
                tracing::warn!("volume {id}: {}", crust_state::error_message(&error));
            }
        }
        Ok(())
    }

    /// Removes a volume that has no data, or none that anybody wants.
    pub(crate) fn remove_volume(&self, id: &str) -> Result<(), DataError> {
        self.images.remove(id)?;
        Ok(self.store.remove(id)?)
    }

    /// Returns a volume's record; `None` where there is no such volume, or where it is being made or deleted.
    pub(crate) fn find_record(&self, id: &str) -> Result<Option<Record>, Refusal> {
        let record = self.store.load(id)?;
        let ready = record.filter(|record| record.lifecycle == Lifecycle::Ready);
        Ok(ready.map(|record| self.with_actual_capacity(id, record)))
    }

    /// The record of a volume that has to be there.
    pub(crate) fn record(&self, id: &str) -> Result<Record, Refusal> {
        self.find_record(id)?
            .ok_or_else(|| Refusal::NoVolume(id.to_owned()))
    }

    /// An image grows before its record says so. Where that was never written, it has grown all the same: what is
    /// on it may use all of it by now.
    pub(crate) fn with_actual_capacity(&self, id: &str, mut record: Record) -> Record {
        let size = self.images.size(id).unwrap_or_default();
        record.capacity = record.capacity.max(size);
        record
    }

    /// A volume's loop device, if it has one.
    pub(crate) fn loop_device(&self, id: &str) -> Result<Option<LoopDevice>, Refusal> {
        match self.images.size(id) {
            // Nothing by its name is attached.
            Err(ImageError::Missing(_)) => Ok(None),
            Err(error) => Err(error.into()),
            Ok(_) => loops::find(&self.images.path(id)).map_err(Refusal::node(id)),
        }
    }

    /// The same, as the device that it is.
    pub(crate) fn device(&self, id: &str) -> Result<Option<Device>, Refusal> {
        let Some(attached) = self.loop_device(id)? else {
            return Ok(None);
        };
        Device::open(&attached.device)
            .map(Some)
            .map_err(Refusal::node(id))
    }

    /// Refuses a volume whose image was [cut](Self::describe_truncation).
    pub(crate) fn check_not_truncated(&self, id: &str, record: &Record) -> Result<(), Refusal> {
        let size = self.images.size(id)?;
        match self.describe_truncation(id, record, size) {
            Some(what) => Err(Refusal::state(id, what)),
            None => Ok(()),
        }
    }

    /// Describes an image of `size` bytes that is smaller than its volume, and so was cut. One that is larger has
    /// begun to grow.
    pub(crate) fn describe_truncation(
        &self,
        id: &str,
        record: &Record,
        size: u64,
    ) -> Option<String> {
        (size < record.capacity).then(|| {
            format!(
                "{} has {size} bytes, and had {}: it was cut; hint: bring it back from a backup",
                self.images.path(id).display(),
                record.capacity
            )
        })
    }

    /// Reserves a target path: no other call publishes or unpublishes there while this is held.
    pub(crate) fn lock_target(
        &self,
        id: &str,
        target: &TargetPath,
    ) -> Result<KeyedLockGuard<TargetPath>, Refusal> {
        // One by whatever name.
        let turn = self
            .targets
            .try_lock(&target.resolved().unwrap_or_else(|_| target.clone()));
        turn.ok_or_else(|| Refusal::TargetPending {
            volume: id.to_owned(),
            path: target.as_path().to_owned(),
        })
    }

    /// Removes what stands at a target or staging path. Files are moved to the quarantine, with a warning that says
    /// where they are.
    pub(crate) fn clear(&self, id: &str, place: &TargetPath) -> Result<(), Refusal> {
        let configured = self.settings.quarantine_dir.clone();
        let quarantine =
            configured.or_else(|| default_quarantine(place, &self.settings.driver_name));
        let moved = remove_target(place, quarantine.as_deref()).map_err(Refusal::node(id))?;
        if let Some(moved) = moved {
            tracing::warn!(
                "volume {id}: {place:?}: somebody has written files there, on the host; they are in {moved:?} \
                 now; hint: did the pod run under a handler without runcrust?",
            );
        }
        Ok(())
    }

    /// Refuses a call whose capability was left out.
    pub(crate) fn check_feature(
        &self,
        feature: Feature,
        name: &'static str,
    ) -> Result<(), Refusal> {
        if self.features.has(feature) {
            Ok(())
        } else {
            Err(Refusal::CapabilityLeftOut(name))
        }
    }
}

/// The volume of a call; its form is looked at where its record is looked for.
pub(crate) fn check_present(field: &'static str, value: &str) -> Result<(), Refusal> {
    if value.is_empty() {
        return Err(Refusal::field(field, "it is required"));
    }
    Ok(())
}

/// A path of a call.
pub(crate) fn parse_path(field: &'static str, text: &str) -> Result<TargetPath, Refusal> {
    check_present(field, text)?;
    crust_serve::check_path_length(text).map_err(|error| Refusal::field(field, error))?;
    TargetPath::new(text).map_err(|error| Refusal::field(field, error))
}

/// A `volume_path`: at what can be no target path nothing is.
pub(crate) fn parse_volume_path(id: &str, text: &str) -> Result<TargetPath, Refusal> {
    let not_at_path = |_| Refusal::NotAtPath {
        volume: id.to_owned(),
        path: text.into(),
        hint: "volume_path is the target path of NodePublishVolume, or the staging path",
    };
    TargetPath::new(text).map_err(not_at_path)
}

/// Returns a path as records spell it.
pub(crate) fn path_key(path: &TargetPath) -> String {
    path.as_path().to_string_lossy().into_owned()
}
