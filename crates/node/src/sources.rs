//! Directories of manifests: what is wanted, as kubelet's static pods are.

mod trusted;
mod write;

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use crust_state::bounded;

use crate::objects::manifest::{self, Manifest};
use crate::objects::{Kind, Name, Objects};

pub(crate) use write::{Outcome, Standing, WriteError, apply, delete, remove, tidy};

/// In bytes: the API server's own limit is 1.5 MiB an object.
const LARGEST: u64 = 3 << 20;

/// A directory or a file of it that can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub(crate) struct SourceError {
    /// Which.
    pub(crate) path: PathBuf,
    /// Why.
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
    files: BTreeMap<PathBuf, Known>,
}

/// A file.
#[derive(Debug)]
struct Known {
    stamp: Option<Stamp>,
    written: SystemTime,
    /// As it was when it could be read last; `None` where it never could.
    manifests: Option<Arc<[Manifest]>>,
    error: Option<String>,
}

/// Tells one state of a file from the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp([i64; 4], u64, u64);

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        let times = [
            metadata.mtime(),
            metadata.mtime_nsec(),
            metadata.ctime(),
            metadata.ctime_nsec(),
        ];
        Self(times, metadata.ino(), metadata.len())
    }
}

impl Directories {
    /// Not read yet.
    pub(crate) fn new(paths: &[PathBuf]) -> Self {
        let directory = |path: &PathBuf| Directory {
            path: path.clone(),
            is_known: false,
            files: BTreeMap::new(),
        };
        Self {
            directories: paths.iter().map(directory).collect(),
        }
    }

    /// What is there now. A file that can't be read any more counts as it was: whoever wrote it half will write
    /// it whole, and no pod is ended meanwhile.
    pub(crate) fn read(&mut self) -> Loaded {
        let mut loaded = Loaded::default();
        for directory in &mut self.directories {
            directory.read(&mut loaded.errors);
        }
        loaded.is_complete = self.directories.iter().all(|it| it.is_known);
        let mut objects = Objects::default();
        for (path, known) in self.directories.iter().flat_map(|it| &it.files) {
            let manifests = known.manifests.iter().flat_map(|it| it.iter());
            for manifest in manifests {
                let key = (manifest.kind, manifest.name.clone());
                if let Some(origin) = loaded.origins.get(&key) {
                    let (kind, name, other) = (key.0, key.1, origin.path.display());
                    let reason = format!("{kind} {name} is in {other} too, and that counts");
                    loaded.errors.push(error(path, reason));
                    continue;
                }
                let origin = Origin {
                    path: path.clone(),
                    is_alone: known.manifests.as_ref().is_some_and(|it| it.len() == 1),
                    written: known.written,
                };
                loaded.origins.insert(key, origin);
                objects.insert(manifest.clone());
            }
        }
        loaded.objects = Arc::new(objects);
        loaded
    }
}

impl Directory {
    fn read(&mut self, errors: &mut Vec<SourceError>) {
        if let Err(reason) = trusted::directory(&self.path) {
            return errors.push(error(&self.path, reason));
        }
        let names = match list(&self.path) {
            Ok(names) => names,
            // Those that were known still count: a directory that is gone was replaced, or unmounted.
            Err(failed) => return errors.push(error(&self.path, failed.to_string())),
        };
        self.files.retain(|path, _| names.contains(path));
        for path in names {
            let known = self.files.entry(path.clone()).or_insert(Known {
                stamp: None,
                written: SystemTime::UNIX_EPOCH,
                manifests: None,
                error: None,
            });
            match fs::symlink_metadata(&path) {
                // It has gone since.
                Err(failed) if failed.kind() == io::ErrorKind::NotFound => {
                    self.files.remove(&path);
                    continue;
                }
                Err(failed) => known.error = Some(failed.to_string()),
                Ok(it) if !it.is_file() => {
                    known.error = Some("it is no regular file".to_owned());
                }
                Ok(it) if known.stamp == Some(Stamp::of(&it)) => {}
                Ok(it) => match trusted::file(&path, &it) {
                    Ok(()) => known.take(&path, &it),
                    Err(reason) => known.error = Some(reason),
                },
            }
            if let Some(reason) = &known.error {
                errors.push(error(&path, reason.clone()));
            }
        }
        self.is_known |= self.files.values().all(|it| it.manifests.is_some());
    }
}

impl Known {
    fn take(&mut self, path: &Path, metadata: &Metadata) {
        let read = bounded::read_to_string(path, LARGEST).map_err(|error| error.to_string());
        match read.and_then(|text| manifest::read(&text).map_err(|error| error.to_string())) {
            Ok(manifests) => {
                self.manifests = Some(manifests.into());
                self.error = None;
            }
            Err(reason) => self.error = Some(reason),
        }
        self.stamp = Some(Stamp::of(metadata));
        self.written = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
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
