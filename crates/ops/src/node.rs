//! Operations on the volumes that are staged on this node. They run in threads that may block on locks and disks,
//! except for a stage that needn't wait.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crust_blockfs::Deadline;
use crust_blockfs::device::{Device, LoopDeviceCache};
use crust_nfs::Share;
use crust_serve::KeyedLockGuard;
use crust_state::crust::{Completeness, SurveyedVolume};
use crust_state::record::UserKind;
use crust_state::{Config, CrustDirectory, Digest, MountInfo, StateDirectory, TargetPath};
use crust_volume::{Context, ReconcileMode, ReconcileReport};
use tokio::sync::Semaphore;

use crate::call_error::{CallError, NodeError};
use crate::staging_limits::{Reservation, StagedTotals, StagingLimits};

/// The number of threads for operations that wait for locks and disks. A volume uses one thread at a time. Other
/// volumes are blocked only if this many volumes have devices that hang.
const WORK_THREADS: usize = 64;

/// The number of threads for reads, which are short.
const READ_THREADS: usize = 16;

/// The timeout of a stage, which is below kubelet's two minutes for `NodePublishVolume`.
pub(crate) const STAGE_TIMEOUT: Duration = Duration::from_secs(30);

/// The time that a thread gets to end after its deadline. A thread that takes longer hangs in the kernel.
const GRACE_PERIOD: Duration = Duration::from_secs(5);

/// The numbers of volumes for the metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) staged: u64,
    pub(crate) in_use: u64,
}

/// The staged volumes of this node.
#[derive(Debug, Clone)]
pub(crate) struct StagingNode {
    config: Arc<Config>,
    work_threads: Arc<Semaphore>,
    read_threads: Arc<Semaphore>,
    /// Has one permit, so that later reconciliations don't pile up behind one that hangs.
    reconcile_thread: Arc<Semaphore>,
    totals: Arc<StagedTotals>,
    /// Opened by a worker thread, because that may wait for a disk.
    directories: Arc<Mutex<Option<Arc<NodeDirectories>>>>,
}

/// The crust and state directories. They are kept open as long as their paths lead to them.
#[derive(Debug)]
struct NodeDirectories {
    crust: CrustDirectory,
    state: StateDirectory,
}

impl NodeDirectories {
    fn open(config: &Config) -> Result<Self, CallError> {
        Ok(Self {
            crust: CrustDirectory::new(config),
            state: StateDirectory::create(&config.state_dir).map_err(NodeError::from)?,
        })
    }

    fn are_current(&self) -> bool {
        self.crust.is_current() && self.state.is_current()
    }

    fn context<'a>(
        &'a self,
        config: &'a Config,
        limit: Duration,
        loop_devices: &'a LoopDeviceCache,
    ) -> Context<'a> {
        Context {
            config,
            crust: &self.crust,
            state: &self.state,
            deadline: Deadline::after(limit),
            loop_devices,
        }
    }
}

