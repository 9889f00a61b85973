//! The directory where CSI drivers stage volumes for Kata Containers (`src/runtime/pkg/direct-volume` in Kata's
//! sources). It has one directory for each target path, whose name is the path in padded base64url.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::prelude::{BASE64_URL_SAFE as URL_SAFE, Engine as _};

use super::entry::{Entry, EntryFormat, EntryLocation};
use super::survey::SurveyedVolume;
use super::{EntryError, Volume};
use crate::files::{Directory, FileError, LazyDirectory};
use crate::info::MountInfo;
use crate::target::TargetPath;

/// The path of the directory, a constant in Kata.
pub(super) const ROOT: &str = "/run/kata-containers/shared/direct-volumes";

/// The largest length of a file name in bytes.
const NAME_MAX: usize = 255;

/// Kata's directory of staged volumes. Drivers write it. runcrust only adds its own files to the entries.
#[derive(Debug)]
pub(super) struct KataDirectory {
    root: LazyDirectory,
    /// The kubelet directories whose paths have symbolic links, each with its resolved path.
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

    /// Returns whether a driver may have staged a volume for Kata.
    pub(super) fn may_hold_volumes(&self) -> Result<bool, FileError> {
        self.root.may_hold_entries()
    }

    /// Returns the volume whose target path is `path`, or resolves to `path`.
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

    /// Finds all volumes that drivers have staged.
    pub(super) fn survey(&self) -> Result<Vec<SurveyedVolume>, FileError> {
        let Some(root) = self.root.get()? else {
            return Ok(Vec::new());
        };
        let names = root.names()?.into_iter();
        Ok(names.filter_map(|name| surveyed(root, name)).collect())
    }

    /// Returns the target paths of all entries, each also in its resolved form.
    pub(super) fn paths(&self) -> Result<Vec<TargetPath>, FileError> {
        let Some(root) = self.root.get()? else {
            return Ok(Vec::new());
        };
        let names = root.names()?;
        let targets = names.iter().filter_map(|name| target(name));
        Ok(targets
            .flat_map(|target| target.look_up().spellings())
            .collect())
    }

    /// Reads one entry of a survey again. Returns `None` if it doesn't exist any more.
    pub(super) fn survey_again(&self, entry: &Path) -> Result<Option<SurveyedVolume>, FileError> {
        let name = entry.file_name().and_then(|name| name.to_str());
        let root = self.root.get()?;
        Ok(root
            .zip(name)
            .and_then(|(root, name)| surveyed(root, name.into())))
    }

    /// Returns the entry of a path, and the target path that it was staged with. Drivers stage by the target path
    /// alone, while containerd and CRI-O pass the resolved path on.
    pub(super) fn entry(
        &self,
        path: &TargetPath,
    ) -> Result<Option<(TargetPath, Entry)>, FileError> {
        if let Some(entry) = self.entry_named_after(path)? {
            return Ok(Some((path.clone(), entry)));
        }
        for target in self.unresolved(path) {
            if let Some(entry) = self.entry_named_after(&target)? {
                return Ok(Some((target, entry)));
            }
        }
        Ok(None)
    }

    /// Removes the entry of a path, as Kata's `direct-volume remove` does. If the path has none, removes the entry
    /// whose target path resolves to it.
    pub(super) fn remove(&self, target: &TargetPath) -> Result<(), FileError> {
        let mut paths = vec![target.clone()];
        if matches!(self.entry_named_after(target), Ok(None)) {
            paths.extend(self.unresolved(target));
        }
        for name in paths.iter().filter_map(name) {
            self.root.remove_directory(&name)?;
        }
        Ok(())
    }

    /// Returns the paths that resolve to `path` through a symbolic link to a kubelet directory. Other links aren't
    /// known.
    fn unresolved(&self, path: &TargetPath) -> impl Iterator<Item = TargetPath> {
        self.links.iter().filter_map(|(given, real)| {
            let below = path.as_path().strip_prefix(real).ok()?;
            let target = TargetPath::new(given.join(below)).ok()?;
            let resolved = target.resolved().ok()?;
            (resolved == *path).then_some(target)
        })
    }

    fn entry_named_after(&self, path: &TargetPath) -> Result<Option<Entry>, FileError> {
        let Some(name) = name(path) else {
            return Ok(None);
        };
        let directory = self.root.open_directory(&name)?;
        Ok(directory.map(|directory| Entry {
            directory,
            format: EntryFormat::Kata,
        }))
    }
}

/// Reads the entry with a name. Returns `None` if the name doesn't encode a path, or if the entry doesn't exist any
/// more.
fn surveyed(root: &Arc<Directory>, name: String) -> Option<SurveyedVolume> {
    let target = target(&name)?;
    let location = EntryLocation {
        root: Arc::clone(root),
        name,
        format: EntryFormat::Kata,
    };
    let (path, digest) = (location.path(), target.digest());
    let (info, entries) = match location.open() {
        Ok(entry) => {
            let info = entry?.info().map(|info| MountInfo {
                target_path: Some(target),
                ..info
            });
            (info, vec![location])
        }
        Err(error) => (Err(error.into()), Vec::new()),
    };
    Some(SurveyedVolume {
        is_kata_layout: true,
        ..SurveyedVolume::single(digest, path, info, entries)
    })
}

/// Returns the name of the entry of a path; `None` if the path is too long to have one.
fn name(path: &TargetPath) -> Option<String> {
    let name = URL_SAFE.encode(path.as_path().as_os_str().as_encoded_bytes());
    (name.len() <= NAME_MAX).then_some(name)
}

/// Returns the path that an entry's name encodes; `None` for another name.
fn target(name: &str) -> Option<TargetPath> {
    let path = OsString::from_vec(URL_SAFE.decode(name).ok()?);
    // A path that isn't normalised is rejected: a lookup by the normalised path wouldn't find its entry.
    TargetPath::new(&path)
        .ok()
        .filter(|target| target.as_path() == Path::new(&path))
}

#[cfg(test)]
mod tests;
