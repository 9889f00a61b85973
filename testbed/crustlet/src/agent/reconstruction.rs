//! Reconstruction of the volumes after a restart (KEP-3756, "Proposed `VolumeManager` startup"; without the gate, "Old
//! `VolumeManager` startup").

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::volumes::Volumes;
use crate::objects::Pod;
use crate::operations::{
    self, Context, OperationError, Publication, ReconstructedPod, ReconstructedState,
    UnreadableVolume,
};
use crate::settings::FeatureGates;
use crate::volumes::actual::Certainty;
use crate::volumes::desired::VolumeHolders;
use crate::volumes::spec::Lifecycle;

/// The longest time that a driver may take to register and to unpublish a volume without a readable record.
const UNPUBLISH_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Reconstruction {
    /// Volumes without a readable record. The cleanup of each is tried once, when the desired state is known and no pod
    /// needs the volume.
    pending: Vec<PendingCleanup>,
    /// The directories whose cleanup failed. As long as one exists, its volume may still be mounted or hold data.
    failed_cleanups: Vec<PathBuf>,
    /// Whether the disk has yet to be read. Without the gate that happens only when the desired state is known.
    is_disk_unread: bool,
    /// Whether the failure to read the disk was logged.
    is_failure_logged: bool,
    /// The pods that have a directory, by their UIDs, with their manifests from when they started. `None` if the
    /// manifest can't be read.
    pods: BTreeMap<String, Option<Arc<Pod>>>,
}

impl Reconstruction {
    /// With the gate, adds all volumes on the disk to the actual state as uncertain, before the desired state is known.
    pub(crate) fn new(
        gates: FeatureGates,
        context: &Context,
        volumes: &mut Volumes,
    ) -> Result<Self, OperationError> {
        let mut reconstruction = Self {
            pending: Vec::new(),
            failed_cleanups: Vec::new(),
            is_disk_unread: !gates.new_volume_manager_reconstruction,
            is_failure_logged: false,
            pods: BTreeMap::new(),
        };
        if !reconstruction.is_disk_unread {
            let found = operations::reconstruct(&context.layout)?;
            volumes.add_from_disk(&found);
            reconstruction.record_found(context, volumes, found);
        }
        Ok(reconstruction)
    }

    fn record_found(
        &mut self,
        context: &Context,
        volumes: &mut Volumes,
        found: ReconstructedState,
    ) {
        let count = found.published.len() + found.staged.len();
        for _ in 0..count {
            context.metrics.reconstructed(true);
        }
        for volume in &found.unreadable {
            context.metrics.reconstructed(false);
            let (path, reason) = (volume.path.display(), &volume.reason);
            tracing::warn!("{path}: the volume can't be reconstructed: {reason}");
            self.pending.push(PendingCleanup {
                volume: volume.clone(),
                uncertain_since: None,
            });
        }
        volumes.set_suspected(self.suspected());
        let pods = found.pods.into_iter();
        self.pods
            .extend(pods.map(|ReconstructedPod { uid, recorded }| (uid, recorded.map(Arc::new))));
        if count > 0 {
            tracing::info!(
                "found {count} volumes on the disk; it is uncertain whether they are mounted"
            );
        }
    }

    /// Returns the pods that were found since the last call, by their UIDs, with their manifests from when they
    /// started.
    pub(crate) fn take_pods(&mut self) -> BTreeMap<String, Option<Arc<Pod>>> {
        std::mem::take(&mut self.pods)
    }

    /// Returns the pods that may have a volume according to an incomplete record. Such a volume isn't given to another
    /// pod if only one pod may use it.
    fn suspected(&self) -> VolumeHolders {
        let mut suspected = VolumeHolders::new();
        let publications = self
            .pending
            .iter()
            .filter_map(|cleanup| cleanup.volume.publication.as_ref());
        for Publication { id, pod, .. } in publications {
            suspected.entry(id.clone()).or_default().insert(pod.clone());
        }
        suspected
    }

    /// Returns whether the disk has been read.
    pub(crate) const fn is_done(&self) -> bool {
        !self.is_disk_unread
    }

    /// Returns the directories of volumes whose records can't be read.
    pub(crate) fn unreadable_directories(&self) -> Vec<PathBuf> {
        let pending = self.pending.iter().map(|cleanup| &cleanup.volume.path);
        let failed_cleanups = self.failed_cleanups.iter();
        let failed_cleanups = failed_cleanups.filter(|path| path.try_exists().unwrap_or(true));
        pending.chain(failed_cleanups).cloned().collect()
    }

