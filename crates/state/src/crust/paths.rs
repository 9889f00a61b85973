//! The paths of one volume. Several paths may lead to its directory: the target path that it was staged by, the
//! resolved target path, and paths through other symbolic links. All of them name the same volume.

use super::entry::Entry;
use super::{CrustDirectory, EntryError};
use crate::target::{TargetLookup, TargetPath};

/// The paths of the volume at a directory, whether it is staged or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumePaths {
    /// The target path that the volume was staged by. If it isn't staged, the path that was looked up.
    pub target: TargetPath,
    /// Further paths that may have an entry of the volume: the resolved target path, the path that was looked up, and
    /// the resolved form of that path.
    pub others: Vec<TargetPath>,
}

impl VolumePaths {
    /// Returns all paths, the target path first.
    pub fn iter(&self) -> impl Iterator<Item = &TargetPath> {
        std::iter::once(&self.target).chain(&self.others)
    }
}

/// The volume that the entry of a path belongs to.
enum EntryVolume {
    NoEntry,
    /// The entry can't be read, or its target path doesn't lead to the path any more.
    Unknown,
    /// The target path of the volume.
    Target(TargetPath),
}

impl CrustDirectory {
    /// Returns the target path of the volume that `path` leads to: the one in the entry of `path` or, if that has no
    /// entry, in the entry of the resolved path. Returns `path` itself if neither entry exists or can be read.
    #[must_use]
    pub fn staged_target(&self, path: &TargetPath) -> TargetPath {
        self.find_target(path, || path.resolved().ok())
    }

    fn find_target(
        &self,
        path: &TargetPath,
        resolved: impl FnOnce() -> Option<TargetPath>,
    ) -> TargetPath {
        let mut volume = self.entry_volume(path);
        if matches!(volume, EntryVolume::NoEntry)
            && let Some(resolved) = resolved().filter(|resolved| resolved != path)
        {
            volume = self.entry_volume(&resolved);
        }
        match volume {
            EntryVolume::Target(target) => target,
            EntryVolume::NoEntry | EntryVolume::Unknown => path.clone(),
        }
    }

    /// Returns the paths of the volume that `path` leads to. A caller that adds or removes one of its entries has to
    /// hold the locks of all these paths.
    #[must_use]
    pub fn volume_paths(&self, path: &TargetPath) -> VolumePaths {
        let lookup = path.look_up();
        let target = self.find_target(path, || lookup.resolved().ok());
        let mut others = lookup.spellings();
        if target != *path {
            others.splice(0..0, target.look_up().spellings());
        }
        let mut seen = vec![target.clone()];
        others.retain(|other| {
            let is_new = !seen.contains(other);
            seen.push(other.clone());
            is_new
        });
        VolumePaths { target, others }
    }

    /// Returns whether the entry of a path belongs to another volume than the one with the target path `target`.
    #[must_use]
    pub fn belongs_to_other_volume(&self, path: &TargetPath, target: &TargetPath) -> bool {
        self.recorded_target(path)
            .is_some_and(|recorded| recorded != *target)
    }

    /// Fails if the entry of a target path, or of the resolved path, belongs to another volume. This happens if two
    /// directories were staged, and one of them was then replaced by a symbolic link to the other.
    pub(super) fn check_no_other_volume(
        &self,
        lookup: &TargetLookup<'_>,
    ) -> Result<(), EntryError> {
        let target = lookup.path();
        for path in lookup.spellings() {
            if let Some(other) = self.recorded_target(&path).filter(|other| other != target) {
                return Err(EntryError::OtherVolume {
                    target: target.clone(),
                    other,
                });
            }
        }
        Ok(())
    }

    fn entry_volume(&self, path: &TargetPath) -> EntryVolume {
        match self.entry(path) {
            Ok(Some(entry)) => {
                read_target(&entry, path).map_or(EntryVolume::Unknown, EntryVolume::Target)
            }
            Ok(None) => match self.kata.as_ref().map(|kata| kata.entry(path)) {
                None | Some(Ok(None)) => EntryVolume::NoEntry,
                Some(Ok(Some((target, _)))) => EntryVolume::Target(target),
                Some(Err(_)) => EntryVolume::Unknown,
            },
            Err(_) => EntryVolume::Unknown,
        }
    }

    /// Returns the target path in the entry of exactly this path, in the crust directory alone.
    fn recorded_target(&self, path: &TargetPath) -> Option<TargetPath> {
        read_target(&self.entry(path).ok()??, path)
    }
}

/// Returns the target path in the entry of `path`. Returns `None` if the entry can't be read, or if its target path
/// doesn't lead to `path` any more.
fn read_target(entry: &Entry, path: &TargetPath) -> Option<TargetPath> {
    let target = entry.info().ok()?.target_path;
    let target = target.unwrap_or_else(|| path.clone());
    // A target path that can't be resolved is taken to be unchanged.
    let leads_here =
        || target == *path || target.resolved().map_or(true, |resolved| resolved == *path);
    leads_here().then_some(target)
}
