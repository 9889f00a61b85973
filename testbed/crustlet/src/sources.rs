//! The directories of manifests, which say what is desired, as for kubelet's static pods.

mod file;
mod trusted;
mod write;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use crate::objects::{Kind, Name, Objects};

use file::ManifestFile;

pub(crate) use write::{Outcome, WriteError, Written, apply, delete, remove, tidy};

/// In bytes: the API server's own limit is 1.5 MiB an object.
const LARGEST: u64 = 3 << 20;

/// A directory or a file of it that can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub(crate) struct SourceError {
    pub(crate) path: PathBuf,
    pub(crate) reason: String,
}

/// Where an object is written down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The file.
    pub(crate) path: PathBuf,
    /// Whether it has no other object.
    pub(crate) is_alone: bool,
    /// When it was written last.
    pub(crate) written: SystemTime,
}

/// All that is written down, at one moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Loaded {
    /// It.
    pub(crate) objects: Arc<Objects>,
    /// Where each is.
    pub(crate) origins: BTreeMap<(Kind, Name), Origin>,
    /// Whether every directory was there and each of its files could be read, at least once: until then there may
    /// be more.
    pub(crate) is_complete: bool,
    /// What couldn't be used.
    pub(crate) errors: Vec<SourceError>,
    /// When to look again, though nobody tells of a change: something is less than it was.
    pub(crate) again: Option<Duration>,
}

/// Directories, and what was read there.
#[derive(Debug)]
pub(crate) struct Directories {
    directories: Vec<Directory>,
}

#[derive(Debug)]
struct Directory {
    path: PathBuf,
    /// Whether it was ever read whole.
    is_known: bool,
    /// Its device's number and its own.
    place: Option<(u64, u64)>,
    files: BTreeMap<PathBuf, ManifestFile>,
}

impl Directories {
    /// Not read yet.
    pub(crate) fn new(paths: &[PathBuf]) -> Self {
        let directory = |path: &PathBuf| Directory {
            path: path.clone(),
            is_known: false,
            place: None,
            files: BTreeMap::new(),
        };
        Self {
            directories: paths.iter().map(directory).collect(),
        }
    }

    /// What is there now; `gone` are files that were taken away here.
    ///
    /// A file that can't be read any more counts as it was: whoever wrote it half will write it whole, and no pod is
    /// ended meanwhile. So does one that is gone, empty, or has lost an object, until it has stayed so for a moment:
    /// editors write that way.
    pub(crate) fn read(&mut self, gone: &[PathBuf], now: Instant) -> Loaded {
        let mut loaded = Loaded::default();
        for directory in &mut self.directories {
            directory.files.retain(|path, _| !gone.contains(path));
            directory.read(&mut loaded, now);
        }
        loaded.is_complete = self.directories.iter().all(|it| it.is_known);
        let mut objects = Objects::default();
        let files = || self.directories.iter().flat_map(|it| &it.files);
        let all = files().flat_map(|(path, known)| {
            let manifests = known.manifests().iter();
            manifests.map(move |it| (path, known, it))
        });
        // Who was moved from one file to another is where nobody doubts it.
        let (doubted, sure): (Vec<_>, Vec<_>) =
            all.partition(|(_, known, it)| known.doubts(it.kind, &it.name));
        let doubted = doubted.into_iter().map(|it| (it, true));
        for ((path, known, manifest), is_doubted) in
            sure.into_iter().map(|it| (it, false)).chain(doubted)
        {
            let key = (manifest.kind, manifest.name.clone());
            match loaded.origins.get(&key) {
                Some(_) if is_doubted => {}
                Some(origin) => {
                    let (kind, name, other) = (key.0, key.1, origin.path.display());
                    let reason = format!("{kind} {name} is in {other} too, and that counts");
                    loaded.errors.push(error(path, reason));
                }
                None => {
                    let origin = Origin {
                        path: path.clone(),
                        is_alone: known.manifests().len() == 1,
                        written: known.written(),
                    };
                    loaded.origins.insert(key, origin);
                    objects.insert(manifest.clone());
                }
            }
        }
        loaded.objects = Arc::new(objects);
        loaded
    }
}

impl Directory {
    fn read(&mut self, loaded: &mut Loaded, now: Instant) {
        let names = match self.names() {
            Ok(names) => names,
            // Those that were known still count: a directory that is gone was replaced, or unmounted.
            Err(reason) => return loaded.errors.push(error(&self.path, reason)),
        };
        for path in names {
            self.files.entry(path).or_default();
        }
        let mut again = loaded.again;
        self.files.retain(|path, known| {
            let pause = known.look(path, now);
            again = [again, pause].into_iter().flatten().min();
            if let Some(reason) = known.error() {
                loaded.errors.push(error(path, reason.to_owned()));
            }
            !known.is_gone()
        });
        loaded.again = again;
        self.is_known |= self.files.values().all(ManifestFile::was_read);
    }

    fn names(&mut self) -> Result<Vec<PathBuf>, String> {
        trusted::directory(&self.path)?;
        let listed = list(&self.path).map_err(|failed| failed.to_string())?;
        let place = fs::metadata(&self.path).map_err(|failed| failed.to_string())?;
        let place = (place.dev(), place.ino());
        let is_other = self.place.is_some_and(|before| before != place);
        if is_other && listed.is_empty() && !self.files.is_empty() {
            return Err("it is another directory than before, with nothing in it, and what was there still counts; hint: is something to be mounted there? Delete what is not wanted any more by `crustlet delete`, or restart crustlet".to_owned());
        }
        self.place = Some(place);
        Ok(listed)
    }
}

fn error(path: &Path, reason: String) -> SourceError {
    SourceError {
        path: path.to_owned(),
        reason,
    }
}

/// Manifests by their names; editors' and kubelet's own dot-files are none.
fn list(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let is_hidden = path
            .file_name()
            .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        let extension = path.extension().and_then(|it| it.to_str());
        if !is_hidden && matches!(extension, Some("yaml" | "yml" | "json")) {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests;
