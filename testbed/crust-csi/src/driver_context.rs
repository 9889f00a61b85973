//! The parts that the drivers for block volumes and for shares have in common: the settings, the lock of the data
//! directory, target paths, and deferral.

use std::error::Error;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crust_blockfs::Deadline;
use crust_serve::client::CallFailure;
use crust_serve::{KeyedLockGuard, KeyedLocks};
use crust_state::files::{Directory, FileError};
use crust_state::{Config, CrustDirectory, TargetPath};

use crate::features::{Feature, Features};
use crate::kubelet_paths::{self, default_quarantine};
use crate::mounts;
use crate::ops::Ops;
use crate::refusal::Refusal;
use crate::settings::{MAX_LABEL_BYTES, Settings};
use crate::target_cleanup::{is_vacant, remove_target};

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
    /// The records of volumes can't be read.
    #[error(transparent)]
    Volume(Box<dyn Error + Send + Sync>),
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

/// The state that both drivers have. All of it is on disk or in the kernel, so a driver can be killed at any moment and
/// started again.
#[derive(Debug)]
pub(crate) struct DriverContext {
    pub(crate) settings: Settings,
    pub(crate) features: Features,
    pub(crate) ops: Ops,
    pub(crate) crust: CrustDirectory,
    /// Held while a target path is published or unpublished.
    target_locks: KeyedLocks<TargetPath>,
    #[expect(dead_code, reason = "the open file is the lock")]
    lock: File,
}

impl DriverContext {
    /// Opens the data directory. Fails if another driver uses it.
    pub(crate) fn new(settings: Settings, ops: Ops) -> Result<Self, StartError> {
        let node_id = settings.node_id();
        if node_id.is_empty() || node_id.len() > MAX_LABEL_BYTES {
            return Err(StartError::NodeId(node_id));
        }
        Directory::create(&settings.data_dir)?;
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
        Ok(Self {
            features: settings.features(),
            crust: CrustDirectory::new(&config),
            target_locks: KeyedLocks::default(),
            ops,
            lock,
            settings,
        })
    }

    /// Locks a target path. No other call publishes or unpublishes there while the lock is held.
    pub(crate) fn lock_target(
        &self,
        id: &str,
        target: &TargetPath,
    ) -> Result<KeyedLockGuard<TargetPath>, Refusal> {
        let key = resolve_parent(target).unwrap_or_else(|| target.clone());
        let lock = self.target_locks.try_lock(&key);
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

    /// Returns whether any volume is staged for a runtime at a target path. This is read from the crust directory,
    /// which is gone after a reboot, like the mounts. The volume's record still exists then.
    pub(crate) fn is_anything_staged(
        &self,
        id: &str,
        target: &TargetPath,
    ) -> Result<bool, Refusal> {
        let target = self.crust.staged_target(target);
        self.crust.has_entry(&target).map_err(Refusal::node(id))
    }

    /// Checks that the driver can access a deferred volume. After a downgrade it can't, and the volume stays mounted by
    /// the runtime until its pod ends (KEP-2857, story 5).
    pub(crate) fn check_can_defer(&self, id: &str) -> Result<(), Refusal> {
        if self.features.has(Feature::DeferFsOps) {
            return Ok(());
        }
        let message = "the container runtime has it mounted, and this driver can't ask the runtime (no DEFER_FS_OPS); \
                       hint: stop the pod, or upgrade the driver again";
        Err(Refusal::state(id, message))
    }

    /// Unstages a deferred volume with `crust_ops`. A kubelet that doesn't know of deferral doesn't set `defer_fs_ops`,
    /// so the crust directory is read, too. If it has no entry, a stage may still be in progress, which `crust_ops`
    /// ends. If `crust_ops` isn't running either, as after a reboot, there is nothing to do.
    pub(crate) fn unstage_deferred(
        &self,
        id: &str,
        target: &TargetPath,
        is_deferred: bool,
    ) -> Result<(), Refusal> {
        let is_staged = self.is_anything_staged(id, target)?;
        if !is_deferred && !is_staged {
            return Ok(());
        }
        match self.ops.unstage(target) {
            // No stage outlives `crust_ops`, and what a stage has left can be seen by now. (`gc` removes what a stage
            // leaves in its last moment, because the target directory is gone by then.)
            Err(CallFailure::Unreachable(_)) if !self.is_anything_staged(id, target)? => Ok(()),
            unstaged => unstaged.map_err(Refusal::ops(id)),
        }
    }
}

/// Creates the target directory of a deferred volume. Fails if something is mounted there.
pub(crate) fn ensure_empty_directory(id: &str, target: &Path) -> Result<(), Refusal> {
    if let Some(mounted) = mounts::mount_at(target).map_err(Refusal::node(id))? {
        let error = mounts::other_mount_error(target, &mounted);
        return Err(Refusal::node(id)(error));
    }
    mounts::create_target_directory(target)
        .map(drop)
        .map_err(Refusal::node(id))
}

/// Returns a target path with the symbolic links of its parent resolved, which is the same for all spellings. The target
/// itself isn't accessed: it can be the root of a share whose server doesn't answer.
fn resolve_parent(target: &TargetPath) -> Option<TargetPath> {
    let path = target.as_path();
    let parent = TargetPath::new(path.parent()?).ok()?.resolved().ok()?;
    TargetPath::new(parent.as_path().join(path.file_name()?)).ok()
}

/// Fails if an orchestrator hasn't created a new target path itself. Then its contents would be removed when the volume
/// is unpublished. `is_block` says whether it is the target of a block device, and so a file.
pub(crate) fn check_vacant(id: &str, target: &TargetPath, is_block: bool) -> Result<(), Refusal> {
    let path = target.as_path();
    // At kubelet's own path there can be directories of subPaths, and files of a pod, which will be kept.
    if (kubelet_paths::is_target(target) && !is_block) || is_vacant(path, is_block) {
        return Ok(());
    }
    let message = format!(
        "{}: the path exists, and its contents would be removed when the volume is unpublished; hint: use a path that \
         doesn't exist, or an empty {}",
        path.display(),
        if is_block { "file" } else { "directory" }
    );
    Err(Refusal::state(id, message))
}

/// Returns the error that another volume is staged at a target path.
pub(crate) fn other_volume_staged(id: &str, target: &TargetPath) -> Refusal {
    let message = format!(
        "{}: another volume is staged there for a container runtime; hint: find it with `runcrust crust list`",
        target.as_path().display()
    );
    Refusal::state(id, message)
}
