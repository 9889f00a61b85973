//! A survey of all staged volumes, including those that are damaged or only half staged.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::ResizeRecord;
use super::entry::{Entry, EntryFormat, EntryLocation};
use super::{CrustDirectory, EntryError, Volume};
use crate::files::{Directory, FileError, LeftoverVisitor};
use crate::info::{InfoError, MOUNT_INFO, MountInfo};
use crate::record::VolumeRecord;
use crate::target::{Digest, TargetPath, TargetPresence};

const TARGET_PATH: &str = "metadata.targetPath";

/// A volume that a survey has found, with its entries.
#[derive(Debug)]
pub struct SurveyedVolume {
    /// The digest that names the volume's lock. It is the digest of the target path. If the target path is unknown, it
    /// is the name of the volume's entry.
    pub digest: Digest,
    /// The staged metadata, with `target_path` set.
    pub info: Result<MountInfo, EntryError>,
    pub completeness: Completeness,
    /// Whether a driver staged the volume for Kata Containers. The entry belongs to the driver.
    pub is_kata_layout: bool,
    pub(super) entry_path: PathBuf,
    /// The entry of the target path, then others with the same target path. Empty if the entry can't be opened.
    pub(super) entries: Vec<EntryLocation>,
}

/// Whether all entries of a volume exist. A volume behind a symbolic link has two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Completeness {
    Complete,
    /// The entry of the resolved path is missing, and should be at this path. The volume is half staged.
    ResolvedEntryMissing(PathBuf),
    /// The entry of the target path is missing: a crash interrupted a stage or an unstage.
    TargetEntryMissing,
}

impl SurveyedVolume {
    /// Returns the target path; `None` if it is unknown.
    #[must_use]
    pub fn target(&self) -> Option<&TargetPath> {
        self.info.as_ref().ok()?.target_path.as_ref()
    }

    /// Returns whether the entry doesn't name its target path. It may be valid nevertheless: stagers other than
    /// `crust_ops` may leave the target path out, and it can't be derived from the digest.
    #[must_use]
    pub fn lacks_target_path(&self) -> bool {
        let Err(EntryError::Info { source, .. }) = &self.info else {
            return false;
        };
        matches!(source, InfoError::Missing(TARGET_PATH))
    }

    /// Returns the path of the first entry, whose files are used.
    #[must_use]
    pub fn entry_path(&self) -> &Path {
        &self.entry_path
    }

    /// Returns the paths of all entries that can be opened, the first entry first.
    #[must_use]
    pub fn entry_paths(&self) -> Vec<PathBuf> {
        self.entries.iter().map(EntryLocation::path).collect()
    }

    /// Returns the digests of all paths that have an entry of the volume, and the digest of its target path.
    pub fn digests(&self) -> impl Iterator<Item = Digest> {
        let entries = self.entries.iter();
        let names = entries.filter_map(|entry| entry.name.parse().ok());
        names.chain([self.digest])
    }

    /// Returns the record of users in the first entry, which is the one that runcrust uses.
    pub fn record(&self) -> Result<Option<VolumeRecord>, EntryError> {
        self.read_first(Entry::record)
    }

    /// Returns the records in the other entries that differ from the record in the first entry. A record is written to
    /// the first entry first, and removed from it first.
    pub fn other_records(&self) -> Result<Vec<VolumeRecord>, EntryError> {
        let first = self.record()?;
        let mut others = Vec::new();
        for entry in self.entries.iter().skip(1) {
            others.extend(
                entry
                    .read(Entry::record)?
                    .filter(|record| first.as_ref() != Some(record)),
            );
        }
        Ok(others)
    }

    /// Returns the program to call about the volume, from the first entry that names one. Returns `None` if the volume
    /// isn't in use.
    pub fn runtime_cli(&self) -> Result<Option<PathBuf>, FileError> {
        for entry in &self.entries {
            if let Some(cli) = entry.read(Entry::runtime_cli)? {
                return Ok(Some(cli));
            }
        }
        Ok(None)
    }

