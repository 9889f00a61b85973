//! After a restart (KEP-3756, "Proposed `VolumeManager` startup"; without the gate, "Old `VolumeManager`
//! startup").

use std::collections::BTreeSet;

use super::volumes::Volumes;
use crate::operations::{self, Broken, Context, Found, OperationError};
use crate::settings::Gates;

/// What is still to be done about what was found.
#[derive(Debug)]
pub(crate) struct Restart {
    /// Not told what they are: to be cleaned once, when all that is wanted is known.
    broken: Vec<Broken>,
    /// Whether the disk is still to be looked at: the old order's.
    is_late: bool,
    /// Pods that have a directory.
    pods: BTreeSet<String>,
}

impl Restart {
    /// The new order: all that is on the disk is uncertain, before anything else is known.
    pub(crate) fn new(
        gates: Gates,
        context: &Context,
        volumes: &mut Volumes,
    ) -> Result<Self, OperationError> {
        let mut restart = Self {
            broken: Vec::new(),
            is_late: !gates.new_volume_manager_reconstruction,
            pods: BTreeSet::new(),
        };
        if !restart.is_late {
            let found = operations::reconstruct(&context.layout)?;
            restart.take(context, &found);
            volumes.found(&found);
        }
        Ok(restart)
    }

    fn take(&mut self, context: &Context, found: &Found) {
        let whole = found.published.len() + found.staged.len();
        for _ in 0..whole {
            context.metrics.reconstructed(true);
        }
        for broken in &found.broken {
            context.metrics.reconstructed(false);
            let (path, reason) = (broken.path.display(), &broken.reason);
            tracing::warn!("{path}: the volume can't be reconstructed: {reason}");
        }
        self.broken.clone_from(&found.broken);
        self.pods.extend(found.pods.iter().cloned());
        if whole > 0 {
            tracing::info!("{whole} volumes were found on the disk, and may be there");
        }
    }

    /// Pods that were found by their directories, by their uids.
    pub(crate) fn pods(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.pods)
    }

    /// All that is wanted is known now.
    pub(crate) fn go_on(&mut self, context: &Context, volumes: &mut Volumes) {
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
                    self.take(context, &found);
                    volumes.found(&found);
                }
                Err(error) => tracing::error!("volumes can't be reconstructed: {error}"),
            }
        }
        // Once: what can't be cleaned now can't be at any other time.
        for broken in std::mem::take(&mut self.broken) {
            if volumes.wants(&broken) {
                continue;
            }
            let path = broken.path.display();
            let cleaned = operations::clean(&context.layout, &broken);
            context.metrics.force_cleaned(cleaned.is_ok());
            match cleaned {
                Ok(()) => tracing::warn!("{path}: cleaned, and nobody was asked"),
                Err(error) => {
                    tracing::error!("{path}: can't be cleaned: {error}; hint: look what is in it");
                }
            }
        }
    }
}
