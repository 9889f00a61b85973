//! The volumes staged on this node, and the work on them: on threads of its own where it waits for locks and
//! disks, and where its call is when it waits for nothing.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crust_blockfs::Deadline;
use crust_blockfs::device::{Device, LoopDeviceCache};
use crust_serve::KeyedLockGuard;
use crust_state::crust::{Completeness, SurveyedVolume};
use crust_state::record::UserKind;
use crust_state::{Config, CrustDirectory, Digest, MountInfo, StateDirectory, TargetPath};
use crust_volume::{Context, ReconcileMode, ReconcileReport};
use tokio::sync::Semaphore;

use crate::refusal::{NodeError, Refusal};
use crate::staging_limits::{StagedTotals, StagingLimits, TakenRoom};

/// The number of threads that wait for locks and disks. A volume has one at a time, so volumes whose devices hang hold
/// up no others before there are this many.
const THREADS: usize = 64;

/// The number of threads for reads, which take a moment.
const LOOKS: usize = 16;

/// Below kubelet's two minutes for `NodePublishVolume`.
pub(crate) const STAGE: Duration = Duration::from_secs(30);

/// How much later than its limit a call may end. A call that hangs in the kernel takes longer.
const GRACE: Duration = Duration::from_secs(5);

/// Numbers of volumes, for the metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) staged: u64,
    pub(crate) in_use: u64,
}

/// This node.
#[derive(Debug, Clone)]
pub(crate) struct StagingNode {
    config: Arc<Config>,
    threads: Arc<Semaphore>,
    looks: Arc<Semaphore>,
    /// One reconciliation at a time: one that a device holds up must not be joined by the next ones.
    reconciling: Arc<Semaphore>,
    totals: Arc<StagedTotals>,
    /// Opened by a worker thread, since that may wait for a disk.
    directories: Arc<Mutex<Option<Arc<NodeDirectories>>>>,
}

/// The crust and state directories, opened once and kept for as long as their paths lead to them.
#[derive(Debug)]
struct NodeDirectories {
    crust: CrustDirectory,
    state: StateDirectory,
}

impl NodeDirectories {
    fn open(config: &Config) -> Result<Self, Refusal> {
        Ok(Self {
            crust: CrustDirectory::new(config),
            state: StateDirectory::create(&config.state_dir).map_err(NodeError::from)?,
        })
    }

