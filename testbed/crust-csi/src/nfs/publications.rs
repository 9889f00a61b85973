//! The publications that really exist, as determined from the mount table and the crust directory.

use crust_nfs::Share;
use crust_state::TargetPath;
use crust_state::record::Version;

use super::{NfsDriver, Publication, Record, mounts};
use crate::mounts::MountsError;
use crate::refusal::Refusal;
use crate::requests::path_key;
use crate::store::{ByPath, Mounter, id_of};

impl NfsDriver {
    /// Returns the record of a volume that is published on this node, or was.
    pub(super) fn record(&self, id: &str) -> Result<Option<Record>, Refusal> {
        Ok(self.store.load(&id_of(id))?)
    }

    /// Returns the record of a volume, or a new one.
    pub(super) fn record_or_new(&self, id: &str, share: &Share) -> Result<Record, Refusal> {
        let new = || Record {
            version: Version,
            volume: id.to_owned(),
            share: share.clone(),
            published: ByPath::new(),
        };
        Ok(self.record(id)?.unwrap_or_else(new))
    }

    /// Saves a record from which a publication was removed. A failure is only logged: outdated parts of the record are
    /// found by comparing it with the mounts and the crust directory.
    pub(super) fn save_removal(&self, id: &str, record: &Record) {
        let saved = if record.published.is_empty() {
            self.store.remove(&id_of(id))
        } else {
            self.store.save_removal(&id_of(id), record)
        };
        if let Err(error) = saved {
            tracing::warn!("volume {id}: {}", crust_state::error_message(&error));
        }
    }

    /// Returns those publications of a record that really exist, with their target paths.
    pub(super) fn existing_publications<'r>(
        &self,
        record: &'r Record,
    ) -> Result<Vec<(&'r str, &'r Publication)>, Refusal> {
        let mut existing = Vec::new();
        for (path, publication) in &record.published {
            if self.publication_exists(record, path, publication)? {
                existing.push((path.as_str(), publication));
            }
        }
        Ok(existing)
    }

    /// Returns whether a publication of a record really exists.
    pub(super) fn publication_exists(
        &self,
        record: &Record,
        path: &str,
        publication: &Publication,
    ) -> Result<bool, Refusal> {
        let Ok(target) = TargetPath::new(path) else {
            return Ok(false);
        };
        if publication.by == Mounter::Runtime {
            return self.is_staged(&record.volume, &record.share, &target);
        }
        match mounts::is_mounted_at(&record.share, target.as_path()) {
            // The pod's directory is gone.
            Err(MountsError::Occupied { .. } | MountsError::Call { .. }) => Ok(false),
            other => other.map_err(Refusal::node(&record.volume)),
        }
    }

    /// Returns whether a share is staged for a runtime at a target path. Assumes it is if the entry can't be read.
    pub(super) fn is_staged(
        &self,
        id: &str,
        share: &Share,
        target: &TargetPath,
    ) -> Result<bool, Refusal> {
        let crust = &self.context.crust;
        match crust.volume(&crust.staged_target(target)) {
            Ok(staged) => Ok(staged.is_some_and(|staged| {
                let staged = staged.info().share().ok().flatten();
                staged.as_ref() == Some(share)
            })),
            Err(_) => self.context.is_anything_staged(id, target),
        }
    }

    /// Fails if another volume is published at a target path.
    pub(super) fn check_not_other_volumes(
        &self,
        id: &str,
        target: &TargetPath,
    ) -> Result<(), Refusal> {
        let path = path_key(target);
        for (_, record) in self.store.all()? {
            let Some(record) = record.filter(|record| record.volume != id) else {
                continue;
            };
            if let Some(publication) = record.published.get(&path)
                && self.publication_exists(&record, &path, publication)?
            {
                let message = format!(
                    "{path} belongs to volume {}; hint: use another target path, or call NodeUnpublishVolume for that \
                     volume first",
                    record.volume
                );
                return Err(Refusal::state(id, message));
            }
        }
        Ok(())
    }
}
