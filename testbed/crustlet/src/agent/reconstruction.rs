//! After a restart (KEP-3756, "Proposed `VolumeManager` startup"; without the gate, "Old `VolumeManager`
//! startup").

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

/// How long a driver has to register, and to unpublish a volume without a readable record.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is left to do about the volumes that were found on the disk.
#[derive(Debug)]
pub(crate) struct Restart {
    /// Volumes without a readable record. Each is cleaned up once, when the desired state is known and no pod needs it.
    left: Vec<Left>,
    /// Those that couldn't be cleaned: as long as they are there, something of the volume may be.
    stuck: Vec<PathBuf>,
    /// Whether the disk is still to be looked at: the old order's.
    is_late: bool,
    /// Whether it was told that it can't be.
    is_told: bool,
    /// Pods that have a directory, by their uids, as they were when they began.
    pods: BTreeMap<String, Option<Arc<Pod>>>,
}

impl Restart {
    /// Marks all volumes on the disk as uncertain, before the desired state is known: the startup of KEP-3756.
    pub(crate) fn new(
        gates: FeatureGates,
        context: &Context,
        volumes: &mut Volumes,
    ) -> Result<Self, OperationError> {
        let mut restart = Self {
            left: Vec::new(),
            stuck: Vec::new(),
            is_late: !gates.new_volume_manager_reconstruction,
            is_told: false,
            pods: BTreeMap::new(),
        };
        if !restart.is_late {
            let found = operations::reconstruct(&context.layout)?;
            volumes.found(&found);
            restart.take(context, volumes, found);
        }
        Ok(restart)
    }

    fn take(&mut self, context: &Context, volumes: &mut Volumes, found: ReconstructedState) {
        let whole = found.published.len() + found.staged.len();
        for _ in 0..whole {
            context.metrics.reconstructed(true);
        }
        for broken in &found.unreadable {
            context.metrics.reconstructed(false);
            let (path, reason) = (broken.path.display(), &broken.reason);
            tracing::warn!("{path}: the volume can't be reconstructed: {reason}");
            self.left.push(Left {
                broken: broken.clone(),
                told: None,
            });
        }
        volumes.suspect(self.suspected());
        let pods = found.pods.into_iter();
        self.pods
            .extend(pods.map(|ReconstructedPod { uid, recorded }| (uid, recorded.map(Arc::new))));
        if whole > 0 {
            tracing::info!("{whole} volumes were found on the disk, and may be there");
        }
    }

    /// Pods that were found by their directories, by their uids, as they were when they began.
    pub(crate) fn pods(&mut self) -> BTreeMap<String, Option<Arc<Pod>>> {
        std::mem::take(&mut self.pods)
    }

    /// Returns the pods that may have a volume by an unreadable record: no other pod gets a volume that only one may
    /// have.
    fn suspected(&self) -> VolumeHolders {
        let mut suspected = VolumeHolders::new();
        let publications = self
            .left
            .iter()
            .filter_map(|it| it.broken.publication.as_ref());
        for Publication { id, pod, .. } in publications {
            suspected.entry(id.clone()).or_default().insert(pod.clone());
        }
        suspected
    }

    /// Whether the disk was looked at.
    pub(crate) const fn has_looked(&self) -> bool {
        !self.is_late
    }

    /// ManifestDirectories of volumes that can't be told which they are.
    pub(crate) fn broken(&self) -> Vec<PathBuf> {
        let left = self.left.iter().map(|it| &it.broken.path);
        let stuck = self.stuck.iter();
        let stuck = stuck.filter(|it| it.try_exists().unwrap_or(true));
        left.chain(stuck).cloned().collect()
    }

    /// Goes on once the desired state is known. `running` has the pods whose processes may exist.
    pub(crate) fn go_on(
        &mut self,
        context: &Context,
        volumes: &mut Volumes,
        running: &BTreeSet<String>,
    ) {
        if std::mem::take(&mut self.is_late) {
            match operations::reconstruct(&context.layout) {
                Ok(mut found) => {
                    // What is wanted will be mounted, and counts from then on.
                    let desired = volumes.desired();
                    found.staged.retain(|id| !desired.volumes.contains_key(id));
                    found.published.retain(|(it, _)| {
                        let volume = desired.volumes.get(&it.id);
                        volume.is_none_or(|volume| !volume.mounts.contains_key(&it.pod))
                    });
                    volumes.found(&found);
                    self.take(context, volumes, found);
                }
                // What may be there isn't known, and nothing is destroyed.
                Err(error) => {
                    self.is_late = true;
                    if !std::mem::replace(&mut self.is_told, true) {
                        tracing::error!("volumes can't be reconstructed: {error}");
                    }
                }
            }
        }
        for mut left in std::mem::take(&mut self.left) {
            let there = volumes.has(&left.broken);
            if left.is_settled(there) {
                continue;
            }
            let is_wanted = volumes.wants(&left.broken);
            if !is_wanted {
                left.tell(volumes);
            }
            let pod = left.broken.pod.as_ref();
            let is_at_it = |pod: &String| running.contains(pod) || volumes.is_coming(pod);
            if is_wanted || pod.is_some_and(is_at_it) || left.is_being_unpublished(volumes) {
                self.left.push(left);
            } else if !left.clean(context) {
                self.stuck.push(left.broken.path);
            }
        }
        volumes.suspect(self.suspected());
    }
}

/// A volume that can't be told what it is.
#[derive(Debug)]
struct Left {
    broken: UnreadableVolume,
    /// Since when what it seems to be counts as what may be there.
    told: Option<Instant>,
}

impl Left {
    /// Whether it is a volume's again, as any other.
    fn is_settled(&self, there: Option<Certainty>) -> bool {
        match there {
            Some(Certainty::Certain) => true,
            Some(Certainty::Uncertain) => self.told.is_none(),
            None => false,
        }
    }

    /// Its driver is asked to unpublish what nobody wants, before it unstages it. As long as it may be wanted, that
    /// says how it is to be mounted.
    fn tell(&mut self, volumes: &mut Volumes) {
        let is_told = self.told.is_some();
        self.told.get_or_insert_with(Instant::now);
        if let Some(publication) = self.broken.publication.as_ref().filter(|_| !is_told) {
            volumes.may_be_there(publication, Lifecycle::Persistent);
        }
    }

    /// Whether its driver may still unpublish it, which unmounts what it has mounted: one that isn't there may come.
    fn is_being_unpublished(&self, volumes: &Volumes) -> bool {
        let Some((publication, told)) = self.broken.publication.as_ref().zip(self.told) else {
            return false;
        };
        let Publication { id, pod, .. } = publication;
        let is_there = volumes.actual().mount(id, pod).is_some();
        is_there && (volumes.is_going(id, pod) || told.elapsed() < PATIENCE)
    }

    /// Once: what can't be cleaned now can't be at any other time. Whether it could.
    fn clean(&self, context: &Context) -> bool {
        let path = self.broken.path.display();
        let cleaned = operations::force_cleanup(&context.layout, &self.broken);
        context.metrics.force_cleaned(cleaned.is_ok());
        match &cleaned {
            Ok(()) => tracing::warn!("{path}: cleaned by force"),
            Err(error) => {
                tracing::error!("{path}: can't be cleaned: {error}; hint: look what is in it");
            }
        }
        cleaned.is_ok()
    }
}
