//! The paths of one volume. A directory may be reached by several: the one that its volume was staged by, that one
//! with its links resolved, and others over other links. They all name the same volume.

use super::entry::Entry;
use super::{CrustDirectory, EntryError};
use crate::target::{TargetLookup, TargetPath};

/// The paths of the volume at a directory, whether it is staged or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    /// The target path that the volume was staged by, or would be.
    pub target: TargetPath,
    /// Further paths at which entries of the volume may stand: the resolved form, and the path that was asked about.
    pub others: Vec<TargetPath>,
}

impl Paths {
    /// Returns all of them, the target path first.
    pub fn iter(&self) -> impl Iterator<Item = &TargetPath> {
        std::iter::once(&self.target).chain(&self.others)
    }
}

/// The volume that the entry of a path belongs to.
enum Owner {
    NoEntry,
    /// The entry can't be read, or its target path leads elsewhere by now.
    Unknown,
    /// The volume with this target path.
    Volume(TargetPath),
}

impl CrustDirectory {
    /// Returns the target path that the volume at a directory was staged by, whichever path leads there: the one in
    /// the entry of `path` or, if that has no entry, of its resolved form. Returns `path` where neither tells.
    #[must_use]
    pub fn target_of(&self, path: &TargetPath) -> TargetPath {
        self.target_by(path, || path.resolved().ok())
    }

    fn target_by(
        &self,
        path: &TargetPath,
        resolved: impl FnOnce() -> Option<TargetPath>,
    ) -> TargetPath {
        let mut owner = self.owner_at(path);
        if matches!(owner, Owner::NoEntry)
            && let Some(resolved) = resolved().filter(|resolved| resolved != path)
        {
            owner = self.owner_at(&resolved);
        }
        match owner {
            Owner::Volume(target) => target,
            Owner::NoEntry | Owner::Unknown => path.clone(),
        }
    }

    /// Returns the paths of the volume that `path` leads to. Whoever adds or removes one of its entries holds the
    /// locks of all of them.
    #[must_use]
    pub fn paths_of(&self, path: &TargetPath) -> Paths {
        let look = path.look();
        let target = self.target_by(path, || look.resolved().ok());
        let mut others = look.spellings();
        if target != *path {
            others.splice(0..0, target.look().spellings());
        }
        let mut seen = vec![target.clone()];
        others.retain(|other| {
            let is_new = !seen.contains(other);
            seen.push(other.clone());
            is_new
        });
        Paths { target, others }
    }

    /// Whether the entry of a path belongs to another volume than that of `target`.
    #[must_use]
    pub fn is_anothers(&self, path: &TargetPath, target: &TargetPath) -> bool {
        self.own_target_at(path)
            .is_some_and(|owner| owner != *target)
    }

    /// Fails where the entry of a target path, or of its resolved form, is another volume's: two directories were
    /// staged, and a link was made to lead from one to the other since.
    pub(super) fn check_own(&self, look: &TargetLookup<'_>) -> Result<(), EntryError> {
        let target = look.path();
        for path in look.spellings() {
            if let Some(other) = self.own_target_at(&path).filter(|it| it != target) {
                return Err(EntryError::OtherVolume {
                    target: target.clone(),
                    other,
                });
            }
        }
        Ok(())
    }

    fn owner_at(&self, path: &TargetPath) -> Owner {
        match self.entry(path) {
            Ok(Some(entry)) => owner(&entry, path).map_or(Owner::Unknown, Owner::Volume),
            Ok(None) => match self.kata.as_ref().map(|kata| kata.entry(path)) {
                None | Some(Ok(None)) => Owner::NoEntry,
                Some(Ok(Some((target, _)))) => Owner::Volume(target),
                Some(Err(_)) => Owner::Unknown,
            },
            Err(_) => Owner::Unknown,
        }
    }

    /// Returns the target path of the volume that the entry of exactly this path in the crust directory belongs to.
    fn own_target_at(&self, path: &TargetPath) -> Option<TargetPath> {
        owner(&self.entry(path).ok()??, path)
    }
}

/// Returns the target path of the volume that the entry of a path belongs to; `None` for an entry that can't be read,
/// or whose target path leads elsewhere by now.
fn owner(entry: &Entry, path: &TargetPath) -> Option<TargetPath> {
    let target = entry.info().ok()?.target_path;
    let target = target.unwrap_or_else(|| path.clone());
    // Where that can't be told, it counts as it was.
    let leads_here =
        || target == *path || target.resolved().map_or(true, |resolved| resolved == *path);
    leads_here().then_some(target)
}
