//! The files of a node, and the drop-ins that an engine reads in addition to its main file.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crust_blockfs::{Deadline, openat2};
use crust_state::foreign::{
    ForeignFile, ForeignFileError, StagedChange, remove_leftovers, stage_new_file,
};
use crust_state::lock::Lock;
use crust_state::trust;

use crate::config_file::EngineConfigFile;
use crate::error::{HandlerError, Result};

/// The longest time that a call waits for another call that changes the same node.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);

/// A node's root directory.
///
/// Paths on the node are those that the node's own programs use. In a container with the node's root at `/host`, the
/// node's absolute symbolic links would lead to files of the container, so paths are resolved within the root.
#[derive(Debug, Clone)]
pub struct NodeRoot(PathBuf);

impl NodeRoot {
    /// Returns the node with this root directory.
    #[must_use]
    pub fn new(root: &Path) -> Self {
        Self(root.to_owned())
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Returns whether the node's root directory is that of this process.
    #[must_use]
    pub fn is_own_root(&self) -> bool {
        self.0 == Path::new("/")
    }

    /// Locks the configurations of the node against changes by other calls until the lock is dropped. Blocks for up to
    /// 30 seconds.
    pub fn lock(&self) -> Result<Lock> {
        Ok(Lock::acquire_node(&self.0, Deadline::after(LOCK_TIMEOUT))?)
    }

    /// Resolves all symbolic links in a path on the node.
    pub(crate) fn resolve(&self, path: &Path) -> PathBuf {
        openat2::resolve_in_root(&self.0, path)
    }

    /// Returns the path in this process's own root that leads to a path on the node.
    #[must_use]
    pub fn find(&self, path: &Path) -> PathBuf {
        let resolved = self.resolve(path);
        self.0.join(resolved.strip_prefix("/").unwrap_or(&resolved))
    }

    /// Reads a configuration. Fails if users other than root can change it.
    pub(crate) fn read(&self, path: &Path) -> Result<EngineConfigFile> {
        self.check_directory(path.parent().unwrap_or(path))?;
        let source = match ForeignFile::read(&self.find(path)) {
            Err(ForeignFileError::NotAFile(_)) => return Err(HandlerError::NotAFile(path.into())),
            found => found?,
        };
        let Some(source) = source else {
            return Ok(EngineConfigFile::new(path, None));
        };
        self.check(path)?;
        let text = String::from_utf8(source.bytes().to_vec());
        let text = text.map_err(|_| HandlerError::NotText(path.into()))?;
        let source = Some(source);
        Ok(EngineConfigFile {
            source,
            ..EngineConfigFile::new(path, Some(text))
        })
    }

    /// Writes a new configuration under a temporary name, and creates its directory.
    pub(crate) fn stage_new(&self, path: &Path, text: &str) -> Result<StagedChange<'static>> {
        let file = self.find(path);
        self.create_directory(&file)?;
        remove_leftovers(&file)?;
        Ok(stage_new_file(&file, text.as_bytes(), 0o644)?)
    }

    /// Fails if users other than root can change a file. A daemon reads or runs it as root.
    pub(crate) fn check(&self, file: &Path) -> Result<()> {
        let resolved = trust::resolve(&self.0, file, trust::PathKind::File).map(drop);
        resolved.map_err(|error| HandlerError::Untrusted(file.into(), error))
    }

    /// Fails if users other than root can change a directory, which need not exist yet.
    pub fn check_directory(&self, directory: &Path) -> Result<()> {
        let checked = trust::check_directory(&self.0, directory);
        checked.map_err(|error| HandlerError::Untrusted(directory.into(), error))
    }

    /// Fails if a path isn't an executable file, or if users other than root can change it.
    pub fn check_program(&self, path: &Path) -> Result<()> {
        if !self.has_program(path) {
            return Err(HandlerError::NoProgram(path.into()));
        }
        self.check(path)
    }

    /// Creates the directory of a file. The path is one in this process's own root.
    pub(crate) fn create_directory(&self, file: &Path) -> Result<()> {
        let directory = file.parent().unwrap_or(&self.0);
        let mut builder = fs::DirBuilder::new();
        let created = builder.recursive(true).mode(0o755).create(directory);
        created.map_err(|error| HandlerError::call("mkdir", directory, error))
    }

    /// Returns the names in a directory. There are none if it doesn't exist.
    pub(crate) fn names(&self, directory: &Path) -> Result<Vec<Vec<u8>>> {
        use io::ErrorKind::{NotADirectory, NotFound};
        let failed = |error| HandlerError::call("open", directory, error);
        let entries = match fs::read_dir(self.find(directory)) {
            Ok(entries) => entries,
            Err(error) if matches!(error.kind(), NotFound | NotADirectory) => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let names = entries.map(|entry| Ok(entry.map_err(failed)?.file_name().into_vec()));
        names.collect()
    }

    #[must_use]
    pub(crate) fn has_file(&self, path: &Path) -> bool {
        self.find(path).is_file()
    }

    /// Returns whether a path is an executable file.
    #[must_use]
    pub(crate) fn has_program(&self, path: &Path) -> bool {
        let metadata = fs::metadata(self.find(path));
        metadata.is_ok_and(|metadata| metadata.is_file() && metadata.mode() & 0o111 != 0)
    }
}

/// The paths of the files that an engine reads one after the other.
#[derive(Debug)]
pub(crate) struct DropIns {
    /// The main files. Those below `/usr` belong to packages.
    pub(crate) files: &'static [&'static str],
    /// The directory of the drop-ins, which are read in the order of their names.
    pub(crate) directory: &'static str,
    /// The end of a drop-in's name.
    pub(crate) suffix: &'static str,
}

impl DropIns {
    /// Reads `first`. If `first` is a main file or a drop-in, also reads all other main files and drop-ins that exist.
    pub(crate) fn read(&self, node: &NodeRoot, first: &Path) -> Result<Vec<EngineConfigFile>> {
        let mut found = vec![node.read(first)?];
        let directory = Path::new(self.directory);
        let main = self.files.iter().map(Path::new);
        if !main.clone().any(|file| file == first) && first.parent() != Some(directory) {
            return Ok(found);
        }
        let mut names = node.names(directory)?;
        names.retain(|name| name.ends_with(self.suffix.as_bytes()));
        names.sort();
        let names = names.iter().map(|name| OsStr::from_bytes(name));
        let all = main.map(Path::to_owned);
        for path in all.chain(names.map(|name| directory.join(name))) {
            if path != first && node.has_file(&path) {
                let is_packaged = path.starts_with("/usr");
                let file = node.read(&path)?;
                found.push(EngineConfigFile {
                    is_packaged,
                    ..file
                });
            }
        }
        Ok(found)
    }
}
