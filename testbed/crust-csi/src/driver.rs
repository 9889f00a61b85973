//! The state that all calls share: the records and images of volumes, and the client of `crust_ops`.

mod publications;

use std::fs::{File, TryLockError};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use crust_blockfs::Deadline;
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

/// The lock file in the data directory. The driver holds the lock as long as it runs.
const LOCK_FILE: &str = "lock";

/// The timeout for the lock. A program that a killed driver was starting holds the driver's lock until its exec.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// The reason why the driver can't start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// The data directory can't be opened or created.
    #[error(transparent)]
    Data(#[from] FileError),
    /// The record or image of a volume can't be read or removed.
    #[error(transparent)]
    Volume(#[from] DataError),
    /// The host name is the node id, and is too long.
    #[error(
        "node id {0:?}: must have 1 to {MAX_LABEL_BYTES} bytes, because it is also the value of a label; hint: set --node-id"
    )]
    NodeId(String),
    /// Another driver uses the data directory.
    #[error("{}: another crust-csi is using the data directory; hint: set another --data-dir", .0.display())]
    Taken(PathBuf),
    /// The data directory can't be locked.
    #[error("{call} {}: {source}", path.display())]
    Lock {
        call: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
}

/// The driver. All of its state is on disk, so it can be killed at any moment and started again.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) settings: Settings,
    pub(crate) features: Features,
    pub(crate) store: Store,
    pub(crate) images: Images,
    pub(crate) ops: Ops,
    crust: CrustDirectory,
    /// Held while space is checked and reserved for a volume.
    pub(crate) reservation: Mutex<()>,
    /// Held while a target path is published or unpublished.
    target_locks: KeyedLocks<TargetPath>,
    #[expect(dead_code, reason = "the open file is the lock")]
    lock: File,
}

impl Driver {
    /// Opens the data directory, and cleans up after an earlier driver. Fails if another driver uses the directory.
    pub(crate) fn new(settings: Settings, ops: Ops) -> Result<Self, StartError> {
        let node_id = settings.node_id();
        if node_id.is_empty() || node_id.len() > MAX_LABEL_BYTES {
            return Err(StartError::NodeId(node_id));
        }
        let data = Directory::create(&settings.data_dir)?;
        let path = settings.data_dir.join(LOCK_FILE);
        let failed = |call| {
            let path = path.clone();
            move |source| StartError::Lock { call, path, source }
        };
        let lock = File::options().create(true).append(true).open(&path);
        let lock = lock.map_err(failed("open"))?;
        let locked = Deadline::after(LOCK_TIMEOUT).poll(|| match lock.try_lock() {
            Ok(()) => Ok(Some(())),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(failed("flock")(error)),
        })?;
        if locked.is_none() {
            return Err(StartError::Taken(settings.data_dir));
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
            target_locks: KeyedLocks::default(),
            ops,
            lock,
            settings,
        };
        driver.clean_up_interrupted()?;
        Ok(driver)
    }