    /// Returns the pending resize, even if it was requested for another device than the staged one.
    pub fn resize(&self) -> Result<Option<ResizeRecord>, EntryError> {
        self.read_first(Entry::resize)
    }

    /// Returns which part of the target path existed when the volume was staged or last used; `None` if that wasn't
    /// recorded.
    pub fn presence(&self) -> Result<Option<TargetPresence>, EntryError> {
        self.read_first(Entry::presence)
    }

    fn read_first<T>(
        &self,
        read: impl FnOnce(&Entry) -> Result<Option<T>, EntryError>,
    ) -> Result<Option<T>, EntryError> {
        let first = self.entries.first();
        first.map_or(Ok(None), |first| first.read(read))
    }

    /// Opens the volume with all its entries. The caller has to hold its lock. Returns `None` if the target path is
    /// unknown.
    pub fn into_volume(self) -> Result<Option<Volume>, EntryError> {
        let info = self.info?;
        let Some(target) = info.target_path.clone() else {
            return Ok(None);
        };
        let entries = self.entries.iter().map(EntryLocation::open);
        let entries: Result<Vec<Option<Entry>>, FileError> = entries.collect();
        Ok(Some(Volume {
            target,
            info,
            entries: entries?.into_iter().flatten().collect(),
        }))
    }
}

impl CrustDirectory {
    /// Finds all staged volumes, ordered by their digests.
    pub fn survey(&self) -> Result<Vec<SurveyedVolume>, FileError> {
        let mut found = match self.root.get()? {
            Some(root) => {
                let names = root.names()?;
                self.survey_entries(root, names.iter().filter_map(|name| name.parse().ok()))
            }
            None => Vec::new(),
        };
        if let Some(kata) = &self.kata {
            // The crust directory takes precedence for a volume that is staged in both layouts.
            let known: BTreeSet<Digest> = found.iter().map(|found| found.digest).collect();
            let kata = kata.survey()?.into_iter();
            found.extend(kata.filter(|kata| !known.contains(&kata.digest)));
        }
        found.sort_by_key(|found| found.digest);
        Ok(found)
    }

    /// Surveys one volume again. Returns `None` if it has no entry any more.
    pub fn survey_again(
        &self,
        found: &SurveyedVolume,
    ) -> Result<Option<SurveyedVolume>, FileError> {
        if found.is_kata_layout {
            let kata = self.kata.as_ref();
            return kata.map_or(Ok(None), |kata| kata.survey_again(&found.entry_path));
        }
        let Some(root) = self.root.get()? else {
            return Ok(None);
        };
        let mut names: Vec<Digest> = found.digests().collect();
        names.sort_unstable();
        names.dedup();
        let mut again = self.survey_entries(root, names.into_iter()).into_iter();
        Ok(again.find(|volume| volume.digest == found.digest))
    }

    /// Removes all entries of a volume that was found in the crust directory. The caller has to hold its lock. The
    /// entry of the target path is removed first, so that the volume isn't staged any more after a crash in between.
    pub fn remove(&self, found: &SurveyedVolume) -> Result<(), FileError> {
        let mut entries = found.entries.iter();
        entries.try_for_each(|entry| self.root.remove_directory(&entry.name))
    }

    /// Visits the temporary files in the directory and in its entries.
    pub fn leftovers(&self, found: &mut LeftoverVisitor<'_>) {
        let root = match self.root.get() {
            Ok(Some(root)) => root,
            Ok(None) => return,
            Err(error) => return found(Err(error)),
        };
        root.leftovers(found);
        // If the names can't be read, the visitor has got the error already.
        let names = root.names().unwrap_or_default().into_iter();
        for name in names.filter(|name| name.parse::<Digest>().is_ok()) {
            match root.open_directory(&name) {
                Ok(Some(entry)) => entry.leftovers(found),
                Ok(None) => {}
                Err(error) => found(Err(error)),
            }
        }
    }

