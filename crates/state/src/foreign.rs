//! Files that other programs own: a bundle's `config.json`, or the configuration of a daemon. They are read once and
//! replaced atomically.

mod staged;

use std::ffi::{CStr, CString, OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, XattrFlags};
use rustix::io::Errno;

use crust_blockfs::bounded;

use staged::TemporaryFile;
pub use staged::{StagedChange, remove_leftovers, stage_new_file, write_file};

/// The size limit in bytes of a file that is read. It is several times the size of the largest config that a CRI
/// client can cause: CRI messages have at most 16 MiB.
pub const MAX_FOREIGN_SIZE: u64 = 128 * 1024 * 1024;

/// The error of reading or replacing a file of another program.
#[derive(Debug, thiserror::Error)]
pub enum ForeignFileError {
    #[error("{call}({path:?})")]
    Call {
        /// The name of the system call.
        call: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The path is a directory, a pipe or a device.
    #[error("{} is not a regular file; hint: give the configuration as a file", .0.display())]
    NotAFile(PathBuf),
    /// The file is too large to be read into memory.
    #[error("{} has more than {MAX_FOREIGN_SIZE} bytes; hint: check its content", .0.display())]
    TooLarge(PathBuf),
    /// The path is a symbolic link. A replacement would turn the link into a file, and programs that use the link's
    /// target directly would keep the old content.
    #[error(
        "{} is a symbolic link, and runcrust doesn't rewrite the target of a link; \
         hint: replace the link with the file itself", .0.display()
    )]
    Symlink(PathBuf),
    /// The file was changed or replaced since it was read.
    #[error(
        "{} was changed or replaced since it was read; hint: check whether another program is changing it, and retry",
        .0.display()
    )]
    Changed(PathBuf),
    /// The file is a mount point, which rename(2) can't replace.
    #[error(
        "{} is a mount point, such as a file that is mounted into a container, and can't be replaced; hint: mount its \
         directory instead, or edit the file that is mounted", .0.display()
    )]
    MountPoint(PathBuf),
    /// Every temporary name that was tried is taken by a leftover.
    #[error("no free name for a temporary file beside {}; hint: remove .*.runcrust there", .0.display())]
    NoName(PathBuf),
}

/// A file of another program that was read and is still open.
#[derive(Debug)]
pub struct ForeignFile {
    /// The path, for messages only. Operations use `dir` and `name`.
    path: PathBuf,
    dir: OwnedFd,
    name: OsString,
    file: File,
    stat: Stat,
    bytes: Vec<u8>,
}

impl ForeignFile {
    /// Reads a file. Returns `None` if it doesn't exist.
    pub fn read(path: &Path) -> Result<Option<Self>, ForeignFileError> {
        let (dir, name) = match (path.parent(), path.file_name()) {
            (Some(dir), Some(name)) if dir.as_os_str().is_empty() => (Path::new("."), name),
            (Some(dir), Some(name)) => (dir, name),
            _ => return Err(ForeignFileError::NotAFile(path.to_path_buf())),
        };
        let path = dir.join(name);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Some(dir_fd) = existing(rustix::fs::openat(CWD, dir, flags, Mode::empty()))
            .map_err(call("open", dir))?
        else {
            return Ok(None);
        };
        Self::read_in(dir_fd, name, path)
    }

