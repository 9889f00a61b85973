//! Everything that is staged, as it stands there, whatever it is worth.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::ResizeRecord;
use super::entry::{Entry, EntryFormat, EntryPlace};
use super::{CrustDirectory, EntryError, Volume};
use crate::files::{Directory, FileError, LeftoverVisitor};
use crate::info::{InfoError, MOUNT_INFO, MountInfo};
use crate::record::VolumeRecord;
use crate::target::{Digest, TargetPath, TargetPresence};

const TARGET_PATH: &str = "metadata.targetPath";

/// The entries of one volume, as a survey has found them.
#[derive(Debug)]
pub struct FoundVolume {
    /// The name of its locks: the digest of its target path or, if that is unknown, its entry's name.
    pub digest: Digest,
    /// What was staged; `metadata.targetPath` is set.
    pub info: Result<MountInfo, EntryError>,
    /// Whether all of it stands there.
    pub shape: Shape,
    /// It was staged for Kata Containers: the entry is its driver's.
    pub is_kata_layout: bool,
    pub(super) place: PathBuf,
    /// The given target path's, then others that name it; none where it can't be opened.
    pub(super) entries: Vec<EntryPlace>,
}

/// The completeness of a volume's entries, of which one behind a symbolic link has two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shape {
    /// All that there have to be.
    Whole,
    /// This one isn't: the volume is half staged.
    Lacks(PathBuf),
    /// The given target path's is gone: a crash left the other.
    Half,
}

impl FoundVolume {
    /// The target path as it was given.
    #[must_use]
    pub fn target(&self) -> Option<&TargetPath> {
        self.info.as_ref().ok()?.target_path.as_ref()
    }

    /// Whether the runtime may have it although its entry doesn't say for which target path: others
    /// than `crust_ops` may stage without that, and it can't be told from its digest.
    #[must_use]
    pub fn is_nameless(&self) -> bool {
        let Err(EntryError::Info { source, .. }) = &self.info else {
            return false;
        };
        matches!(source, InfoError::Missing(TARGET_PATH))
    }

    /// The entry that counts.
    #[must_use]
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// All of its entries, that one first.
    #[must_use]
    pub fn places(&self) -> Vec<PathBuf> {
        self.entries.iter().map(EntryPlace::path).collect()
    }

    /// Returns the digests of all paths that the volume has an entry at, and of its target path.
    pub fn digests(&self) -> impl Iterator<Item = Digest> {
        let entries = self.entries.iter();
        let names = entries.filter_map(|entry| entry.name.parse().ok());
        names.chain([self.digest])
    }

    /// Returns the record of users that the runtime reads: the first entry's.
    pub fn record(&self) -> Result<Option<VolumeRecord>, EntryError> {
        self.look(Entry::record)
    }

    /// Records beside that one which say something else. Each is written first to the first entry, and
    /// removed from that first.
    pub fn other_records(&self) -> Result<Vec<VolumeRecord>, EntryError> {
        let first = self.record()?;
        let mut others = Vec::new();
        for entry in self.entries.iter().skip(1) {
            others.extend(
                entry
                    .look(Entry::record)?
                    .filter(|record| first.as_ref() != Some(record)),
            );
        }
        Ok(others)
    }

    /// Returns the program that answers for the volume, by any of its entries.
    pub fn runtime_cli(&self) -> Result<Option<PathBuf>, FileError> {
        for entry in &self.entries {
            if let Some(cli) = entry.look(Entry::runtime_cli)? {
                return Ok(Some(cli));
            }
        }
        Ok(None)
    }

    /// The growth that waits for its mount, of whichever device.
    pub fn resize(&self) -> Result<Option<ResizeRecord>, EntryError> {
        self.look(Entry::resize)
    }

    /// How much of its target path was there when it was staged, or used; `None` where nobody wrote it
    /// down.
    pub fn presence(&self) -> Result<Option<TargetPresence>, EntryError> {
        self.look(Entry::presence)
    }

    fn look<T>(
        &self,
        read: impl FnOnce(&Entry) -> Result<Option<T>, EntryError>,
    ) -> Result<Option<T>, EntryError> {
        let first = self.entries.first();
        first.map_or(Ok(None), |first| first.look(read))
    }

    /// Returns the volume with all its entries, for a caller that has its lock; `None` if the target path is unknown.
    pub fn into_volume(self) -> Result<Option<Volume>, EntryError> {
        let info = self.info?;
        let Some(target) = info.target_path.clone() else {
            return Ok(None);
        };
        let entries = self.entries.iter().map(EntryPlace::open);
        let entries: Result<Vec<Option<Entry>>, FileError> = entries.collect();
        Ok(Some(Volume {
            target,
            info,
            entries: entries?.into_iter().flatten().collect(),
        }))
    }
}

impl CrustDirectory {
    /// All that is staged, in the order of the volumes' digests.
    pub fn survey(&self) -> Result<Vec<FoundVolume>, FileError> {
        let mut found = match self.root.get()? {
            Some(root) => {
                let names = root.names()?;
                self.gather(root, names.iter().filter_map(|name| name.parse().ok()))
            }
            None => Vec::new(),
        };
        if let Some(kata) = &self.kata {
            // What a driver staged in both layouts is the crust directory's.
            let own: BTreeSet<Digest> = found.iter().map(|found| found.digest).collect();
            let katas = kata.survey()?.into_iter();
            found.extend(katas.filter(|kata| !own.contains(&kata.digest)));
        }
        found.sort_by_key(|found| found.digest);
        Ok(found)
    }

