//! The manifest directories. They define the desired state, as kubelet's static pods do.

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

pub(crate) use write::{
    ApplyOutcome, CurrentState, WriteError, apply, delete, remove, remove_temporary_files,
};

/// The largest manifest file, in bytes. The API server's limit is 1.5 MiB for one object.
const MAX_FILE_SIZE: u64 = 3 << 20;

/// The reason why a manifest directory, or a file in one, can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub(crate) struct SourceError {
    pub(crate) path: PathBuf,
    pub(crate) reason: String,
}

/// The file that an object comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) path: PathBuf,
    /// Whether the file contains no other object.
    pub(crate) is_only_object: bool,
    /// The file's modification time.
    pub(crate) modified: SystemTime,
}

/// The manifests of all directories.
#[derive(Debug, Clone, Default)]
pub(crate) struct LoadedManifests {
    pub(crate) objects: Arc<Objects>,
    /// The file of each object.
    pub(crate) origins: BTreeMap<(Kind, Name), Origin>,
    /// Whether every directory and every file in it could be read at least once. Until then there may be more objects.
    pub(crate) is_complete: bool,
    /// The directories and files that can't be used now.
    pub(crate) errors: Vec<SourceError>,
    /// The time after which to read again even without a notification. It is set if objects have disappeared, because
    /// that is accepted only after a delay.
    pub(crate) retry_after: Option<Duration>,
}

/// The manifest directories, and the last readable contents of their files.
#[derive(Debug)]
pub(crate) struct ManifestDirectories {
    directories: Vec<Directory>,
}

#[derive(Debug)]
struct Directory {
    path: PathBuf,
    /// Whether all files could be read at least once.
    was_read: bool,
    /// The numbers of the device and the inode.
    identity: Option<(u64, u64)>,
    files: BTreeMap<PathBuf, ManifestFile>,
}

impl ManifestDirectories {
    /// Returns the directories. Nothing is read yet.
    pub(crate) fn new(paths: &[PathBuf]) -> Self {
        let directory = |path: &PathBuf| Directory {
            path: path.clone(),
            was_read: false,
            identity: None,
            files: BTreeMap::new(),
        };
        Self {
            directories: paths.iter().map(directory).collect(),
        }
    }

    /// Reads the directories. `removed` are files that crustlet has removed itself.
    ///
    /// A file that can't be read any more keeps its last contents, so that no pod ends while a file is being written. A
    /// file that is gone or empty, or lacks an object that it had, also keeps its last contents at first, because
    /// editors write files in this way. The loss is accepted after a delay.
    pub(crate) fn read(&mut self, removed: &[PathBuf], now: Instant) -> LoadedManifests {
        let mut loaded = LoadedManifests::default();
        for directory in &mut self.directories {
            directory.files.retain(|path, _| !removed.contains(path));
            directory.read(&mut loaded, now);
        }
        loaded.is_complete = self.directories.iter().all(|directory| directory.was_read);
        let mut objects = Objects::default();
        let files = || {
            self.directories
                .iter()
                .flat_map(|directory| &directory.files)
        };
        let all = files().flat_map(|(path, file)| {
            let manifests = file.manifests().iter();
            manifests.map(move |manifest| (path, file, manifest))
        });
        // An object that was moved to another file is taken from the file that certainly contains it.
        let (uncertain, certain): (Vec<_>, Vec<_>) =
            all.partition(|(_, file, manifest)| file.may_have_lost(manifest.kind, &manifest.name));
        let uncertain = uncertain.into_iter().map(|entry| (entry, true));
        for ((path, file, manifest), is_uncertain) in certain
            .into_iter()
            .map(|entry| (entry, false))
            .chain(uncertain)
        {
            let key = (manifest.kind, manifest.name.clone());
            match loaded.origins.get(&key) {
                Some(_) if is_uncertain => {}
                Some(origin) => {
                    let (kind, name, other) = (key.0, key.1, origin.path.display());
                    let reason =
                        format!("{kind} {name} is also in {other}, which takes precedence");
                    loaded.errors.push(error(path, reason));
                }
                None => {
                    let origin = Origin {
                        path: path.clone(),
                        is_only_object: file.manifests().len() == 1,
                        modified: file.modified(),
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
    fn read(&mut self, loaded: &mut LoadedManifests, now: Instant) {
        let paths = match self.list() {
            Ok(paths) => paths,
            // The known files are kept, because the directory may come back: after it was replaced, or mounted again.
            Err(reason) => return loaded.errors.push(error(&self.path, reason)),
        };
        for path in paths {
            self.files.entry(path).or_default();
        }
        let mut retry_after = loaded.retry_after;
        self.files.retain(|path, file| {
            let delay = file.refresh(path, now);
            retry_after = [retry_after, delay].into_iter().flatten().min();
            if let Some(reason) = file.error() {
                loaded.errors.push(error(path, reason.to_owned()));
            }
            !file.is_gone()
        });
        loaded.retry_after = retry_after;
        self.was_read |= self.files.values().all(ManifestFile::was_read);
    }

    /// Returns the manifest files. Fails if the directory was replaced by an empty one.
    fn list(&mut self) -> Result<Vec<PathBuf>, String> {
        trusted::check_directory(&self.path)?;
        let files = list(&self.path).map_err(|failed| failed.to_string())?;
        let metadata = fs::metadata(&self.path).map_err(|failed| failed.to_string())?;
        let identity = (metadata.dev(), metadata.ino());
        let is_replaced = self.identity.is_some_and(|previous| previous != identity);
        if is_replaced && files.is_empty() && !self.files.is_empty() {
            return Err("the directory was replaced by an empty one, and its previous manifests are still in use; hint: mount the file system if one is missing; otherwise delete the objects with `crustlet delete`, or restart crustlet".to_owned());
        }
        self.identity = Some(identity);
        Ok(files)
    }
}

fn error(path: &Path, reason: String) -> SourceError {
    SourceError {
        path: path.to_owned(),
        reason,
    }
}

/// Returns the sorted manifest files of a directory. Hidden files, such as those of editors and of kubelet, are
/// skipped.
fn list(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let is_hidden = path
            .file_name()
            .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        let extension = path.extension().and_then(|extension| extension.to_str());
        if !is_hidden && matches!(extension, Some("yaml" | "yml" | "json")) {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests;
