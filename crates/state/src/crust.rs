//! The crust directory: one entry for each staged target path.

use std::path::Path;

use crate::config::Config;
use crate::files::{FileError, LazyDirectory};
use crate::info::{MOUNT_INFO, MountInfo};
use crate::record::VolumeRecord;
use crate::target::{Digest, TargetLookup, TargetPath};

mod entry;
mod error;
mod kata;
mod listing;
mod paths;
mod staging;
mod survey;
mod volume;

use entry::{Entry, EntryFormat};
pub use entry::{RUNTIME_CLI, ResizeRecord};
pub use error::EntryError;
use kata::KataDirectory;
pub use listing::{Amount, StagedDigests};
pub use paths::Paths;
pub use staging::Staging;
pub use survey::{FoundVolume, Shape};
pub use volume::Volume;

/// The staged volumes of this node: the crust directory, `/run/crust` unless configured otherwise, which is root's,
/// mode 0700; and, if that is configured, Kata's.
#[derive(Debug)]
pub struct CrustDirectory {
    root: LazyDirectory,
    kata: Option<KataDirectory>,
}

impl CrustDirectory {
    /// Returns the crust directory of a configuration. It isn't created before something is staged.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        Self::with_katas(config, Path::new(kata::ROOT))
    }

    /// The same on a node whose root directory is elsewhere; the configuration's own directories are as
    /// they are found from here.
    #[must_use]
    pub fn below(root: &Path, config: &Config) -> Self {
        let kata = kata::ROOT.trim_start_matches('/');
        Self::with_katas(config, &root.join(kata))
    }

    fn with_katas(config: &Config, kata: &Path) -> Self {
        let kata = || KataDirectory::new(kata, &config.kubelet_dirs);
        Self {
            root: LazyDirectory::new(&config.crust_root),
            kata: config.kata_layout.then(kata),
        }
    }

    /// Whether something may be staged on this node; fails where the directory isn't root's.
    pub fn may_hold_volumes(&self) -> Result<bool, FileError> {
        let katas = self.kata.as_ref();
        let kata = katas.map_or(Ok(false), KataDirectory::may_hold_volumes)?;
        Ok(self.root.may_hold_anything()? || kata)
    }

    /// Whether this may be kept for the next time: it was opened, and leads to no other directory by now.
    #[must_use]
    pub fn is_still_there(&self) -> bool {
        self.kata.is_none() && self.root.is_still_there()
    }

    /// Whether it was opened and is in memory, and is all that is looked into: then no disk is waited for.
    #[must_use]
    pub fn is_in_memory(&self) -> bool {
        self.kata.is_none() && self.root.is_in_memory()
    }

    /// The volume that `path` is the target path of, or the resolved form of the target path of;
    /// `None` where none is staged.
    ///
    /// What is in the crust directory counts; a driver may stage every volume in both layouts, so
    /// the same in Kata's is no matter, and something else is an error.
    pub fn volume(&self, path: &TargetPath) -> Result<Option<Volume>, EntryError> {
        let crust = self.crust_volume(path)?;
        let Some(kata) = &self.kata else {
            return Ok(crust);
        };
        match (crust, kata.volume(path)?) {
            (Some(crust), Some(kata)) if !crust.info.agrees_with(&kata.info) => {
                Err(EntryError::TwoLayouts {
                    crust: crust.info_path(),
                    kata: kata.info_path(),
                })
            }
            (crust, kata) => Ok(crust.or(kata)),
        }
    }

    fn crust_volume(&self, path: &TargetPath) -> Result<Option<Volume>, EntryError> {
        let Some(entry) = self.entry(path)? else {
            return Ok(None);
        };
        let info = entry.info()?;
        let target = info.target_path.clone().unwrap_or_else(|| path.clone());
        let resolved = target.resolved().unwrap_or_else(|_| target.clone());
        if *path != target && *path != resolved {
            return Err(EntryError::OtherTarget {
                path: entry.path(MOUNT_INFO),
                target,
            });
        }
        if target == resolved {
            let entries = vec![entry];
            return Ok(Some(Volume {
                target,
                info,
                entries,
            }));
        }
        let twin_path = if *path == target { &resolved } else { &target };
        let twin = match self.entry(twin_path)? {
            Some(twin) => Some((twin.info()?, twin)),
            None => None,
        };
        let ours = |info: &MountInfo| info.target_path.as_ref() == Some(&target);
        let Some((twins, twin)) = twin.filter(|(info, _)| ours(info)) else {
            return Err(EntryError::HalfStaged {
                missing: self.root.path().join(twin_path.digest().to_string()),
                twin: entry.directory.path().to_owned(),
            });
        };
        // Where they differ, a stage in the place of another was killed on its way to the given one.
        let (info, entries) = if *path == target {
            (info, vec![entry, twin])
        } else {
            (twins, vec![twin, entry])
        };
        Ok(Some(Volume {
            target,
            info,
            entries,
        }))
    }

    /// Returns a volume whose target path was looked at, by the first of its entries that is there: the other may be
    /// missing, and staging the volume again makes it whole.
    pub fn volume_by_any_entry(
        &self,
        look: &TargetLookup<'_>,
    ) -> Result<Option<Volume>, EntryError> {
        let target = look.path();
        for path in look.spellings() {
            let Some(entry) = self.entry(&path)? else {
                continue;
            };
            let info = entry.info()?;
            if info.target_path.as_ref() == Some(target) {
                return Ok(Some(Volume {
                    target: target.clone(),
                    info,
                    entries: vec![entry],
                }));
            }
        }
        Ok(None)
    }

    /// Stages a volume under its target path and that path's resolved form. In Kata's layout nothing
    /// is.
    pub fn stage(&self, target: &TargetPath, info: &MountInfo) -> Result<(), EntryError> {
        Ok(self.try_stage(target, info)?.commit()?)
    }

    /// The same, to be kept or taken back.
    pub fn try_stage(
        &self,
        target: &TargetPath,
        info: &MountInfo,
    ) -> Result<Staging<'_>, EntryError> {
        self.try_stage_seen(&target.look(), info)
    }

    /// The same of a target path that was looked at.
    pub fn try_stage_seen(
        &self,
        look: &TargetLookup<'_>,
        info: &MountInfo,
    ) -> Result<Staging<'_>, EntryError> {
        let target = look.path();
        if let Some(kata) = &self.kata
            && let Some(staged) = kata.volume(target)?
            && !info.agrees_with(&staged.info)
        {
            let entry = self.root.path().join(target.digest().to_string());
            return Err(EntryError::TwoLayouts {
                crust: entry.join(MOUNT_INFO),
                kata: staged.info_path(),
            });
        }
        self.check_own(look)?;
        Ok(Staging::write(self.root.create()?, look, info)?)
    }

    /// The records of all entries in the crust directory, and their volumes' names; fails where one
    /// can't be read.
    pub fn records(&self) -> Result<Vec<(String, VolumeRecord)>, EntryError> {
        let Some(root) = self.root.get()? else {
            return Ok(Vec::new());
        };
        let mut records = Vec::new();
        let names = root.names()?.into_iter();
        for name in names.filter(|name| name.parse::<Digest>().is_ok()) {
            let Some(entry) = self.entry_named(&name)? else {
                continue;
            };
            if let Some(record) = entry.record()? {
                // Whoever has the volume has it, whatever became of what was staged.
                let target = entry.info().ok().and_then(|info| info.target_path);
                records.push((target.map_or(name, |target| target.volume_name()), record));
            }
        }
        Ok(records)
    }

    /// Removes every entry of the volume at a directory, by whichever path it was staged, and no entry of another
    /// volume. Succeeds if there is none.
    pub fn unstage(&self, path: &TargetPath) -> Result<(), FileError> {
        let paths = self.paths_of(path);
        // The target path's first: what is left by a crash is a half that isn't staged.
        let own = paths
            .iter()
            .filter(|path| !self.is_anothers(path, &paths.target));
        for path in own {
            self.root.remove_directory(&path.digest().to_string())?;
        }
        let kata = self.kata.as_ref();
        kata.map_or(Ok(()), |kata| kata.remove(&paths.target))
    }

    /// Whether there is an entry of a path, whatever it is worth.
    pub fn has_entry(&self, path: &TargetPath) -> Result<bool, FileError> {
        Ok(self.any_entry(path)?.is_some())
    }

    /// The record of the entry at `path`, whatever became of its `mountInfo.json`.
    pub fn record(&self, path: &TargetPath) -> Result<Option<VolumeRecord>, EntryError> {
        self.any_entry(path)?
            .map_or(Ok(None), |entry| entry.record())
    }

    fn any_entry(&self, path: &TargetPath) -> Result<Option<Entry>, FileError> {
        match (self.entry(path)?, &self.kata) {
            (None, Some(kata)) => Ok(kata.entry(path)?.map(|(_, entry)| entry)),
            (entry, _) => Ok(entry),
        }
    }

    fn entry(&self, path: &TargetPath) -> Result<Option<Entry>, FileError> {
        self.entry_named(&path.digest().to_string())
    }

    fn entry_named(&self, name: &str) -> Result<Option<Entry>, FileError> {
        let directory = self.root.open_directory(name)?;
        Ok(directory.map(|directory| Entry {
            directory,
            layout: EntryFormat::Crust,
        }))
    }
}

#[cfg(test)]
mod tests;