    /// Reads the entries with these names, and groups them by volume.
    fn survey_entries(
        &self,
        root: &Arc<Directory>,
        names: impl Iterator<Item = Digest>,
    ) -> Vec<SurveyedVolume> {
        let mut volumes: BTreeMap<Digest, Vec<ReadableEntry>> = BTreeMap::new();
        let mut found = Vec::new();
        for name in names {
            match read_with_retry(root, name) {
                Some(Ok(entry)) => volumes
                    .entry(entry.target.digest())
                    .or_default()
                    .push(entry),
                Some(Err(unreadable)) => found.push(*unreadable),
                None => {}
            }
        }
        for (digest, mut entries) in volumes {
            // The entry of the target path comes first.
            entries.sort_by_key(|entry| entry.name != digest);
            // If that entry exists but can't be read, it has been added as a volume with an error already.
            let exists = || !matches!(self.entry_named(&digest.to_string()), Ok(None));
            if entries[0].name == digest || !exists() {
                found.push(volume_with_entries(root, digest, entries));
            }
        }
        found
    }
}

/// Reads an entry, a second time after an error: the entry may have been removed or replaced meanwhile. Returns `None`
/// if it doesn't exist.
fn read_with_retry(
    root: &Arc<Directory>,
    name: Digest,
) -> Option<Result<ReadableEntry, Box<SurveyedVolume>>> {
    match read(root, name)? {
        Err(_) => read(root, name),
        readable => Some(readable),
    }
}

fn read(root: &Arc<Directory>, name: Digest) -> Option<Result<ReadableEntry, Box<SurveyedVolume>>> {
    let location = EntryLocation {
        root: Arc::clone(root),
        name: name.to_string(),
        format: EntryFormat::Crust,
    };
    let unreadable = |error, entries| {
        let found = SurveyedVolume::single(name, location.path(), Err(error), entries);
        Some(Err(Box::new(found)))
    };
    let entry = match location.open() {
        Ok(entry) => entry?,
        Err(error) => return unreadable(error.into(), Vec::new()),
    };
    match entry.info() {
        Err(error) => unreadable(error, vec![location.clone()]),
        Ok(info) => match info.target_path.clone() {
            None => unreadable(missing_target_path(&entry), vec![location.clone()]),
            Some(target) => Some(Ok(ReadableEntry {
                name,
                target,
                info,
                location,
            })),
        },
    }
}

fn volume_with_entries(
    root: &Directory,
    digest: Digest,
    entries: Vec<ReadableEntry>,
) -> SurveyedVolume {
    let first = &entries[0];
    let (path, info) = (first.location.path(), first.info.clone());
    let resolved = first.target.resolved();
    let resolved = resolved.as_ref().unwrap_or(&first.target).digest();
    let completeness = if first.name != digest {
        Completeness::TargetEntryMissing
    } else if entries.iter().any(|entry| entry.name == resolved) {
        Completeness::Complete
    } else {
        Completeness::ResolvedEntryMissing(root.path().join(resolved.to_string()))
    };
    let entries = entries.into_iter().map(|entry| entry.location).collect();
    SurveyedVolume {
        completeness,
        ..SurveyedVolume::single(digest, path, Ok(info), entries)
    }
}

/// An entry that could be read and names its target path.
struct ReadableEntry {
    name: Digest,
    target: TargetPath,
    info: MountInfo,
    location: EntryLocation,
}

impl SurveyedVolume {
    /// Returns the volume that an entry belongs to, if the volume has no other entry or the other entry is unknown.
    pub(super) fn single(
        digest: Digest,
        entry_path: PathBuf,
        info: Result<MountInfo, EntryError>,
        entries: Vec<EntryLocation>,
    ) -> Self {
        Self {
            digest,
            info,
            completeness: Completeness::Complete,
            is_kata_layout: false,
            entry_path,
            entries,
        }
    }
}

fn missing_target_path(entry: &Entry) -> EntryError {
    EntryError::Info {
        path: entry.path(MOUNT_INFO),
        source: InfoError::Missing(TARGET_PATH),
    }
}
