//! Removes what is left of a pod that is gone.

use std::path::PathBuf;

use super::pod::{KnownPod, PodProgress};
use super::{Done, Pods};
use crate::objects::{Kind, Name};
use crate::operations;
use crate::pods::Subject;
use crate::sources::{self, LoadedManifests, WriteError};

/// The result of a removal.
#[derive(Debug)]
pub(crate) struct Swept {
    uid: String,
    result: Result<(), String>,
}

impl Pods {
    /// Removes a pod's logs and its directory, with what was in its `emptyDir`s: a task of its own, for that may be
    /// much. Nobody wants anything of the pod meanwhile.
    pub(super) fn sweep(&mut self, uid: &str) {
        let Some(known) = self.all.get_mut(uid) else {
            return;
        };
        known.at = PodProgress::Step;
        known.age += 1;
        known.is_ending = true;
        let (layout, worker) = (self.context.layout.clone(), self.worker.clone());
        let (uid, done) = (uid.to_owned(), self.done.clone());
        tokio::task::spawn_blocking(move || {
            // The directory is the last by which an agent that is started knows of it.
            let logs = worker.remove_logs(&uid);
            let result = logs
                .map_err(|error| crust_state::sentence(&error))
                .and_then(|()| {
                    let removed = operations::remove_pod(&layout, &uid);
                    removed.map_err(|error| crust_state::sentence(&error))
                });
            // Nobody hears of it where the process ends.
            let _ = done.send(Done::Swept(Swept { uid, result }));
        });
    }

    /// Takes the result of a removal.
    pub(crate) fn swept(&mut self, swept: &Swept) {
        let Some(known) = self.all.get_mut(&swept.uid) else {
            return;
        };
        known.age += 1;
        match &swept.result {
            Ok(()) => {
                known.at = PodProgress::Over;
                known.failures.succeed(&Subject::End);
            }
            Err(message) => {
                known.at = PodProgress::Rest;
                let regarding = known.regarding(&swept.uid);
                let events = &self.context.events;
                events.warning(regarding, "FailedCleanup", message.clone());
                known.fail(message.clone());
            }
        }
        let is_stuck = |known: &&KnownPod| known.failures.of(&Subject::End).is_some();
        let stuck = self.all.values().filter(is_stuck).count();
        self.context.metrics.orphans_swept(stuck);
    }

    /// A pod that waits for the end of another one, by the same uid, and is deleted: it has nothing but its manifest.
    pub(super) fn drop_waiting(&self, loaded: &LoadedManifests) -> Option<PathBuf> {
        let is_deleted = |name: &&Name| {
            let pod = loaded.objects.pods.get(*name);
            pod.is_some_and(|pod| pod.is_deleted())
        };
        let mut deleted = self.waiting.iter().filter(is_deleted);
        deleted.find_map(|name| sources::remove(loaded, Kind::Pod, name).ok())
    }

    /// Nothing is left of a pod but its manifest, where that says that it is to end: it is taken away; which file that
    /// was.
    pub(super) fn finish(&mut self, loaded: &LoadedManifests, uid: &str) -> Option<PathBuf> {
        let known = self.all.get_mut(uid)?;
        if known.is_written && !known.is_deleted {
            // It is wanted again, or another one by its uid.
            *known = KnownPod::default();
            return None;
        }
        let Some(name) = known.name().filter(|_| known.is_written) else {
            self.all.remove(uid);
            return None;
        };
        let removed = sources::remove(loaded, Kind::Pod, &name);
        let error = match removed {
            Ok(gone) => {
                self.all.remove(uid);
                return Some(gone);
            }
            Err(error) => error,
        };
        let message = crust_state::sentence(&error);
        if matches!(error, WriteError::SharedFile { .. }) {
            // It is its author's to change, who is told once.
            if let Some(pod) = known.pod.as_deref()
                && !std::mem::replace(&mut known.is_told, true)
            {
                self.context.events.warning(pod, "FailedDelete", message);
            }
            return None;
        }
        tracing::warn!("{message}");
        known.fail(message);
        None
    }
}
