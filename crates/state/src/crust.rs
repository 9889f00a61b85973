//! The crust directory, which has an entry for each staged volume.

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
pub use listing::{EntryUsage, StagedDigests};
pub use paths::VolumePaths;
pub use staging::Staging;
pub use survey::{Completeness, SurveyedVolume};
pub use volume::Volume;

/// The crust directory of a node: `/run/crust` unless configured otherwise. It belongs to root and has mode 0700. If
/// `kata_layout` is configured, lookups also read the directory where CSI drivers stage volumes for Kata Containers.
#[derive(Debug)]
pub struct CrustDirectory {
    root: LazyDirectory,
    kata: Option<KataDirectory>,
}

impl CrustDirectory {
    /// Returns the crust directory of a configuration. It is created when the first volume is staged.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        Self::with_kata_root(config, Path::new(kata::ROOT))
    }

    /// Returns the crust directory of a node whose root directory is mounted at `root`. Only Kata's directory is looked
    /// up below `root`: the paths in `config` are used unchanged.
    #[must_use]
    pub fn with_root(root: &Path, config: &Config) -> Self {
        let kata = kata::ROOT.trim_start_matches('/');
        Self::with_kata_root(config, &root.join(kata))
    }

    fn with_kata_root(config: &Config, kata: &Path) -> Self {
        let kata = || KataDirectory::new(kata, &config.kubelet_dirs);
        Self {
            root: LazyDirectory::new(&config.crust_root),
            kata: config.kata_layout.then(kata),
        }
    }

    /// Returns whether a volume may be staged on this node. Fails if a user other than root can change
    /// the directory.
    pub fn may_hold_volumes(&self) -> Result<bool, FileError> {
        let kata = self.kata.as_ref();
        let kata = kata.map_or(Ok(false), KataDirectory::may_hold_volumes)?;
        Ok(self.root.may_hold_entries()? || kata)
    }

    /// Returns whether this value can be used for another operation: the directory was opened, and its path still
    /// leads to it. Always false if Kata's layout is read.
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.kata.is_none() && self.root.is_current()
    }

    /// Returns whether lookups never wait for a disk: the directory was opened and is on a file system in memory, and
    /// Kata's layout isn't read.
    #[must_use]
    pub fn is_in_memory(&self) -> bool {
        self.kata.is_none() && self.root.is_in_memory()
    }

    /// Returns the volume whose target path is `path`, or resolves to `path`. Returns `None` if none is staged.
    ///
    /// A driver may stage a volume in both layouts. Then the entry in the crust directory is used, and it is an error
    /// if Kata's entry describes another volume.
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
        let other_path = if *path == target { &resolved } else { &target };
        let other_entry = match self.entry(other_path)? {
            Some(other) => Some((other.info()?, other)),
            None => None,
        };
        let is_same_volume = |info: &MountInfo| info.target_path.as_ref() == Some(&target);
        let other_entry = other_entry.filter(|(info, _)| is_same_volume(info));
        let Some((other_info, other_entry)) = other_entry else {
            return Err(EntryError::HalfStaged {
                missing: self.root.path().join(other_path.digest().to_string()),
                present: entry.directory.path().to_owned(),
            });
        };
        // The entry of the target path comes first. If the two entries differ, a stage that replaced the volume was
        // killed after it had written the entry of the resolved path.
        let (info, entries) = if *path == target {
            (info, vec![entry, other_entry])
        } else {
            (other_info, vec![other_entry, entry])
        };
        Ok(Some(Volume {
            target,
            info,
            entries,
        }))
    }

    /// Returns the volume with a target path by the first of its entries that exists. The other entry may be missing;
    /// staging the volume again restores it.
    pub fn volume_by_any_entry(
        &self,
        lookup: &TargetLookup<'_>,
    ) -> Result<Option<Volume>, EntryError> {
        let target = lookup.path();
        for path in lookup.spellings() {
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

    /// Stages a volume under its target path and, if that differs, under the resolved path. Nothing is written in
    /// Kata's layout.
    pub fn stage(&self, target: &TargetPath, info: &MountInfo) -> Result<(), EntryError> {
        Ok(self.begin_stage(target, info)?.commit()?)
    }

    /// Stages a volume as [`Self::stage`] does, and returns a value that commits or reverts it.
    pub fn begin_stage(
        &self,
        target: &TargetPath,
        info: &MountInfo,
    ) -> Result<Staging<'_>, EntryError> {
        self.begin_stage_at(&target.look_up(), info)
    }

    /// Stages a volume as [`Self::begin_stage`] does, at a target path that has been looked up already.
    pub fn begin_stage_at(
        &self,
        lookup: &TargetLookup<'_>,
        info: &MountInfo,
    ) -> Result<Staging<'_>, EntryError> {
        let target = lookup.path();
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
        self.check_no_other_volume(lookup)?;
        Ok(Staging::write(self.root.create()?, lookup, info)?)
    }

    /// Returns the records of all entries in the crust directory with the names of their volumes. Fails if a record
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
                // The volume is in use even if `mountInfo.json` is gone or can't be parsed.
                let target = entry.info().ok().and_then(|info| info.target_path);
                records.push((target.map_or(name, |target| target.volume_name()), record));
            }
        }
        Ok(records)
    }

    /// Removes all entries of the volume that `path` leads to, and no entry of another volume. `path` need not be the
    /// path that the volume was staged by. Succeeds if there is no entry.
    pub fn unstage(&self, path: &TargetPath) -> Result<(), FileError> {
        let paths = self.volume_paths(path);
        // The entry of the target path is removed first: after a crash in between, the volume isn't staged any more.
        let own = paths
            .iter()
            .filter(|path| !self.belongs_to_other_volume(path, &paths.target));
        for path in own {
            self.root.remove_directory(&path.digest().to_string())?;
        }
        let kata = self.kata.as_ref();
        kata.map_or(Ok(()), |kata| kata.remove(&paths.target))
    }

    /// Returns whether a path has an entry, even one that can't be parsed.
    pub fn has_entry(&self, path: &TargetPath) -> Result<bool, FileError> {
        Ok(self.any_entry(path)?.is_some())
    }

    /// Returns the record of users in the entry of `path`. The entry's `mountInfo.json` isn't read.
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
            format: EntryFormat::Crust,
        }))
    }
}

#[cfg(test)]
mod tests;
