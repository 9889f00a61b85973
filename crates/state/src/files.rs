//! Directories and files of runcrust's state. Writes are atomic, because others may read a file meanwhile. Reads refuse
//! files that a user other than root could have changed.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{self, AtFlags, Mode, OFlags, RenameFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use crate::trust::{self, PathKind, TrustError};
use crust_blockfs::{bounded, openat2};

mod error;
mod identity;
mod lazy_directory;
mod temporary;

pub use error::FileError;
pub(crate) use error::failed;
use identity::DirectoryIdentity;
pub(crate) use identity::is_in_memory;
pub(crate) use lazy_directory::LazyDirectory;
pub use temporary::{Leftover, LeftoverVisitor, MakerState};

/// The size limit in bytes of a file that another program wrote.
pub const MAX_FILE_SIZE: u64 = 64 * 1024;

/// The size limit in bytes of a record that runcrust wrote. A record grows with the number of a container's mounts,
/// which the author of a pod chooses.
pub const MAX_RECORD_SIZE: u64 = 16 * 1024 * 1024;

/// The largest number of names that a listing collects. A node has far fewer volumes and containers.
const MAX_NAMES: usize = 100_000;

/// Makes openat2(2) fail at symbolic links, and at the magic links of `/proc`.
const NO_LINKS: ResolveFlags = ResolveFlags::NO_SYMLINKS.union(ResolveFlags::NO_MAGICLINKS);

/// Makes openat2(2) fail at links, and at paths that lead out of the directory.
const BENEATH: ResolveFlags = NO_LINKS.union(ResolveFlags::BENEATH);

/// An open directory that only root can change.
#[derive(Debug)]
pub struct Directory {
    fd: OwnedFd,
    /// The path at which the directory was opened, for messages and [`Self::is_current`].
    path: PathBuf,
    identity: DirectoryIdentity,
}