    fn read_in(
        dir: OwnedFd,
        name: &OsStr,
        path: PathBuf,
    ) -> Result<Option<Self>, ForeignFileError> {
        // Links are followed, as the delegates do. NONBLOCK: a pipe must not block the open.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let Some(fd) = existing(rustix::fs::openat(&dir, name, flags, Mode::empty()))
            .map_err(call("open", &path))?
        else {
            return Ok(None);
        };
        let stat = rustix::fs::fstat(&fd).map_err(call("fstat", &path))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(ForeignFileError::NotAFile(path));
        }
        let file = File::from(fd);
        let size = u64::try_from(stat.st_size).unwrap_or_default();
        // Allocated at once: a vector that grows during the read would take twice the memory.
        let size = usize::try_from(size.min(MAX_FOREIGN_SIZE)).unwrap_or_default();
        let bytes = match bounded::read_all(&file, size, MAX_FOREIGN_SIZE) {
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                return Err(ForeignFileError::TooLarge(path));
            }
            read => read.map_err(io_call("read", &path))?,
        };
        Ok(Some(Self {
            path,
            dir,
            name: name.to_os_string(),
            file,
            stat,
            bytes,
        }))
    }

    /// Returns the file's content.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Replaces the file atomically by one with the content `bytes` and the same mode, owner and extended attributes
    /// (docs/callers.md). After an error, the file is unchanged.
    pub fn replace(&self, bytes: &[u8]) -> Result<(), ForeignFileError> {
        // The directory isn't synced. After a crash of the node, either version of a bundle's config will do, because
        // its container is gone.
        self.stage(bytes)?.commit()
    }

    /// Prepares what [`Self::replace`] does. [`StagedChange::commit`] replaces the file.
    pub fn stage(&self, bytes: &[u8]) -> Result<StagedChange<'_>, ForeignFileError> {
        let temp = TemporaryFile::create(&self.dir, &self.name, &self.path)?;
        temp.write(bytes)?;
        // The owner is set first, because that clears mode bits and security.capability.
        rustix::fs::fchown(
            temp.file(),
            Some(rustix::fs::Uid::from_raw(self.stat.st_uid)),
            Some(rustix::fs::Gid::from_raw(self.stat.st_gid)),
        )
        .map_err(self.failed("fchown"))?;
        self.copy_xattrs(temp.file())?;
        rustix::fs::fchmod(temp.file(), Mode::from_raw_mode(self.stat.st_mode & 0o7777))
            .map_err(self.failed("fchmod"))?;
        temp.sync()?;
        Ok(StagedChange::replacement(temp, self))
    }

    /// Prepares the removal of the file. [`StagedChange::commit`] removes it. Fails if the file's directory isn't
    /// writable.
    pub fn stage_removal(&self) -> Result<StagedChange<'_>, ForeignFileError> {
        let temp = TemporaryFile::create(&self.dir, &self.name, &self.path)?;
        Ok(StagedChange::removal(temp, self))
    }

    /// Removes leftovers of killed writers of this file, as [`remove_leftovers`] does.
    pub fn remove_leftovers(&self) -> Result<(), ForeignFileError> {
        staged::remove_leftovers_in(&self.dir, &self.name, &self.path)
    }

    /// Reads the file again. Fails if it doesn't exist any more.
    pub fn read_again(&self) -> Result<Self, ForeignFileError> {
        let dir = self.dir.try_clone().map_err(io_call("dup", &self.path))?;
        let file = Self::read_in(dir, &self.name, self.path.clone())?;
        file.ok_or_else(|| ForeignFileError::Changed(self.path.clone()))
    }

    /// Returns whether the file is still the one that was read. Always false for a symbolic link.
    pub fn is_unchanged(&self) -> Result<bool, ForeignFileError> {
        let now = existing(self.stat_again()).map_err(self.failed("lstat"))?;
        Ok(now.is_some_and(|now| self.is_unmodified(&now)))
    }

    fn check_unchanged(&self) -> Result<(), ForeignFileError> {
        let now = self.stat_again().map_err(self.failed("lstat"))?;
        if FileType::from_raw_mode(now.st_mode) == FileType::Symlink {
            return Err(ForeignFileError::Symlink(self.path.clone()));
        }
        if self.is_unmodified(&now) {
            Ok(())
        } else {
            Err(ForeignFileError::Changed(self.path.clone()))
        }
    }

    fn stat_again(&self) -> Result<Stat, Errno> {
        rustix::fs::statat(&self.dir, &self.name, AtFlags::SYMLINK_NOFOLLOW)
    }

    fn is_unmodified(&self, now: &Stat) -> bool {
        let identity = |stat: &Stat| {
            let modified = (stat.st_mtime, stat.st_mtime_nsec);
            (stat.st_dev, stat.st_ino, stat.st_size, modified)
        };
        identity(now) == identity(&self.stat)
    }

    fn copy_xattrs(&self, to: &File) -> Result<(), ForeignFileError> {
        for name in xattr_names(&self.file).map_err(self.failed("flistxattr"))? {
            // These attributes contain digests of the old content. They would make the new file unreadable under IMA.
            if matches!(name.to_bytes(), b"security.ima" | b"security.evm") {
                continue;
            }
            let value = xattr(&self.file, &name).map_err(self.failed("fgetxattr"))?;
            if let Err(errno) = rustix::fs::fsetxattr(to, &*name, &value, XattrFlags::empty()) {
                // This process may not be allowed to set a label that the file inherits from its directory anyway.
                if xattr(to, &name).ok().as_deref() != Some(&*value) {
                    return Err(self.failed("fsetxattr")(errno));
                }
            }
        }
        Ok(())
    }

    fn failed(&self, name: &'static str) -> impl FnOnce(Errno) -> ForeignFileError {
        call(name, &self.path)
    }
}

