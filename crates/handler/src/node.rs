//! The files of a node.

use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crust_mount::within;
use crust_state::foreign::{ForeignFile, put};

use crate::change::Source;
use crate::error::HandlerError;

/// A node, by its root directory. Paths on it are as its own programs see them: a container that has
/// it at `/host` would follow its absolute links to other files.
#[derive(Debug, Clone)]
pub struct Node {
    root: PathBuf,
}

/// A file that was read and may be replaced.
#[derive(Debug)]
pub(crate) struct Kept(ForeignFile);

impl Node {
    /// The node whose root directory this is.
    #[must_use]
    pub fn new(root: &Path) -> Self {
        let root = root.to_owned();
        Self { root }
    }

    /// Its root directory.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Whether it is this process's own.
    #[must_use]
    pub fn is_here(&self) -> bool {
        self.root == Path::new("/")
    }

    /// Where a path leads on the node, for this process.
    #[must_use]
    pub fn find(&self, path: &Path) -> PathBuf {
        let resolved = within::resolve(&self.root, path);
        let below = resolved.strip_prefix("/").unwrap_or(&resolved);
        self.root.join(below)
    }

    /// A configuration, which must be root's.
    pub(crate) fn read(&self, path: &Path) -> Result<(Source, Option<Kept>), HandlerError> {
        let found = ForeignFile::read(&self.find(path))?;
        let path = path.to_owned();
        let Some(file) = found else {
            return Ok((Source { path, text: None }, None));
        };
        if !file.is_roots_alone() {
            return Err(HandlerError::Untrusted(path));
        }
        let Ok(text) = String::from_utf8(file.bytes().to_vec()) else {
            return Err(HandlerError::NotText(path));
        };
        let text = Some(text);
        Ok((Source { path, text }, Some(Kept(file))))
    }

    /// A new configuration, and the directory it belongs into.
    pub(crate) fn create(&self, path: &Path, text: &str) -> Result<(), HandlerError> {
        let file = self.find(path);
        self.create_directory(&file)?;
        Ok(put(&file, text.as_bytes(), 0o644)?)
    }

    /// The directory of a file, as anybody may read it.
    pub(crate) fn create_directory(&self, file: &Path) -> Result<(), HandlerError> {
        let directory = file.parent().unwrap_or(&self.root);
        let mut builder = std::fs::DirBuilder::new();
        let made = builder.recursive(true).mode(0o755).create(directory);
        made.map_err(|error| HandlerError::call("mkdir", directory, error))
    }

    /// The names in a directory; none where there is none.
    pub(crate) fn names(&self, directory: &Path) -> Result<Vec<Vec<u8>>, HandlerError> {
        let found = self.find(directory);
        let failed = |error| HandlerError::call("open", directory, error);
        let entries = match std::fs::read_dir(found) {
            Ok(entries) => entries,
            Err(error) if is_none(&error) => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        entries
            .map(|entry| Ok(entry.map_err(failed)?.file_name().into_vec()))
            .collect()
    }

    /// Whether there is a program, which can be run.
    #[must_use]
    pub fn has_program(&self, path: &Path) -> bool {
        let metadata = std::fs::metadata(self.find(path));
        metadata.is_ok_and(|it| it.is_file() && it.mode() & 0o111 != 0)
    }
}

fn is_none(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

impl Kept {
    pub(crate) fn replace(&self, text: &str) -> Result<(), HandlerError> {
        self.0.replace(text.as_bytes())?;
        Ok(self.0.sync_directory()?)
    }

    pub(crate) fn remove(&self) -> Result<(), HandlerError> {
        self.0.remove()?;
        Ok(self.0.sync_directory()?)
    }
}
