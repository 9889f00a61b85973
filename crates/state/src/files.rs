//! Files that others read while they are written: whole or not at all, and nobody else's.

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

/// The largest file of somebody else's that is read.
pub const MAX_FILE_SIZE: u64 = 64 * 1024;

/// The largest record of our own: it grows with a container's mounts, and they with what a pod's
/// author writes.
pub const MAX_RECORD_SIZE: u64 = 16 * 1024 * 1024;

/// Largest number of names that a listing collects: many times the number of a node's volumes and containers.
const MAX_NAMES: usize = 100_000;

/// Fails at a symbolic link, and at a magic link of `/proc`.
const HERE: ResolveFlags = ResolveFlags::NO_SYMLINKS.union(ResolveFlags::NO_MAGICLINKS);

/// And no way leads out of a directory.
const BELOW: ResolveFlags = HERE.union(ResolveFlags::BENEATH);

/// An open directory that belongs to root alone, and the path it was opened by (for messages).
#[derive(Debug)]
pub struct Directory {
    fd: OwnedFd,
    path: PathBuf,
    identity: DirectoryIdentity,
}

impl Directory {
    /// Opens the directory at `path`; `None` if there is none. Links on the way are followed
    /// (`/var/run` is one), and all of it has to be root's; the last component must be a directory
    /// itself.
    pub fn open(path: &Path) -> Result<Option<Self>, FileError> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(untrusted(path, "is no directory of its own"));
        };
        let way =
            trust::resolve_existing(parent, PathKind::Directory).map_err(|flaw| match flaw {
                TrustError::Untrusted { path, reason } => untrusted(&path, reason),
                TrustError::Lstat { path, source } => failed("lstat", &path, source),
                // That it can be executed is asked of programs alone.
                TrustError::TooManyLinks | TrustError::NotExecutable(_) => {
                    failed("open", path, Errno::LOOP)
                }
            })?;
        let Some(way) = way else {
            return Ok(None);
        };
        Self::open_at(fs::CWD, &way.join(name), path, HERE)
    }

    /// Opens `path`, made with mode 0700 where it is missing, parents too.
    pub fn create(path: &Path) -> Result<Self, FileError> {
        use std::os::unix::fs::DirBuilderExt;
        if let Some(there) = Self::open(path)? {
            return Ok(there);
        }
        if let Some(parent) = path.parent() {
            // Not as the caller's umask would have it.
            let parents = std::fs::DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(parent);
            parents.map_err(|error| failed("mkdir", parent, error))?;
        }
        let made = match std::fs::DirBuilder::new().mode(0o700).create(path) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(error) => return Err(failed("mkdir", path, error)),
        };
        let directory = Self::open(path)?.ok_or_else(|| failed("openat", path, Errno::NOENT))?;
        directory.made(made)
    }

    /// Whatever the caller's umask took from a directory that was just made.
    fn made(self, made: bool) -> Result<Self, FileError> {
        if made && !self.identity.has_mode(Mode::RWXU) {
            let set = fs::fchmod(&self.fd, Mode::RWXU);
            set.map_err(|error| failed("fchmod", &self.path, error))?;
        }
        Ok(self)
    }

    /// Opens the directory `name` in this one; `None` if there is none.
    pub fn open_directory(&self, name: &str) -> Result<Option<Self>, FileError> {
        Self::open_at(&self.fd, Path::new(name), &self.path.join(name), BELOW)
    }

    /// Opens the directory `name` in this one, made with mode 0700 where it is missing.
    pub fn create_directory(&self, name: &str) -> Result<Self, FileError> {
        // Most are made once and asked for often.
        match self.open_directory(name)? {
            Some(there) => Ok(there),
            None => self.make_directory(name),
        }
    }

    fn make_directory(&self, name: &str) -> Result<Self, FileError> {
        let path = self.path.join(name);
        let made = match fs::mkdirat(&self.fd, name, Mode::RWXU) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => return Err(failed("mkdirat", &path, error)),
        };
        let directory = self.open_directory(name)?;
        let directory = directory.ok_or_else(|| failed("openat", &path, Errno::NOENT))?;
        directory.made(made)
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
                return Err(untrusted(path, "is a link or no directory"));
            }
            Err(error) => return Err(failed("openat2", path, error)),
        };
        let stat = fs::fstat(&fd).map_err(|error| failed("fstat", path, error))?;
        trust(path, stat.st_uid, stat.st_mode)?;
        Ok(Some(Self {
            fd,
            path: path.to_owned(),
            identity: DirectoryIdentity::new(&stat),
        }))
    }

    /// Whether there may be anything in it. Each directory is one more link to this one, and a file system that doesn't
    /// count them (btrfs, overlayfs) has one link to all; others are seen in the list, which is short without them.
    pub(crate) fn may_hold_entries(&self) -> Result<bool, FileError> {
        let stat = fs::fstat(&self.fd).map_err(|error| failed("fstat", &self.path, error))?;
        if stat.st_nlink != 2 {
            return Ok(true);
        }
        Ok(self.listed()?.next().transpose()?.is_some())
    }

    /// Returns the path that it was opened by.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the whole of a file; `None` if there is none. Refuses links, what isn't a regular
    /// file, what root doesn't own or others can write, and more than [`MAX_FILE_SIZE`].
    pub fn read(&self, name: &str) -> Result<Option<Vec<u8>>, FileError> {
        self.read_up_to(MAX_FILE_SIZE, "is larger than 64 KiB", name)
    }

    /// The same for a record of our own, of up to [`MAX_RECORD_SIZE`].
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
        // Non-blocking: a fifo in a file's place must not hold the container's start up.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let fd = match openat2::open(&self.fd, name, flags, BELOW) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => return Err(untrusted(&path, "is a symbolic link")),
            // A socket can't be opened at all.
            Err(Errno::NXIO) => return Err(untrusted(&path, "is no regular file")),
            Err(error) => return Err(failed("openat2", &path, error)),
        };
        trust_file(&path, &fd)?;
        match bounded::read_open(&File::from(fd), limit) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                Err(untrusted(&path, too_large))
            }
            Err(error) => Err(failed("read", &path, error)),
        }
    }

    /// A file that is there to be locked, made where it is missing.
    pub(crate) fn open_lock(&self, name: &str) -> Result<File, FileError> {
        let path = self.path.join(name);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let mode = Mode::RUSR | Mode::WUSR;
        let fd = openat2::open_or_create(&self.fd, name, flags, mode, BELOW)
            .map_err(|error| failed("openat2", &path, error))?;
        trust_file(&path, &fd)?;
        Ok(File::from(fd))
    }

    /// The same if it is there, for a look.
    pub(crate) fn find_lock(&self, name: &str) -> Result<Option<File>, FileError> {
        let path = self.path.join(name);
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let fd = match openat2::open(&self.fd, name, flags, BELOW) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(failed("openat2", &path, error)),
        };
        trust_file(&path, &fd)?;
        Ok(Some(File::from(fd)))
    }

    /// Writes a file (mode 0600) so that a reader finds the old content or the new, and a crash
    /// one of them.
    ///
    /// A record that couldn't be read again isn't written.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<(), FileError> {
        if bytes.len() as u64 > MAX_RECORD_SIZE {
            let path = self.path.join(name);
            return Err(FileError::TooLarge { path });
        }
        let temporary = temporary::name(name);
        let written = self.create_new(&temporary).and_then(|mut file| {
            // A file system without locks has only the name to tell who is at it.
            let _ = temporary::hold(&file);
            self.fill(&mut file, &temporary, bytes)?;
            fs::renameat(&self.fd, &temporary, &self.fd, name)
                .map_err(|error| failed("renameat", &self.path.join(name), error))
        });
        if written.is_err() {
            // Its name is ours alone; the error that counts is the first.
            let _ = fs::unlinkat(&self.fd, &temporary, AtFlags::empty());
        }
        written?;
        self.sync()
    }

    fn create_new(&self, name: &str) -> Result<File, FileError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let mode = Mode::RUSR | Mode::WUSR;
        openat2::open_or_create(&self.fd, name, flags, mode, BELOW)
            .map(File::from)
            .map_err(|error| failed("openat2", &self.path.join(name), error))
    }

    /// Writes a new file, to the disk.
    fn fill(&self, file: &mut File, name: &str, bytes: &[u8]) -> Result<(), FileError> {
        let failed = |call| move |error: io::Error| failed(call, &self.path.join(name), error);
        file.write_all(bytes).map_err(failed("write"))?;
        file.sync_all().map_err(failed("fsync"))
    }

    /// Adds the directory `name` with these files, whole: nobody sees it half made.
    /// An entry that is there already stays as it is, and is an error (`EEXIST`).
    pub fn add_directory(&self, name: &str, files: &[(&str, &[u8])]) -> Result<(), FileError> {
        let temporary = temporary::name(name);
        let added = self.make_directory(&temporary).and_then(|directory| {
            // And with it all that is in it.
            let _ = temporary::hold(&directory.fd);
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

    /// Removes the directory `name` and the files in it; one that isn't there is fine. It leaves
    /// its name at once, so that a crash leaves a dot-directory and never half an entry.
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
            let _ = temporary::hold(&directory.fd);
            for file in directory.names()? {
                directory.remove(&file)?;
            }
        }
        let path = self.path.join(name);
        fs::unlinkat(&self.fd, name, AtFlags::REMOVEDIR)
            .map_err(|error| failed("rmdir", &path, error))
    }

    /// Removes a file; one that isn't there is fine.
    pub fn remove(&self, name: &str) -> Result<(), FileError> {
        match fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(failed("unlinkat", &self.path.join(name), error)),
        }
    }

    /// Removes a record that may be replaced at any time, if it is over. Only then does it lose its name,
    /// to be removed if it is still what was judged; another one gets the name back, unless a third has
    /// it by now. Whether it was removed.
    pub(crate) fn remove_if(
        &self,
        name: &str,
        is_over: impl FnOnce(&[u8]) -> bool,
    ) -> Result<bool, FileError> {
        let Some(judged) = self.read_record(name)? else {
            return Ok(true);
        };
        if !is_over(&judged) {
            return Ok(false);
        }
        let temporary = temporary::name(name);
        match fs::renameat(&self.fd, name, &self.fd, &temporary) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Ok(true),
            Err(error) => return Err(failed("renameat", &self.path.join(name), error)),
        }
        // Whoever looks for what was left meanwhile sees that somebody is at it.
        let held = self.find_lock(&temporary).ok().flatten();
        let _held = held.filter(|file| temporary::hold(file).is_ok());
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

    /// Returns the size in bytes of a file in it or below; 0 for a file that doesn't exist.
    pub(crate) fn size_of(&self, path: &str) -> Result<u64, FileError> {
        let stat = self.stat(path)?;
        Ok(stat.map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or_default()))
    }

    /// Looks at a file in it or below; `None` for a file that doesn't exist.
    pub(crate) fn stat(&self, path: &str) -> Result<Option<Stat>, FileError> {
        match fs::statat(&self.fd, path, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(error) => Err(failed("fstatat", &self.path.join(path), error)),
        }
    }

    /// The names in it, dot-names too; those that aren't UTF-8 aren't ours and are left out.
    pub fn names(&self) -> Result<Vec<String>, FileError> {
        self.collected(|name, _| name)
    }

    /// The same with their inodes' numbers.
    pub fn inodes(&self) -> Result<Vec<(String, u64)>, FileError> {
        self.collected(|name, inode| (name, inode))
    }

    fn collected<T>(&self, entry: impl Fn(String, u64) -> T) -> Result<Vec<T>, FileError> {
        let mut entries = Vec::new();
        for listed in self.listed()? {
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

    /// Returns the names with their inodes' numbers, one after the other and however many there are. A name that has
    /// been returned may be removed meanwhile. Names that aren't UTF-8 are left out.
    pub(crate) fn listed(
        &self,
    ) -> Result<impl Iterator<Item = Result<(String, u64), FileError>>, FileError> {
        let listed = |error| failed("getdents64", &self.path, error);
        let entries = fs::Dir::read_from(&self.fd).map_err(listed)?;
        let name = move |entry: Result<fs::DirEntry, Errno>| match entry {
            Ok(entry) => match entry.file_name().to_str() {
                Ok("." | "..") | Err(_) => None,
                Ok(name) => Some(Ok((name.to_owned(), entry.ino()))),
            },
            Err(error) => Some(Err(listed(error))),
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

fn trust_file(path: &Path, fd: &OwnedFd) -> Result<(), FileError> {
    let stat = fs::fstat(fd).map_err(|error| failed("fstat", path, error))?;
    if !fs::FileType::from_raw_mode(stat.st_mode).is_file() {
        return Err(untrusted(path, "is no regular file"));
    }
    trust(path, stat.st_uid, stat.st_mode)
}

fn trust(path: &Path, owner: u32, mode: u32) -> Result<(), FileError> {
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