/// Returns the names of a file's extended attributes. Returns none if the file system doesn't support them.
fn xattr_names(file: &File) -> Result<Vec<CString>, Errno> {
    let list = match read_growing(|buffer| rustix::fs::flistxattr(file, buffer)) {
        Err(Errno::NOTSUP) => Vec::new(),
        other => other?,
    };
    let names = list.split_inclusive(|&byte| byte == 0);
    Ok(names
        .filter_map(|name| CStr::from_bytes_with_nul(name).ok())
        .map(CStr::to_owned)
        .collect())
}

fn xattr(file: &File, name: &CStr) -> Result<Vec<u8>, Errno> {
    read_growing(|buffer| rustix::fs::fgetxattr(file, name, buffer))
}

/// Calls `read` with larger and larger buffers while it fails with `ERANGE`. Values and lists have at most 64 kB
/// (xattr(7)).
fn read_growing(read: impl Fn(&mut [u8]) -> Result<usize, Errno>) -> Result<Vec<u8>, Errno> {
    let mut buffer = vec![0; 256];
    loop {
        match read(&mut buffer) {
            Err(Errno::RANGE) if buffer.len() < 1 << 20 => buffer.resize(buffer.len() * 16, 0),
            Err(errno) => return Err(errno),
            Ok(length) => {
                buffer.truncate(length);
                return Ok(buffer);
            }
        }
    }
}

/// Turns "not found" errors into `None`.
fn existing<T>(opened: Result<T, Errno>) -> Result<Option<T>, Errno> {
    match opened {
        Ok(fd) => Ok(Some(fd)),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(errno) => Err(errno),
    }
}

fn call(name: &'static str, path: &Path) -> impl FnOnce(Errno) -> ForeignFileError {
    let path = path.to_path_buf();
    move |errno| ForeignFileError::Call {
        call: name,
        path,
        source: errno.into(),
    }
}

