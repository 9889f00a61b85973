//! The paths of one volume. A directory may be reached by several: the one that its volume was staged by, that one
//! with its links resolved, and others over other links. They all name the same volume.

use super::{CrustDirectory, EntryError};
use crate::target::{Look, TargetPath};

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

impl CrustDirectory {
    /// Returns the target path that the volume at a directory was staged by, whichever path leads there: the one in
    /// the entry of `path` or, if that has no entry, of its resolved form. Returns `path` where neither tells.
    #[must_use]
    pub fn target_of(&self, path: &TargetPath) -> TargetPath {
        let resolved = || {
            let is_absent = matches!(self.has_entry(path), Ok(false));
            let resolved = is_absent.then(|| path.resolved().ok())??;
            (resolved != *path).then_some(resolved)
        };
        self.target_at(path)
            .or_else(|| self.target_at(&resolved()?))
            .unwrap_or_else(|| path.clone())
    }

    /// Returns the paths of the volume that `path` leads to. Whoever adds or removes one of its entries holds the
    /// locks of all of them.
    #[must_use]
    pub fn paths_of(&self, path: &TargetPath) -> Paths {
        let target = self.target_of(path);
        let mut others = Vec::new();
        let asked = (*path != target).then_some(path);
        let looks = [Some(&target), asked].into_iter().flatten();
        for other in looks.flat_map(|path| path.look().spellings()) {
            if other != target && !others.contains(&other) {
                others.push(other);
            }
        }
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
    pub(super) fn check_own(&self, look: &Look<'_>) -> Result<(), EntryError> {
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

    fn target_at(&self, path: &TargetPath) -> Option<TargetPath> {
        let katas = || Some(self.kata.as_ref()?.entry(path).ok()??.0);
        self.own_target_at(path).or_else(katas)
    }

    /// Returns the target path of the volume that the entry of exactly this path in the crust directory belongs to;
    /// `None` without an entry, and for one that can't be read or whose target path leads elsewhere by now.
    fn own_target_at(&self, path: &TargetPath) -> Option<TargetPath> {
        let info = self.entry(path).ok()??.info().ok()?;
        let target = info.target_path.unwrap_or_else(|| path.clone());
        // Where that can't be told, it counts as it was.
        let leads_here =
            || target == *path || target.resolved().map_or(true, |resolved| resolved == *path);
        leads_here().then_some(target)
    }
}