    /// Cleans up unreadable volumes that no pod needs. Call it when the desired state is known. `running` has the pods
    /// whose processes may exist.
    pub(crate) fn clean_up(
        &mut self,
        context: &Context,
        volumes: &mut Volumes,
        running: &BTreeSet<String>,
    ) {
        if std::mem::take(&mut self.is_disk_unread) {
            match operations::reconstruct(&context.layout) {
                Ok(mut found) => {
                    // A desired volume is mounted again and is part of the actual state from then on.
                    let desired = volumes.desired();
                    found.staged.retain(|id| !desired.volumes.contains_key(id));
                    found.published.retain(|(publication, _)| {
                        let volume = desired.volumes.get(&publication.id);
                        volume.is_none_or(|volume| !volume.mounts.contains_key(&publication.pod))
                    });
                    volumes.add_from_disk(&found);
                    self.record_found(context, volumes, found);
                }
                // Which volumes are mounted is unknown, so nothing is cleaned up.
                Err(error) => {
                    self.is_disk_unread = true;
                    if !std::mem::replace(&mut self.is_failure_logged, true) {
                        tracing::error!("volumes can't be reconstructed: {error}");
                    }
                }
            }
        }
        for mut cleanup in std::mem::take(&mut self.pending) {
            let certainty = volumes.certainty_of(&cleanup.volume);
            if cleanup.is_known(certainty) {
                continue;
            }
            let is_needed = volumes.needs(&cleanup.volume);
            if !is_needed {
                cleanup.add_as_uncertain(volumes);
            }
            let pod = cleanup.volume.pod.as_ref();
            let is_in_use = |pod: &String| running.contains(pod) || volumes.is_being_published(pod);
            if is_needed || pod.is_some_and(is_in_use) || cleanup.is_being_unpublished(volumes) {
                self.pending.push(cleanup);
            } else if !cleanup.clean_up(context) {
                self.failed_cleanups.push(cleanup.volume.path);
            }
        }
        volumes.set_suspected(self.suspected());
    }
}

/// A volume whose record can't be read, and that may have to be cleaned up.
#[derive(Debug)]
struct PendingCleanup {
    volume: UnreadableVolume,
    /// The time at which the publication that the directory suggests was added to the actual state as uncertain.
    uncertain_since: Option<Instant>,
}

impl PendingCleanup {
    /// Returns whether the actual state has the volume independently of this directory. The usual steps then apply to
    /// it.
    fn is_known(&self, certainty: Option<Certainty>) -> bool {
        match certainty {
            Some(Certainty::Certain) => true,
            Some(Certainty::Uncertain) => self.uncertain_since.is_none(),
            None => false,
        }
    }

    /// Adds the publication that the directory suggests to the actual state, so that the driver is asked to unpublish
    /// the volume before it unstages it. That is done only once no pod needs the volume: until then the desired state
    /// decides how it is mounted.
    fn add_as_uncertain(&mut self, volumes: &mut Volumes) {
        let is_added = self.uncertain_since.is_some();
        self.uncertain_since.get_or_insert_with(Instant::now);
        if let Some(publication) = self.volume.publication.as_ref().filter(|_| !is_added) {
            volumes.add_uncertain(publication, Lifecycle::Persistent);
        }
    }

    /// Returns whether the driver is unpublishing the volume, or may still register and unpublish it. Unpublishing
    /// unmounts the volume.
    fn is_being_unpublished(&self, volumes: &Volumes) -> bool {
        let Some((publication, since)) = self.volume.publication.as_ref().zip(self.uncertain_since)
        else {
            return false;
        };
        let Publication { id, pod, .. } = publication;
        let has_mount = volumes.actual().mount(id, pod).is_some();
        has_mount && (volumes.is_being_unpublished(id, pod) || since.elapsed() < UNPUBLISH_TIMEOUT)
    }

    /// Cleans up the directory. Returns whether that succeeded. It is tried only once, since a second attempt would
    /// fail in the same way.
    fn clean_up(&self, context: &Context) -> bool {
        let path = self.volume.path.display();
        let cleaned = operations::force_cleanup(&context.layout, &self.volume);
        context.metrics.count_force_cleanup(cleaned.is_ok());
        match &cleaned {
            Ok(()) => {
                tracing::warn!(
                    "{path}: unmounted and removed the volume without a readable record"
                );
            }
            Err(error) => {
                tracing::error!(
                    "{path}: can't be cleaned up: {error}; hint: inspect the directory, save what you need, and remove it"
                );
            }
        }
        cleaned.is_ok()
    }
}