fn io_call(name: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ForeignFileError {
    let path = path.to_path_buf();
    move |source| ForeignFileError::Call {
        call: name,
        path,
        source,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Read as _;
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;

    fn bundle(text: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("config.json"), text).unwrap();
        dir
    }

    fn read(bundle: &Path) -> ForeignFile {
        ForeignFile::read(&bundle.join("config.json"))
            .unwrap()
            .unwrap()
    }

    fn names(dir: &Path) -> Vec<OsString> {
        fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect()
    }

    #[test]
    fn a_missing_file_or_bundle_is_not_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("file"), "").unwrap();
        fs::create_dir(at("b")).unwrap();
        symlink("nowhere", at("b/config.json")).unwrap();
        for bundle in [dir.path(), &at("none"), &at("file"), &at("b")] {
            assert!(
                ForeignFile::read(&bundle.join("config.json"))
                    .unwrap()
                    .is_none(),
                "{}",
                bundle.display()
            );
        }
        assert!(ForeignFile::read(&at("no/such")).unwrap().is_none());
    }

    #[test]
    fn a_written_file_replaces_the_old_one_but_not_its_open_copies() {
        let dir = bundle("old");
        let path = dir.path().join("config.json");
        let mut before = fs::File::open(&path).unwrap();
        write_file(&path, b"new", 0o755).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o755);
        let mut kept = String::new();
        before.read_to_string(&mut kept).unwrap();
        assert_eq!(kept, "old");
        assert_eq!(names(dir.path()), ["config.json"]);
        let error = write_file(&dir.path().join("no/x"), b"", 0o755).unwrap_err();
        assert!(error.to_string().contains("no"), "{error}");
    }

    #[test]
    fn a_pipe_or_a_directory_is_refused_without_blocking() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        rustix::fs::mkfifoat(CWD, &path, Mode::RUSR | Mode::WUSR).unwrap();
        let error = ForeignFile::read(&path).unwrap_err();
        assert!(matches!(error, ForeignFileError::NotAFile(_)), "{error}");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        let error = ForeignFile::read(&path).unwrap_err();
        assert!(matches!(error, ForeignFileError::NotAFile(_)), "{error}");
    }

    #[test]
    fn a_file_that_is_too_large_is_not_read_into_memory() {
        let dir = bundle("");
        let path = dir.path().join("config.json");
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(MAX_FOREIGN_SIZE + 1).unwrap();
        let error = ForeignFile::read(&path).unwrap_err();
        assert!(matches!(error, ForeignFileError::TooLarge(_)), "{error}");
        assert!(
            error.to_string().contains("config.json has more than"),
            "{error}"
        );
    }

    #[test]
    fn a_replaced_file_keeps_mode_owner_and_attributes() {
        let dir = bundle("old");
        let path = dir.path().join("config.json");
        let file = fs::File::open(&path).unwrap();
        rustix::fs::fchmod(&file, Mode::from_raw_mode(0o4640)).unwrap();
        let big = vec![b'x'; 3000];
        let mut attributes = vec![("user.crust", b"value".to_vec()), ("user.big", big)];
        let set = |name: &str, value: &[u8]| {
            rustix::fs::fsetxattr(&file, name, value, XattrFlags::empty())
        };
        attributes.retain(|(name, value)| set(name, value).is_ok());
        let before = fs::metadata(&path).unwrap();

        read(dir.path()).replace(b"new and longer").unwrap();

        let after = fs::metadata(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new and longer");
        assert_ne!(after.ino(), before.ino());
        assert_eq!(
            (after.mode(), after.uid(), after.gid()),
            (before.mode(), before.uid(), before.gid())
        );
        let file = fs::File::open(&path).unwrap();
        for (name, value) in attributes {
            assert_eq!(
                xattr(&file, &CString::new(name).unwrap()).unwrap(),
                value,
                "{name}"
            );
        }
        assert_eq!(
            names(dir.path()),
            ["config.json"],
            "no temporary file stays"
        );
    }

    #[test]
    fn a_link_is_read_through_and_not_replaced() {
        let dir = bundle("text");
        let link = tempfile::tempdir().unwrap();
        symlink(
            dir.path().join("config.json"),
            link.path().join("config.json"),
        )
        .unwrap();
        let file = read(link.path());
        assert_eq!(file.bytes(), b"text");
        let error = file.replace(b"new").unwrap_err();
        assert!(matches!(error, ForeignFileError::Symlink(_)), "{error}");
        assert_eq!(fs::read(dir.path().join("config.json")).unwrap(), b"text");
        assert_eq!(names(link.path()), ["config.json"]);
    }

    #[test]
    fn a_file_that_was_changed_since_it_was_read_is_not_replaced() {
        let dir = bundle("text");
        let path = dir.path().join("config.json");
        let file = read(dir.path());
        fs::write(dir.path().join("x"), "else").unwrap();
        fs::rename(dir.path().join("x"), &path).unwrap();
        let error = file.replace(b"new").unwrap_err();
        assert!(matches!(error, ForeignFileError::Changed(_)), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"else");
    }

    #[test]
    fn a_leftover_does_not_prevent_a_replacement() {
        let dir = bundle("text");
        let left = dir
            .path()
            .join(format!(".config.json.{}.0.runcrust", std::process::id()));
        fs::write(&left, "half").unwrap();
        read(dir.path()).replace(b"new").unwrap();
        assert_eq!(read(dir.path()).bytes(), b"new");
        assert_eq!(fs::read(left).unwrap(), b"half");
    }

    #[test]
    fn a_failure_before_the_rename_leaves_no_temporary_file() {
        let dir = bundle("text");
        let file = read(dir.path());
        let temp = TemporaryFile::create(&file.dir, &file.name, &file.path).unwrap();
        assert_eq!(names(dir.path()).len(), 2);
        drop(temp);
        assert_eq!(names(dir.path()), ["config.json"]);
    }
}
