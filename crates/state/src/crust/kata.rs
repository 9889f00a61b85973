//! The directory where CSI drivers stage volumes for Kata Containers (its `src/runtime/pkg/direct-volume`): one
//! directory for each target path, named by the path itself in padded base64url.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::prelude::{BASE64_URL_SAFE as URL_SAFE, Engine as _};

use super::entry::{Entry, EntryFormat, EntryPlace};
use super::survey::FoundVolume;
use super::{EntryError, Volume};
use crate::files::{Directory, FileError, LazyDirectory};
use crate::info::MountInfo;
use crate::target::TargetPath;

/// Kata's own constant.
pub(super) const ROOT: &str = "/run/kata-containers/shared/direct-volumes";

/// The longest name that a directory's entry can have.
const NAME_MAX: usize = 255;

/// Kata's directory of volumes. Drivers write it; of the runtime's there are only the files that it
/// keeps in an entry.
#[derive(Debug)]
pub(super) struct KataDirectory {
    root: LazyDirectory,
    /// Kubelet's directories that lie behind symbolic links, and where those lead.
    links: Vec<(PathBuf, PathBuf)>,
}

impl KataDirectory {
    pub(super) fn new(root: &Path, kubelet_dirs: &[PathBuf]) -> Self {
        let links = kubelet_dirs.iter().filter_map(|given| {
            let real = given.canonicalize().ok()?;
            (real != *given).then(|| (given.clone(), real))
        });
        Self {
            root: LazyDirectory::new(root),
            links: links.collect(),
        }
    }

    /// Whether a driver may have staged a volume for Kata.
    pub(super) fn may_hold_volumes(&self) -> Result<bool, FileError> {
        self.root.may_hold_anything()
    }

    /// The volume that `path` is the target path of, or the resolved form of the target path of.
    pub(super) fn volume(&self, path: &TargetPath) -> Result<Option<Volume>, EntryError> {
        let Some((target, entry)) = self.entry(path)? else {
            return Ok(None);
        };
        let info = MountInfo {
            target_path: Some(target.clone()),
            ..entry.info()?
        };
        let entries = vec![entry];
        Ok(Some(Volume {
            target,
            info,
            entries,
        }))
    }

    /// All that drivers staged, by the target paths that they staged it with.
    pub(super) fn survey(&self) -> Result<Vec<FoundVolume>, FileError> {
        let Some(root) = self.root.get()? else {
            return Ok(Vec::new());
        };
        let names = root.names()?.into_iter();
        Ok(names.filter_map(|name| found(root, name)).collect())
    }

    /// The paths that there is something at, in each form that they are found by.
    pub(super) fn paths(&self) -> Result<Vec<TargetPath>, FileError> {
        let Some(root) = self.root.get()? else {
            return Ok(Vec::new());
        };
        let names = root.names()?;
        let targets = names.iter().filter_map(|name| target(name));
        Ok(targets
            .flat_map(|target| target.look().spellings())
            .collect())
    }

    /// Reads one place of a survey again; `None` if nothing is there any more.
    pub(super) fn again(&self, place: &Path) -> Result<Option<FoundVolume>, FileError> {
        let name = place.file_name().and_then(|name| name.to_str());
        let root = self.root.get()?;
        Ok(root
            .zip(name)
            .and_then(|(root, name)| found(root, name.into())))
    }

    /// The entry of a path, and the target path that it was staged with. Drivers know no other
    /// form of it, while containerd and CRI-O hand on the resolved one.
    pub(super) fn entry(
        &self,
        path: &TargetPath,
    ) -> Result<Option<(TargetPath, Entry)>, FileError> {
        if let Some(entry) = self.exactly(path)? {
            return Ok(Some((path.clone(), entry)));
        }
        for target in self.unresolved(path) {
            if let Some(entry) = self.exactly(&target)? {
                return Ok(Some((target, entry)));
            }
        }
        Ok(None)
    }

    /// Removes a volume's entry, as Kata's own `direct-volume remove` does: that of the target path or, if it has
    /// none, the one that it is found by.
    pub(super) fn remove(&self, target: &TargetPath) -> Result<(), FileError> {
        let mut paths = vec![target.clone()];
        if matches!(self.exactly(target), Ok(None)) {
            paths.extend(self.unresolved(target));
        }
        for name in paths.iter().filter_map(name) {
            self.root.remove_directory(&name)?;
        }
        Ok(())
    }

    /// What a path was before it was resolved, where that went over the link to a kubelet's
    /// directory: of other links nothing is known.
    fn unresolved(&self, path: &TargetPath) -> impl Iterator<Item = TargetPath> {
        self.links.iter().filter_map(|(given, real)| {
            let below = path.as_path().strip_prefix(real).ok()?;
            let target = TargetPath::new(given.join(below)).ok()?;
            let resolved = target.resolved().ok()?;
            (resolved == *path).then_some(target)
        })
    }

    fn exactly(&self, path: &TargetPath) -> Result<Option<Entry>, FileError> {
        let Some(name) = name(path) else {
            return Ok(None);
        };
        let directory = self.root.open_directory(&name)?;
        Ok(directory.map(|directory| Entry {
            directory,
            layout: EntryFormat::Kata,
        }))
    }
}

/// Reads the entry with a name; `None` if the name isn't a path's, or the entry is gone.
fn found(root: &Arc<Directory>, name: String) -> Option<FoundVolume> {
    let target = target(&name)?;
    let place = EntryPlace {
        root: Arc::clone(root),
        name,
        layout: EntryFormat::Kata,
    };
    let (path, digest) = (place.path(), target.digest());
    let (info, entries) = match place.open() {
        Ok(entry) => {
            let info = entry?.info().map(|info| MountInfo {
                target_path: Some(target),
                ..info
            });
            (info, vec![place])
        }
        Err(error) => (Err(error.into()), Vec::new()),
    };
    Some(FoundVolume {
        is_kata_layout: true,
        ..FoundVolume::alone(digest, path, info, entries)
    })
}

/// Returns the name of a path's entry; `None` for a path that is too long to have one.
fn name(path: &TargetPath) -> Option<String> {
    let name = URL_SAFE.encode(path.as_path().as_os_str().as_encoded_bytes());
    (name.len() <= NAME_MAX).then_some(name)
}

/// The path that an entry is called after.
fn target(name: &str) -> Option<TargetPath> {
    let path = OsString::from_vec(URL_SAFE.decode(name).ok()?);
    // In no other spelling would it be found again.
    TargetPath::new(&path)
        .ok()
        .filter(|target| target.as_path() == Path::new(&path))
}

#[cfg(test)]
mod tests;
