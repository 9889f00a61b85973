//! The files of a node.

use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crust_blockfs::Deadline;
use crust_blockfs::within;
use crust_state::foreign::{ForeignFile, ForeignFileError, Staged, stage_new, sweep};
use crust_state::lock::Lock;
use crust_state::trust;

use crate::edit::Source;
use crate::error::HandlerError;

/// A node, by its root directory. Paths on it are as its own programs see them: a container that has
/// it at `/host` would follow its absolute links to other files.
#[derive(Debug, Clone)]
pub struct Node {
    root: PathBuf,
}

/// Longer than an edit takes, and than an operator waits.
const PATIENCE: Duration = Duration::from_secs(30);

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

    /// Keeps others from changing a configuration until the answer is dropped: what was read is what
    /// is replaced.
    pub fn lock(&self) -> Result<Lock, HandlerError> {
        Ok(Lock::node(&self.root, Deadline::after(PATIENCE))?)
    }

    /// Where a path leads, for the node's own programs.
    pub(crate) fn real(&self, path: &Path) -> PathBuf {
        within::resolve(&self.root, path)
    }

    /// Where a path leads on the node, for this process.
    #[must_use]
    pub fn find(&self, path: &Path) -> PathBuf {
        let resolved = self.real(path);
        let below = resolved.strip_prefix("/").unwrap_or(&resolved);
        self.root.join(below)
    }

    /// A configuration, which must be root's.
    pub(crate) fn read(&self, path: &Path) -> Result<(Source, Option<Kept>), HandlerError> {
        self.check_directory(path.parent().unwrap_or(path))?;
        let found = ForeignFile::read(&self.find(path));
        let path = path.to_owned();
        let found = match found {
            Err(ForeignFileError::NotAFile(_)) => return Err(HandlerError::NotAFile(path)),
            found => found?,
        };
        let Some(file) = found else {
            return Ok((Source::new(path, None), None));
        };
        self.check(&path)?;
        let Ok(text) = String::from_utf8(file.bytes().to_vec()) else {
            return Err(HandlerError::NotText(path));
        };
        Ok((Source::new(path, Some(text)), Some(Kept(file))))
    }

    /// A new configuration, and the directory it belongs into.
    pub(crate) fn stage_new(
        &self,
        path: &Path,
        text: &str,
    ) -> Result<Staged<'static>, HandlerError> {
        let file = self.find(path);
        self.create_directory(&file)?;
        sweep(&file)?;
        Ok(stage_new(&file, text.as_bytes(), 0o644)?)
    }

    /// Fails where others than root could change a file: a daemon of root's acts on it.
    pub(crate) fn check(&self, file: &Path) -> Result<(), HandlerError> {
        let walked = trust::walk(&self.root, file, trust::Kind::File);
        walked
            .map(drop)
            .map_err(|flaw| HandlerError::untrusted(file, flaw))
    }

    /// The same for a directory that something is to be made in, perhaps itself first.
    pub fn check_directory(&self, directory: &Path) -> Result<(), HandlerError> {
        let walked = trust::directory(&self.root, directory);
        walked.map_err(|flaw| HandlerError::untrusted(directory, flaw))
    }

    /// Fails where there is no program that can be run, or others than root could change it.
    pub fn check_program(&self, path: &Path) -> Result<(), HandlerError> {
        if !self.has_program(path) {
            return Err(HandlerError::NoProgram(path.to_owned()));
        }
        self.check(path)
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

    /// Whether there is a file.
    #[must_use]
    pub(crate) fn has_file(&self, path: &Path) -> bool {
        self.find(path).is_file()
    }

    /// Whether there is a program, which can be run.
    #[must_use]
    pub(crate) fn has_program(&self, path: &Path) -> bool {
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
    /// What is to stand in its place; `None`: nothing.
    pub(crate) fn stage(&self, text: Option<&str>) -> Result<Staged<'_>, HandlerError> {
        self.0.sweep()?;
        Ok(match text {
            Some(text) => self.0.stage(text.as_bytes())?,
            None => self.0.stage_removal()?,
        })
    }
}