    /// Removes volumes and file systems whose creation or deletion was interrupted. They have no data, and the caller
    /// will repeat the call.
    fn clean_up_interrupted(&self) -> Result<(), StartError> {
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
                // The other volumes must be usable nevertheless.
                tracing::warn!("volume {id}: {}", crust_state::error_message(&error));
            }
        }
        Ok(())
    }

    /// Removes the image and the record of a volume that has no data, or whose data is no longer needed.
    pub(crate) fn remove_volume(&self, id: &str) -> Result<(), DataError> {
        self.images.remove(id)?;
        Ok(self.store.remove(id)?)
    }

    /// Returns the record of a volume. `None` if there is no such volume, or if it is being created or deleted.
    pub(crate) fn find_record(&self, id: &str) -> Result<Option<Record>, Refusal> {
        let record = self.store.load(id)?;
        let ready = record.filter(|record| record.lifecycle == Lifecycle::Ready);
        Ok(ready.map(|record| self.with_actual_capacity(id, record)))
    }

    /// Returns the record of a volume that must exist.
    pub(crate) fn record(&self, id: &str) -> Result<Record, Refusal> {
        self.find_record(id)?
            .ok_or_else(|| Refusal::NoVolume(id.to_owned()))
    }

    /// Returns the record with the image's size, if that is larger. An image is expanded before its record is written,
    /// and the write may have failed. The file system may use all of the image by now.
    pub(crate) fn with_actual_capacity(&self, id: &str, mut record: Record) -> Record {
        let size = self.images.size(id).unwrap_or_default();
        record.capacity = record.capacity.max(size);
        record
    }

    /// Returns the loop device of a volume's image, if the image is attached.
    pub(crate) fn loop_device(&self, id: &str) -> Result<Option<LoopDevice>, Refusal> {
        match self.images.size(id) {
            // A missing image is not looked up: no file with its name is attached.
            Err(ImageError::Missing(_)) => Ok(None),
            Err(error) => Err(error.into()),
            Ok(_) => loops::find(&self.images.path(id)).map_err(Refusal::node(id)),
        }
    }

    /// Opens the loop device of a volume's image, if the image is attached.
    pub(crate) fn device(&self, id: &str) -> Result<Option<Device>, Refusal> {
        let Some(attached) = self.loop_device(id)? else {
            return Ok(None);
        };
        Device::open(&attached.device)
            .map(Some)
            .map_err(Refusal::node(id))
    }

    /// Fails if the volume's image was [truncated](Self::describe_truncation).
    pub(crate) fn check_not_truncated(&self, id: &str, record: &Record) -> Result<(), Refusal> {
        let size = self.images.size(id)?;
        match self.describe_truncation(id, record, size) {
            Some(message) => Err(Refusal::state(id, message)),
            None => Ok(()),
        }
    }

    /// Returns a message if an image of `size` bytes is smaller than its volume, because then it was truncated. A
    /// larger image is normal: its expansion has begun.
    pub(crate) fn describe_truncation(
        &self,
        id: &str,
        record: &Record,
        size: u64,
    ) -> Option<String> {
        (size < record.capacity).then(|| {
            format!(
                "{} has {size} bytes, but must have {}: it was truncated; hint: restore it from a backup",
                self.images.path(id).display(),
                record.capacity
            )
        })
    }

    /// Locks a target path. No other call publishes or unpublishes there while the lock is held.
    pub(crate) fn lock_target(
        &self,
        id: &str,
        target: &TargetPath,
    ) -> Result<KeyedLockGuard<TargetPath>, Refusal> {
        // The resolved path is the same for all spellings of it.
        let lock = self
            .target_locks
            .try_lock(&target.resolved().unwrap_or_else(|_| target.clone()));
        lock.ok_or_else(|| Refusal::TargetPending {
            volume: id.to_owned(),
            path: target.as_path().to_owned(),
        })
    }

    /// Removes what exists at a target or staging path. Files are moved to the quarantine directory, with a warning
    /// that names the new path.
    pub(crate) fn clean_up_path(&self, id: &str, path: &TargetPath) -> Result<(), Refusal> {
        let configured = self.settings.quarantine_dir.clone();
        let quarantine =
            configured.or_else(|| default_quarantine(path, &self.settings.driver_name));
        let moved = remove_target(path, quarantine.as_deref()).map_err(Refusal::node(id))?;
        if let Some(moved) = moved {
            tracing::warn!(
                "volume {id}: {path:?}: files were written there on the host; they have been moved to {moved:?}; \
                 hint: check whether the pod ran under a handler without runcrust",
            );
        }
        Ok(())
    }

    /// Fails if a capability that the call needs was left out.
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

/// Fails if a required field is empty. The form of a volume id is checked when its record is looked up.
pub(crate) fn check_present(field: &'static str, value: &str) -> Result<(), Refusal> {
    if value.is_empty() {
        return Err(Refusal::field(field, "is required"));
    }
    Ok(())
}

/// Parses a path from a request.
pub(crate) fn parse_path(field: &'static str, text: &str) -> Result<TargetPath, Refusal> {
    check_present(field, text)?;
    crust_serve::check_path_length(text).map_err(|error| Refusal::field(field, error))?;
    TargetPath::new(text).map_err(|error| Refusal::field(field, error))
}

/// Parses a `volume_path`. If it can't be a target path, no volume is there.
pub(crate) fn parse_volume_path(id: &str, text: &str) -> Result<TargetPath, Refusal> {
    let not_at_path = |_| Refusal::NotAtPath {
        volume: id.to_owned(),
        path: text.into(),
        hint: "set volume_path to the target path of NodePublishVolume, or to the staging path",
    };
    TargetPath::new(text).map_err(not_at_path)
}

/// Returns the path as a key of [`ByPath`](crate::store::ByPath).
pub(crate) fn path_key(path: &TargetPath) -> String {
    path.as_path().to_string_lossy().into_owned()
}