impl Directory {
    /// Opens the directory at `path`. Returns `None` if it doesn't exist. Symbolic links on the way are followed
    /// (`/var/run` is one), but the last component has to be a directory itself. Root has to own every component.
    pub fn open(path: &Path) -> Result<Option<Self>, FileError> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(untrusted(path, "doesn't name a directory"));
        };
        let resolved = trust::resolve_existing(parent, PathKind::Directory);
        let parent = resolved.map_err(|error| match error {
            TrustError::Untrusted { path, reason } => untrusted(&path, reason),
            TrustError::Lstat { path, source } => failed("lstat", &path, source),
            // `NotExecutable` doesn't occur here: it is an error of programs alone.
            TrustError::TooManyLinks(_) | TrustError::NotExecutable(_) => {
                failed("open", path, Errno::LOOP)
            }
        })?;
        let Some(parent) = parent else {
            return Ok(None);
        };
        Self::open_at(fs::CWD, &parent.join(name), path, NO_LINKS)
    }

    /// Opens the directory at `path`. Creates it with mode 0700 if it doesn't exist, and missing parents with mode 0755
    /// minus the umask.
    pub fn create(path: &Path) -> Result<Self, FileError> {
        use std::os::unix::fs::DirBuilderExt;
        if let Some(directory) = Self::open(path)? {
            return Ok(directory);
        }
        if let Some(parent) = path.parent() {
            // The mode is explicit, so that the parents aren't writable for others even if the caller's umask is 0.
            let parents = std::fs::DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(parent);
            parents.map_err(|error| failed("mkdir", parent, error))?;
        }
        let is_new = match std::fs::DirBuilder::new().mode(0o700).create(path) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(error) => return Err(failed("mkdir", path, error)),
        };
        let directory = Self::open(path)?.ok_or_else(|| failed("openat", path, Errno::NOENT))?;
        directory.with_mode_if_new(is_new)
    }

    /// Sets the mode of a new directory to 0700, if the caller's umask has made it another one.
    fn with_mode_if_new(self, is_new: bool) -> Result<Self, FileError> {
        if is_new && !self.identity.has_mode(Mode::RWXU) {
            let set = fs::fchmod(&self.fd, Mode::RWXU);
            set.map_err(|error| failed("fchmod", &self.path, error))?;
        }
        Ok(self)
    }

    /// Opens the subdirectory `name`. Returns `None` if it doesn't exist.
    pub fn open_directory(&self, name: &str) -> Result<Option<Self>, FileError> {
        Self::open_at(&self.fd, Path::new(name), &self.path.join(name), BENEATH)
    }

    /// Opens the subdirectory `name`. Creates it with mode 0700 if it doesn't exist.
    pub fn create_directory(&self, name: &str) -> Result<Self, FileError> {
        // This is tried first, because the directory usually exists.
        match self.open_directory(name)? {
            Some(directory) => Ok(directory),
            None => self.make_directory(name),
        }
    }

    fn make_directory(&self, name: &str) -> Result<Self, FileError> {
        let path = self.path.join(name);
        let is_new = match fs::mkdirat(&self.fd, name, Mode::RWXU) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => return Err(failed("mkdirat", &path, error)),
        };
        let directory = self.open_directory(name)?;
        let directory = directory.ok_or_else(|| failed("openat", &path, Errno::NOENT))?;
        directory.with_mode_if_new(is_new)
    }

    fn open_at(
        at: impl AsFd,
        name: &Path,
        path: &Path,
        resolve: ResolveFlags,
    ) -> Result<Option<Self>, FileError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        let fd = match openat2::open(at, name, flags, resolve) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::NOTDIR | Errno::LOOP) => {
                return Err(untrusted(path, "is a link or not a directory"));
            }
            Err(error) => return Err(failed("openat2", path, error)),
        };
        let stat = fs::fstat(&fd).map_err(|error| failed("fstat", path, error))?;
        check_owner(path, stat.st_uid, stat.st_mode)?;
        Ok(Some(Self {
            fd,
            path: path.to_owned(),
            identity: DirectoryIdentity::new(&stat),
        }))
    }

    /// Returns whether the directory may have entries. Each subdirectory adds one to the link count of its parent, so a
    /// directory with the link count 2 has no subdirectories. A listing, which is short, then shows whether it has other
    /// files. On btrfs and overlayfs subdirectories aren't counted: all directories have the link count 1, and may have
    /// entries.
    pub(crate) fn may_hold_entries(&self) -> Result<bool, FileError> {
        let stat = fs::fstat(&self.fd).map_err(|error| failed("fstat", &self.path, error))?;
        if stat.st_nlink != 2 {
            return Ok(true);
        }
        Ok(self.entries()?.next().transpose()?.is_some())
    }

    /// Returns the path that was passed to [`Self::open`].
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads a file. Returns `None` if it doesn't exist. Fails if it is a symbolic link or isn't a regular file, if
    /// root doesn't own it, if others can write it, or if it is larger than [`MAX_FILE_SIZE`].
    pub fn read(&self, name: &str) -> Result<Option<Vec<u8>>, FileError> {
        self.read_up_to(MAX_FILE_SIZE, "is larger than 64 KiB", name)
    }

    /// Reads a record of runcrust's as [`Self::read`] does, but with the limit [`MAX_RECORD_SIZE`].
    pub fn read_record(&self, name: &str) -> Result<Option<Vec<u8>>, FileError> {
        self.read_up_to(MAX_RECORD_SIZE, "is larger than 16 MiB", name)
    }

    fn read_up_to(
        &self,
        limit: u64,
        too_large: &'static str,
        name: &str,
    ) -> Result<Option<Vec<u8>>, FileError> {
        let path = self.path.join(name);
        // NONBLOCK: a FIFO in the place of the file must not delay the start of a container.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let fd = match openat2::open(&self.fd, name, flags, BENEATH) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => return Err(untrusted(&path, "is a symbolic link")),
            // open(2) fails with ENXIO for a socket.
            Err(Errno::NXIO) => return Err(untrusted(&path, "isn't a regular file")),
            Err(error) => return Err(failed("openat2", &path, error)),
        };
        check_file(&path, &fd)?;
        match bounded::read_open(&File::from(fd), limit) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                Err(untrusted(&path, too_large))
            }
            Err(error) => Err(failed("read", &path, error)),
        }
    }

    /// Opens a lock file. Creates it if it doesn't exist.
    pub(crate) fn open_lock(&self, name: &str) -> Result<File, FileError> {
        let path = self.path.join(name);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let mode = Mode::RUSR | Mode::WUSR;
        let fd = openat2::open_or_create(&self.fd, name, flags, mode, BENEATH)
            .map_err(|error| failed("openat2", &path, error))?;
        check_file(&path, &fd)?;
        Ok(File::from(fd))
    }

    /// Opens a lock file read-only. Returns `None` if it doesn't exist.
    pub(crate) fn find_lock(&self, name: &str) -> Result<Option<File>, FileError> {
        let path = self.path.join(name);
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let fd = match openat2::open(&self.fd, name, flags, BENEATH) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(failed("openat2", &path, error)),
        };
        check_file(&path, &fd)?;
        Ok(Some(File::from(fd)))
    }

    /// Writes a file atomically, with mode 0600. A reader finds the old content or the new one, also after a crash.
    /// Blocks until the content is on the disk.
    ///
    /// Fails if `bytes` are more than [`MAX_RECORD_SIZE`], because the file couldn't be read again.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<(), FileError> {
        if bytes.len() as u64 > MAX_RECORD_SIZE {
            let path = self.path.join(name);
            return Err(FileError::TooLarge { path });
        }
        let temporary = temporary::name(name);
        let written = self.create_new(&temporary).and_then(|mut file| {
            // On a file system without locks, the name alone shows which process writes the file.
            let _ = temporary::try_lock(&file);
            self.fill(&mut file, &temporary, bytes)?;
            fs::renameat(&self.fd, &temporary, &self.fd, name)
                .map_err(|error| failed("renameat", &self.path.join(name), error))
        });
        if written.is_err() {
            // No other process uses this name. An error is ignored, because the first error is reported.
            let _ = fs::unlinkat(&self.fd, &temporary, AtFlags::empty());
        }
        written?;
        self.sync()
    }

    fn create_new(&self, name: &str) -> Result<File, FileError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let mode = Mode::RUSR | Mode::WUSR;
        openat2::open_or_create(&self.fd, name, flags, mode, BENEATH)
            .map(File::from)
            .map_err(|error| failed("openat2", &self.path.join(name), error))
    }

    /// Writes the content of a new file, and waits until it is on the disk.
    fn fill(&self, file: &mut File, name: &str, bytes: &[u8]) -> Result<(), FileError> {
        let failed = |call| move |error: io::Error| failed(call, &self.path.join(name), error);
        file.write_all(bytes).map_err(failed("write"))?;
        file.sync_all().map_err(failed("fsync"))
    }

    /// Creates the directory `name` with these files atomically. Fails with `EEXIST` if `name` exists already, and
    /// leaves the existing directory unchanged.
    pub fn add_directory(&self, name: &str, files: &[(&str, &[u8])]) -> Result<(), FileError> {
        let temporary = temporary::name(name);
        let added = self.make_directory(&temporary).and_then(|directory| {
            // The lock of the directory covers the files in it.
            let _ = temporary::try_lock(&directory.fd);
            for (name, bytes) in files {
                let mut file = directory.create_new(name)?;
                directory.fill(&mut file, name, bytes)?;
            }
            directory.sync()?;
            fs::renameat_with(&self.fd, &temporary, &self.fd, name, RenameFlags::NOREPLACE)
                .map_err(|error| failed("renameat2", &self.path.join(name), error))
        });
        if added.is_err() {
            let _ = self.remove_tree(&temporary);
        }
        added?;
        self.sync()
    }

    /// Removes the directory `name` and the files in it. Succeeds if it doesn't exist. The directory is renamed first,
    /// so that a crash leaves a temporary directory behind, and never an entry with only some of its files.
    pub fn remove_directory(&self, name: &str) -> Result<(), FileError> {
        let temporary = temporary::name(name);
        match fs::renameat(&self.fd, name, &self.fd, &temporary) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Ok(()),
            Err(error) => return Err(failed("renameat", &self.path.join(name), error)),
        }
        self.sync()?;
        self.remove_tree(&temporary)
    }

    fn remove_tree(&self, name: &str) -> Result<(), FileError> {
        if let Some(directory) = self.open_directory(name)? {
            let _ = temporary::try_lock(&directory.fd);
            for file in directory.names()? {
                directory.remove(&file)?;
            }
        }
        let path = self.path.join(name);
        fs::unlinkat(&self.fd, name, AtFlags::REMOVEDIR)
            .map_err(|error| failed("rmdir", &path, error))
    }

    /// Removes a file. Succeeds if it doesn't exist.
    pub fn remove(&self, name: &str) -> Result<(), FileError> {
        match fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(failed("unlinkat", &self.path.join(name), error)),
        }
    }

    /// Removes a record if `is_stale` returns true for its content. Returns whether the record is gone.
    ///
    /// Another process may replace the record at any time. So a stale record is first renamed, and removed only if its
    /// content is still the one that was judged. A newer record gets its name back, unless there is an even newer one
    /// by then.
    pub(crate) fn remove_if(
        &self,
        name: &str,
        is_stale: impl FnOnce(&[u8]) -> bool,
    ) -> Result<bool, FileError> {
        let Some(judged) = self.read_record(name)? else {
            return Ok(true);
        };
        if !is_stale(&judged) {
            return Ok(false);
        }
        let temporary = temporary::name(name);
        match fs::renameat(&self.fd, name, &self.fd, &temporary) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Ok(true),
            Err(error) => return Err(failed("renameat", &self.path.join(name), error)),
        }
        // A process that searches for leftovers sees by the lock that the file is still being used.
        let held = self.find_lock(&temporary).ok().flatten();
        let _held = held.filter(|file| temporary::try_lock(file).is_ok());
        let now = self.read_record(&temporary);
        if now.as_ref().is_ok_and(|now| now.as_ref() == Some(&judged)) {
            return self.remove(&temporary).map(|()| true);
        }
        match fs::renameat_with(&self.fd, &temporary, &self.fd, name, RenameFlags::NOREPLACE) {
            Ok(()) => now.map(|_| false),
            Err(Errno::EXIST) => self.remove(&temporary).map(|()| false),
            Err(error) => Err(failed("renameat2", &self.path.join(name), error)),
        }
    }

    /// Returns the size in bytes of a file; 0 if it doesn't exist. `path` is relative to this directory.
    pub(crate) fn file_size(&self, path: &str) -> Result<u64, FileError> {
        let stat = self.stat(path)?;
        Ok(stat.map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or_default()))
    }

    /// Returns the attributes of a file; `None` if it doesn't exist. `path` is relative to this directory. A symbolic
    /// link at its end isn't followed.
    pub(crate) fn stat(&self, path: &str) -> Result<Option<Stat>, FileError> {
        match fs::statat(&self.fd, path, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(error) => Err(failed("fstatat", &self.path.join(path), error)),
        }
    }

    /// Returns the names in the directory, also those that begin with a dot. Names that aren't UTF-8 aren't runcrust's,
    /// and are left out. Fails if there are more than 100,000.
    pub fn names(&self) -> Result<Vec<String>, FileError> {
        self.collect_entries(|name, _| name)
    }

    /// Returns the names as [`Self::names`] does, each with its inode number.
    pub fn inodes(&self) -> Result<Vec<(String, u64)>, FileError> {
        self.collect_entries(|name, inode| (name, inode))
    }

    fn collect_entries<T>(&self, entry: impl Fn(String, u64) -> T) -> Result<Vec<T>, FileError> {
        let mut entries = Vec::new();
        for listed in self.entries()? {
            if entries.len() == MAX_NAMES {
                return Err(FileError::TooMany {
                    path: self.path.clone(),
                });
            }
            let (name, inode) = listed?;
            entries.push(entry(name, inode));
        }
        Ok(entries)
    }

    /// Iterates over the names and their inode numbers, without a limit. The caller may remove a file once the iterator
    /// has returned its name. Names that aren't UTF-8 are left out.
    pub(crate) fn entries(
        &self,
    ) -> Result<impl Iterator<Item = Result<(String, u64), FileError>>, FileError> {
        let getdents_failed = |error| failed("getdents64", &self.path, error);
        let entries = fs::Dir::read_from(&self.fd).map_err(getdents_failed)?;
        let name = move |entry: Result<fs::DirEntry, Errno>| match entry {
            Ok(entry) => match entry.file_name().to_str() {
                Ok("." | "..") | Err(_) => None,
                Ok(name) => Some(Ok((name.to_owned(), entry.ino()))),
            },
            Err(error) => Some(Err(getdents_failed(error))),
        };
        Ok(entries.filter_map(name))
    }

    fn sync(&self) -> Result<(), FileError> {
        fs::fsync(&self.fd).map_err(|error| failed("fsync", &self.path, error))
    }
}

fn untrusted(path: &Path, reason: &'static str) -> FileError {
    FileError::Untrusted {
        path: path.to_owned(),
        reason,
    }
}

fn check_file(path: &Path, fd: &OwnedFd) -> Result<(), FileError> {
    let stat = fs::fstat(fd).map_err(|error| failed("fstat", path, error))?;
    if !fs::FileType::from_raw_mode(stat.st_mode).is_file() {
        return Err(untrusted(path, "isn't a regular file"));
    }
    check_owner(path, stat.st_uid, stat.st_mode)
}

/// Fails if root doesn't own a file, or if others can write it.
fn check_owner(path: &Path, owner: u32, mode: u32) -> Result<(), FileError> {
    if owner != 0 {
        return Err(untrusted(path, "isn't owned by root"));
    }
    if mode & 0o022 != 0 {
        return Err(untrusted(path, "can be written by others than root"));
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests;