impl StagingNode {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            config: Arc::new(config),
            work_threads: Arc::new(Semaphore::new(WORK_THREADS)),
            read_threads: Arc::new(Semaphore::new(READ_THREADS)),
            reconcile_thread: Arc::new(Semaphore::new(1)),
            totals: Arc::default(),
            directories: Arc::default(),
        }
    }

    /// Returns the node with another configuration of the runtime. The returned node shares the limits on threads with
    /// this node.
    pub(crate) fn with_config(&self, config: Config) -> Self {
        Self {
            config: Arc::new(config),
            totals: Arc::default(),
            directories: Arc::default(),
            ..self.clone()
        }
    }

    /// Stages a volume for a caller of a socket.
    pub(crate) async fn stage(
        &self,
        volume_lock: KeyedLockGuard<Digest>,
        target: TargetPath,
        info: MountInfo,
        limits: StagingLimits,
    ) -> Result<(), CallError> {
        if let Some(staged) = self.stage_without_waiting(&target, &info, limits) {
            return staged;
        }
        let reservation = Reservation::new(&self.totals, limits);
        self.work(&self.work_threads, STAGE_TIMEOUT, move |context| {
            let _volume_lock = volume_lock;
            let limiter = |growth, crust: Option<&_>| reservation.reserve(growth, crust);
            // Fast path: most volumes are new.
            match crust_volume::stage_without_waiting(context, &target, &info, &limiter, true) {
                Some(staged) => Ok(staged?),
                None => Ok(crust_volume::stage(
                    context,
                    &target,
                    &info,
                    Some(&limiter),
                )?),
            }
        })
        .await
    }

    /// Stages a volume in the calling task, if that needn't wait. A stage takes only a few calls on a tmpfs, which is
    /// less time than passing it to another thread.
    fn stage_without_waiting(
        &self,
        target: &TargetPath,
        info: &MountInfo,
        limits: StagingLimits,
    ) -> Option<Result<(), CallError>> {
        let directories = open_directories(&self.directories)?;
        let loop_devices = LoopDeviceCache::default();
        let context = directories.context(&self.config, STAGE_TIMEOUT, &loop_devices);
        let reservation = Reservation::new(&self.totals, limits);
        let limiter = |growth, crust: Option<&_>| reservation.reserve(growth, crust);
        let staged = crust_volume::stage_without_waiting(&context, target, info, &limiter, false)?;
        Some(staged.map_err(CallError::from))
    }

    /// Checks whether the runtime may stage a volume for a caller of a socket. The returned reservation must be kept
    /// until the runtime has staged it.
    pub(crate) async fn check_staging(
        &self,
        target: TargetPath,
        info: MountInfo,
        limits: StagingLimits,
    ) -> Result<Reservation, CallError> {
        let reservation = Reservation::new(&self.totals, limits);
        self.work(&self.read_threads, STAGE_TIMEOUT, move |context| {
            let limiter = |growth, crust: Option<&_>| reservation.reserve(growth, crust);
            crust_volume::check_staging(context, &target, &info, &limiter)?;
            Ok(reservation)
        })
        .await
    }

    /// Unstages a volume. Waits for its device no longer than `limit`.
    pub(crate) async fn unstage(
        &self,
        volume_lock: KeyedLockGuard<Digest>,
        target: TargetPath,
        limit: Duration,
    ) -> Result<(), CallError> {
        self.work(&self.work_threads, limit, move |context| {
            let _volume_lock = volume_lock;
            Ok(crust_volume::unstage(context, &target)?)
        })
        .await
    }

    /// Returns the program that reports on a volume and resizes it; `None` if no runtime has the volume mounted.
    pub(crate) async fn runtime_cli(
        &self,
        target: TargetPath,
    ) -> Result<Option<PathBuf>, CallError> {
        self.work(&self.read_threads, STAGE_TIMEOUT, move |context| {
            let staged = context.crust.staged_target(&target);
            let volume = context.crust.volume(&staged).map_err(NodeError::from)?;
            let volume = volume.ok_or_else(|| CallError::NotStaged(target.volume_name()))?;
            Ok(volume.runtime_cli().map_err(NodeError::from)?)
        })
        .await
    }

    /// Finds the volume that a sandbox uses from a device or share.
    ///
    /// The source is compared with the staged sources first, because the path of a device in use may be gone. Then the
    /// device that it leads to is looked up.
    pub(crate) async fn find_volume(
        &self,
        sandbox: String,
        source: String,
    ) -> Result<TargetPath, CallError> {
        self.work(&self.read_threads, STAGE_TIMEOUT, move |context| {
            let crust = context.crust;
            let found = crust.survey().map_err(NodeError::from)?;
            for target in found.iter().filter_map(SurveyedVolume::target) {
                // An unreadable volume isn't mounted in a sandbox by this call's runtime.
                let Ok(Some(volume)) = crust.volume(target) else {
                    continue;
                };
                if has_source(volume.info(), &source) && is_used_by(context, target, &sandbox)? {
                    return Ok(target.clone());
                }
            }
            if source.parse::<Share>().is_ok() {
                let device = source;
                return Err(CallError::NoSuchVolume { sandbox, device });
            }
            let opened = Device::open(Path::new(&source));
            let opened = opened.map_err(|error| CallError::field("host_volume_id", error))?;
            let volumes = context.state.volumes_on(opened.number().into());
            for target in volumes.map_err(NodeError::from)? {
                if is_used_by(context, &target, &sandbox)? {
                    return Ok(target);
                }
            }
            Err(CallError::NoSuchVolume {
                sandbox,
                device: source,
            })
        })
        .await
    }

    /// Removes stale state of the volumes of `runtime`.
    pub(crate) async fn reconcile(&self, runtime: PathBuf) -> Result<ReconcileReport, CallError> {
        self.work(&self.reconcile_thread, STAGE_TIMEOUT, move |context| {
            Ok(crust_volume::reconcile(
                context,
                ReconcileMode::Remove,
                &runtime,
            ))
        })
        .await
    }

    pub(crate) async fn count_volumes(&self) -> Result<Counts, CallError> {
        self.work(&self.read_threads, STAGE_TIMEOUT, |context| {
            let mut counts = Counts::default();
            for found in context.crust.survey().map_err(NodeError::from)? {
                if found.info.is_ok()
                    && found.completeness != Completeness::TargetEntryMissing
                    && !found.is_kata_layout
                {
                    let in_use = matches!(found.runtime_cli(), Ok(Some(_)));
                    counts.staged += 1;
                    counts.in_use += u64::from(in_use);
                }
            }
            Ok(counts)
        })
        .await
    }

    /// Runs `work` in a blocking thread, if one of `threads` is free before `limit`.
    async fn work<T: Send + 'static>(
        &self,
        threads: &Arc<Semaphore>,
        limit: Duration,
        work: impl FnOnce(&Context<'_>) -> Result<T, CallError> + Send + 'static,
    ) -> Result<T, CallError> {
        let thread = tokio::time::timeout(limit, Arc::clone(threads).acquire_owned()).await;
        let thread = thread.map_err(|_| CallError::Hangs { after: limit })?;
        let (config, opened) = (Arc::clone(&self.config), Arc::clone(&self.directories));
        // The thread's log events belong to this call.
        let span = tracing::Span::current();
        let result = tokio::task::spawn_blocking(move || {
            let _span = span.enter();
            // The thread continues after a timeout, and keeps its permit until it ends.
            let _thread = thread;
            let directories = match open_directories(&opened) {
                Some(directories) => directories,
                None => Arc::new(NodeDirectories::open(&config)?),
            };
            let result = work(&directories.context(&config, limit, &LoopDeviceCache::default()));
            *lock(&opened) = Some(directories);
            result
        });
        let result = tokio::time::timeout(limit + GRACE_PERIOD, result).await;
        let result = result.map_err(|_| CallError::Hangs { after: limit })?;
        result.map_err(NodeError::from)?
    }
}