    /// The same volume once more; `None` where nothing of it is left.
    pub fn again(&self, found: &FoundVolume) -> Result<Option<FoundVolume>, FileError> {
        if found.is_kata_layout {
            let kata = self.kata.as_ref();
            return kata.map_or(Ok(None), |kata| kata.again(&found.place));
        }
        let Some(root) = self.root.get()? else {
            return Ok(None);
        };
        let mut names: Vec<Digest> = found.digests().collect();
        names.sort_unstable();
        names.dedup();
        let mut again = self.gather(root, names.into_iter()).into_iter();
        Ok(again.find(|it| it.digest == found.digest))
    }

    /// Removes every entry of a volume that was found in the crust directory, under its lock. The given
    /// path's goes first: what is left by a crash is a half that isn't staged.
    pub fn remove(&self, found: &FoundVolume) -> Result<(), FileError> {
        let mut entries = found.entries.iter();
        entries.try_for_each(|entry| self.root.remove_directory(&entry.name))
    }

    /// Finds temporary files in the directory and its entries.
    pub fn leftovers(&self, found: &mut LeftoverVisitor<'_>) {
        let root = match self.root.get() {
            Ok(Some(root)) => root,
            Ok(None) => return,
            Err(error) => return found(Err(error)),
        };
        root.leftovers(found);
        // Where they can't be had, that has been told.
        let names = root.names().unwrap_or_default().into_iter();
        for name in names.filter(|name| name.parse::<Digest>().is_ok()) {
            match root.open_directory(&name) {
                Ok(Some(entry)) => entry.leftovers(found),
                Ok(None) => {}
                Err(error) => found(Err(error)),
            }
        }
    }

    /// The entries of these names, by their volumes.
    fn gather(
        &self,
        root: &Arc<Directory>,
        names: impl Iterator<Item = Digest>,
    ) -> Vec<FoundVolume> {
        let mut volumes: BTreeMap<Digest, Vec<Readable>> = BTreeMap::new();
        let mut found = Vec::new();
        for name in names {
            match look_at(root, name) {
                Some(Ok(entry)) => volumes
                    .entry(entry.target.digest())
                    .or_default()
                    .push(entry),
                Some(Err(unreadable)) => found.push(*unreadable),
                None => {}
            }
        }
        for (digest, mut entries) in volumes {
            // The given path's counts.
            entries.sort_by_key(|entry| entry.name != digest);
            // Where that can't be read, it says itself what is wrong.
            let is_there = || !matches!(self.entry_named(&digest.to_string()), Ok(None));
            if entries[0].name == digest || !is_there() {
                found.push(together(root, digest, entries));
            }
        }
        found
    }
}

/// `None` where there is nothing.
fn look_at(root: &Arc<Directory>, name: Digest) -> Option<Result<Readable, Box<FoundVolume>>> {
    match read(root, name)? {
        // Perhaps it was being removed, or replaced.
        Err(_) => read(root, name),
        readable => Some(readable),
    }
}

fn read(root: &Arc<Directory>, name: Digest) -> Option<Result<Readable, Box<FoundVolume>>> {
    let place = EntryPlace {
        root: Arc::clone(root),
        name: name.to_string(),
        layout: EntryFormat::Crust,
    };
    let unreadable = |error, entries| {
        let found = FoundVolume::alone(name, place.path(), Err(error), entries);
        Some(Err(Box::new(found)))
    };
    let entry = match place.open() {
        Ok(entry) => entry?,
        Err(error) => return unreadable(error.into(), Vec::new()),
    };
    match entry.info() {
        Err(error) => unreadable(error, vec![place.clone()]),
        Ok(info) => match info.target_path.clone() {
            None => unreadable(nameless(&entry), vec![place.clone()]),
            Some(target) => Some(Ok(Readable {
                name,
                target,
                info,
                place,
            })),
        },
    }
}

fn together(root: &Directory, digest: Digest, entries: Vec<Readable>) -> FoundVolume {
    let first = &entries[0];
    let (place, info) = (first.place.path(), first.info.clone());
    let resolved = first.target.resolved();
    let resolved = resolved.as_ref().unwrap_or(&first.target).digest();
    let shape = if first.name != digest {
        Shape::Half
    } else if entries.iter().any(|entry| entry.name == resolved) {
        Shape::Whole
    } else {
        Shape::Lacks(root.path().join(resolved.to_string()))
    };
    let entries = entries.into_iter().map(|it| it.place).collect();
    FoundVolume {
        shape,
        ..FoundVolume::alone(digest, place, Ok(info), entries)
    }
}

/// An entry that names its target path.
struct Readable {
    name: Digest,
    target: TargetPath,
    info: MountInfo,
    place: EntryPlace,
}

impl FoundVolume {
    /// An entry that has no twin, or doesn't say which.
    pub(super) fn alone(
        digest: Digest,
        place: PathBuf,
        info: Result<MountInfo, EntryError>,
        entries: Vec<EntryPlace>,
    ) -> Self {
        Self {
            digest,
            info,
            shape: Shape::Whole,
            is_kata_layout: false,
            place,
            entries,
        }
    }
}

fn nameless(entry: &Entry) -> EntryError {
    EntryError::Info {
        path: entry.path(MOUNT_INFO),
        source: InfoError::Missing(TARGET_PATH),
    }
}
