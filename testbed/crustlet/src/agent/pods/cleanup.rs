//! Removes what is left of a pod that has ended: its logs, its directory and its manifest.

use std::path::PathBuf;

use super::pod::{KnownPod, PodProgress};
use super::{Completion, Pods};
use crate::objects::{Kind, Name};
use crate::operations;
use crate::pods::StepSubject;
use crate::sources::{self, LoadedManifests, WriteError};

/// The result of the removal of a pod's logs and directory.
#[derive(Debug)]
pub(crate) struct CleanupResult {
    uid: String,
    result: Result<(), String>,
}

impl Pods {
    /// Starts the removal of a pod's logs and directory, including its `emptyDir` volumes. It runs in a task of its own
    /// because there may be much to remove. Nothing else is done for the pod meanwhile.
    pub(super) fn start_cleanup(&mut self, uid: &str) {
        let Some(known) = self.all.get_mut(uid) else {
            return;
        };
        known.progress = PodProgress::StepRunning;
        known.generation += 1;
        known.is_ending = true;
        let (layout, worker) = (self.context.layout.clone(), self.worker.clone());
        let (uid, completions) = (uid.to_owned(), self.completions.clone());
        tokio::task::spawn_blocking(move || {
            // The directory is removed last: if crustlet restarts before that, it finds the pod by its directory.
            let logs = worker.remove_logs(&uid);
            let result = logs
                .map_err(|error| crust_state::error_message(&error))
                .and_then(|()| {
                    let removed = operations::remove_pod(&layout, &uid);
                    removed.map_err(|error| crust_state::error_message(&error))
                });
            // The channel is closed only when the process is ending.
            let _ = completions.send(Completion::PodCleanup(CleanupResult { uid, result }));
        });
    }

    pub(crate) fn finish_cleanup(&mut self, cleanup: &CleanupResult) {
        let Some(known) = self.all.get_mut(&cleanup.uid) else {
            return;
        };
        known.generation += 1;
        match &cleanup.result {
            Ok(()) => {
                known.progress = PodProgress::CleanedUp;
                known.failures.succeed(&StepSubject::End);
            }
            Err(message) => {
                known.progress = PodProgress::Idle;
                let regarding = known.regarding(&cleanup.uid);
                let events = &self.context.events;
                events.warning(regarding, "FailedCleanup", message.clone());
                known.record_cleanup_failure(message.clone());
            }
        }
        let has_failed = |known: &&KnownPod| known.failures.get(&StepSubject::End).is_some();
        let failed_pods = self.all.values().filter(has_failed).count();
        self.context.metrics.set_orphan_errors(failed_pods);
    }

    /// Removes the manifest of a deleted pod that has waited for another pod with the same UID. Such a pod has nothing
    /// else to clean up. Returns the removed file.
    pub(super) fn remove_waiting_manifest(&self, loaded: &LoadedManifests) -> Option<PathBuf> {
        let is_deleted = |name: &&Name| {
            let pod = loaded.objects.pods.get(*name);
            pod.is_some_and(|pod| pod.is_deleted())
        };
        let mut deleted = self.waiting_for_uid.iter().filter(is_deleted);
        deleted.find_map(|name| sources::remove(loaded, Kind::Pod, name).ok())
    }

    /// Removes the manifest of a pod that was cleaned up, if the manifest is marked as deleted. Returns the removed
    /// file.
    pub(super) fn remove_manifest(
        &mut self,
        loaded: &LoadedManifests,
        uid: &str,
    ) -> Option<PathBuf> {
        let known = self.all.get_mut(uid)?;
        if known.has_manifest && !known.is_deleted {
            // The pod is wanted again, or another pod with its UID is wanted.
            *known = KnownPod::default();
            return None;
        }
        let Some(name) = known.name().filter(|_| known.has_manifest) else {
            self.all.remove(uid);
            return None;
        };
        let removed = sources::remove(loaded, Kind::Pod, &name);
        let error = match removed {
            Ok(file) => {
                self.all.remove(uid);
                return Some(file);
            }
            Err(error) => error,
        };
        let message = crust_state::error_message(&error);
        if matches!(error, WriteError::SharedFile { .. }) {
            // Other objects are in the same file, so its author has to change it. One event is enough.
            if let Some(pod) = known.pod.as_deref()
                && !std::mem::replace(&mut known.is_warned, true)
            {
                self.context.events.warning(pod, "FailedDelete", message);
            }
            return None;
        }
        tracing::warn!("{message}");
        known.record_cleanup_failure(message);
        None
    }
}