/// Returns whether a volume was staged with a device or share, as a caller names it.
fn has_source(info: &MountInfo, source: &str) -> bool {
    match info.share() {
        Ok(Some(share)) => source.parse() == Ok(share),
        _ => info.device == Path::new(source),
    }
}

/// Returns true if a sandbox, or a container of its pod, uses a volume. The draft's interface only names sandboxes, but
/// a container may still run after its sandbox has ended.
fn is_used_by(
    context: &Context<'_>,
    target: &TargetPath,
    sandbox: &str,
) -> Result<bool, CallError> {
    let record = context.crust.record(target).map_err(NodeError::from)?;
    let users = record.iter().flat_map(|record| &record.users);
    let mut users = users.filter(|user| user.kind != UserKind::Pending);
    Ok(users.any(|user| user.sandbox == sandbox))
}

/// Returns the directories that were opened before, unless their paths lead elsewhere now.
fn open_directories(
    directories: &Mutex<Option<Arc<NodeDirectories>>>,
) -> Option<Arc<NodeDirectories>> {
    let opened = lock(directories).clone();
    opened.filter(|directories| directories.are_current())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code panics while the lock is held, so it can't be poisoned.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_hung_reconciliation_blocks_later_ones_but_no_call() {
        let node = StagingNode::new(Config::default());
        let _hanging = Arc::clone(&node.reconcile_thread)
            .acquire_owned()
            .await
            .unwrap();
        let refused = node.reconcile("/runtime".into()).await;
        assert!(
            matches!(refused, Err(CallError::Hangs { .. })),
            "{refused:?}"
        );
        let free = [&node.read_threads, &node.work_threads].map(|it| it.available_permits());
        assert_eq!(free, [READ_THREADS, WORK_THREADS]);
    }
}