    fn are_still_there(&self) -> bool {
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
            threads: Arc::new(Semaphore::new(THREADS)),
            looks: Arc::new(Semaphore::new(LOOKS)),
            reconciling: Arc::new(Semaphore::new(1)),
            totals: Arc::default(),
            directories: Arc::default(),
        }
    }

    /// With another configuration of the runtime's; the threads under way are under way.
    pub(crate) fn with(&self, config: Config) -> Self {
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
        turn: KeyedLockGuard<Digest>,
        target: TargetPath,
        info: MountInfo,
        limits: StagingLimits,
    ) -> Result<(), Refusal> {
        if let Some(staged) = self.stage_without_waiting(&target, &info, limits) {
            return staged;
        }
        let taken = TakenRoom::new(&self.totals, limits);
        self.work(&self.threads, STAGE, move |context| {
            let _turn = turn;
            let room = |growth, crust: Option<&_>| taken.take(growth, crust);
            // Most are new, and that is the short way.
            match crust_volume::stage_without_waiting(context, &target, &info, &room, true) {
                Some(staged) => Ok(staged?),
                None => Ok(crust_volume::stage(context, &target, &info, Some(&room))?),
            }
        })
        .await
    }

    /// Most are a handful of calls on a tmpfs: to hand them to another thread takes longer than they do.
    fn stage_without_waiting(
        &self,
        target: &TargetPath,
        info: &MountInfo,
        limits: StagingLimits,
    ) -> Option<Result<(), Refusal>> {
        let directories = held(&self.directories)?;
        let loop_devices = LoopDeviceCache::default();
        let context = directories.context(&self.config, STAGE, &loop_devices);
        let taken = TakenRoom::new(&self.totals, limits);
        let room = |growth, crust: Option<&_>| taken.take(growth, crust);
        let staged = crust_volume::stage_without_waiting(&context, target, info, &room, false)?;
        Some(staged.map_err(Refusal::from))
    }

    /// Checks whether the runtime may stage a volume for a caller of a socket. The room that it takes is to be held
    /// until the runtime has done so.
    pub(crate) async fn admit(
        &self,
        target: TargetPath,
        info: MountInfo,
        limits: StagingLimits,
    ) -> Result<TakenRoom, Refusal> {
        let taken = TakenRoom::new(&self.totals, limits);
        self.work(&self.looks, STAGE, move |context| {
            let room = |growth, crust: Option<&_>| taken.take(growth, crust);
            crust_volume::check_admission(context, &target, &info, &room)?;
            Ok(taken)
        })
        .await
    }

    /// Waits for the device no longer than `limit`.
    pub(crate) async fn unstage(
        &self,
        turn: KeyedLockGuard<Digest>,
        target: TargetPath,
        limit: Duration,
    ) -> Result<(), Refusal> {
        self.work(&self.threads, limit, move |context| {
            let _turn = turn;
            Ok(crust_volume::unstage(context, &target)?)
        })
        .await
    }

    /// The program that answers for a volume; `None` as long as no runtime has it mounted.
    pub(crate) async fn runtime_cli(&self, target: TargetPath) -> Result<Option<PathBuf>, Refusal> {
        self.work(&self.looks, STAGE, move |context| {
            let staged = context.crust.target_of(&target);
            let volume = context.crust.volume(&staged).map_err(NodeError::from)?;
            let volume = volume.ok_or_else(|| Refusal::NotStaged(target.volume_name()))?;
            Ok(volume.runtime_cli().map_err(NodeError::from)?)
        })
        .await
    }

    /// Returns the volume that a sandbox has from a device, by the path that it was staged with, or by the
    /// device that the path leads to now. A volume in use needs no path to its device any more.
    pub(crate) async fn volume_of(
        &self,
        sandbox: String,
        device: PathBuf,
    ) -> Result<TargetPath, Refusal> {
        self.work(&self.looks, STAGE, move |context| {
            let crust = context.crust;
            let found = crust.survey().map_err(NodeError::from)?;
            for target in found.iter().filter_map(SurveyedVolume::target) {
                // One that can't be read is nobody's who could ask for it.
                let Ok(Some(volume)) = crust.volume(target) else {
                    continue;
                };
                if volume.info().device == device && is_used_by(context, target, &sandbox)? {
                    return Ok(target.clone());
                }
            }
            let opened = Device::open(&device);
            let opened = opened.map_err(|error| Refusal::field("host_volume_id", error))?;
            let volumes = context.state.volumes_on_device(opened.number());
            for target in volumes.map_err(NodeError::from)? {
                if is_used_by(context, &target, &sandbox)? {
                    return Ok(target);
                }
            }
            let device = device.display().to_string();
            Err(Refusal::NoSuchVolume { sandbox, device })
        })
        .await
    }

    /// Removes stale state of the volumes of `runtime`.
    pub(crate) async fn reconcile(&self, runtime: PathBuf) -> Result<ReconcileReport, Refusal> {
        self.work(&self.reconciling, STAGE, move |context| {
            Ok(crust_volume::reconcile(
                context,
                ReconcileMode::Remove,
                &runtime,
            ))
        })
        .await
    }

    /// Counts the volumes.
    pub(crate) async fn counts(&self) -> Result<Counts, Refusal> {
        self.work(&self.looks, STAGE, |context| {
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

    async fn work<T: Send + 'static>(
        &self,
        threads: &Arc<Semaphore>,
        limit: Duration,
        work: impl FnOnce(&Context<'_>) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let thread = tokio::time::timeout(limit, Arc::clone(threads).acquire_owned()).await;
        let thread = thread.map_err(|_| Refusal::Hangs { after: limit })?;
        let (config, known) = (Arc::clone(&self.config), Arc::clone(&self.directories));
        // What is logged there is of this call as well.
        let call = tracing::Span::current();
        let worked = tokio::task::spawn_blocking(move || {
            let _call = call.enter();
            // It goes on when nobody waits for it any more, and counts as long as that.
            let _thread = thread;
            let directories = match held(&known) {
                Some(directories) => directories,
                None => Arc::new(NodeDirectories::open(&config)?),
            };
            let worked = work(&directories.context(&config, limit, &LoopDeviceCache::default()));
            *lock(&known) = Some(directories);
            worked
        });
        let worked = tokio::time::timeout(limit + GRACE, worked).await;
        let worked = worked.map_err(|_| Refusal::Hangs { after: limit })?;
        worked.map_err(NodeError::from)?
    }
}

/// Whether a sandbox, or a container of its pod, uses a volume. The draft knows sandboxes alone; its
/// containers stand for one that has ended.
fn is_used_by(context: &Context<'_>, target: &TargetPath, sandbox: &str) -> Result<bool, Refusal> {
    let record = context.crust.record(target).map_err(NodeError::from)?;
    let users = record.iter().flat_map(|record| &record.users);
    let mut users = users.filter(|user| user.kind != UserKind::Pending);
    Ok(users.any(|user| user.sandbox == sandbox))
}

/// Returns the directories that were opened before, unless they have moved.
fn held(directories: &Mutex<Option<Arc<NodeDirectories>>>) -> Option<Arc<NodeDirectories>> {
    let known = lock(directories).clone();
    known.filter(|directories| directories.are_still_there())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it is held.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_hung_reconciliation_is_not_joined_and_blocks_no_call() {
        let node = StagingNode::new(Config::default());
        let _hangs = Arc::clone(&node.reconciling).acquire_owned().await.unwrap();
        let refused = node.reconcile("/runtime".into()).await;
        assert!(matches!(refused, Err(Refusal::Hangs { .. })), "{refused:?}");
        let free = [&node.looks, &node.threads].map(|it| it.available_permits());
        assert_eq!(free, [LOOKS, THREADS]);
    }
}
