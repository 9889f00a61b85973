//! A file that somebody else keeps, a bundle's `config.json` or a daemon's configuration: read
//! once, replaced whole.

mod staged;

use std::ffi::{CStr, CString, OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, XattrFlags};
use rustix::io::Errno;

use crust_blockfs::bounded;

use staged::Temp;
pub use staged::{Staged, put, stage_new, sweep};

/// The largest such file that is read: several times what a config can come to on its way through
/// CRI, whose messages have 16 MiB at most.
pub const MAX_FOREIGN_SIZE: u64 = 128 * 1024 * 1024;

/// The error of reading or replacing such a file.
#[derive(Debug, thiserror::Error)]
pub enum ForeignFileError {
    /// A system call.
    #[error("{call}({path:?})")]
    Call {
        /// Its name.
        call: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The error.
        #[source]
        source: io::Error,
    },
    /// A directory, a pipe, a device.
    #[error("{} is not a regular file; hint: give the configuration as a file", .0.display())]
    NotAFile(PathBuf),
    /// It would be read into memory, by each program that looks at it.
    #[error("{} has more than {MAX_FOREIGN_SIZE} bytes; hint: what is in it?", .0.display())]
    TooLarge(PathBuf),
    /// Whose file it is follows the link; a replacement would leave its target as it is, for
    /// whoever else uses it, and turn the link into a file.
    #[error(
        "{} is a symbolic link, and what it leads to would have to be rewritten; \
         hint: put the file itself there", .0.display()
    )]
    Symlink(PathBuf),
    /// Another file is there now.
    #[error(
        "{} was replaced while it was read; hint: is another program changing it?",
        .0.display()
    )]
    Changed(PathBuf),
    /// Somebody mounted it there, and a file can't take a mount's place.
    #[error(
        "{} is a mount point (a container's file?) and can't be replaced; hint: mount its directory \
         instead, or edit what is mounted", .0.display()
    )]
    MountPoint(PathBuf),
    /// Only with thousands of left-overs.
    #[error("no free name for a temporary file beside {}; hint: remove .*.runcrust there", .0.display())]
    NoName(PathBuf),
}

/// An open file, with the bytes that were in it.
#[derive(Debug)]
pub struct ForeignFile {
    /// For messages only; acts go through `dir`.
    path: PathBuf,
    dir: OwnedFd,
    name: OsString,
    file: File,
    stat: Stat,
    bytes: Vec<u8>,
}

impl ForeignFile {
    /// Reads a file. `None`: there is no such file.
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
        // Links are followed, as the delegates do. NONBLOCK: a pipe must not hang us.
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
        // All at once: grown as it is read it would take twice as much.
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

    /// Puts `bytes` in the file's place, atomically, with its mode, owner and
    /// extended attributes (docs/callers.md). On an error the old file stays.
    pub fn replace(&self, bytes: &[u8]) -> Result<(), ForeignFileError> {
        // The directory isn't synced: after a crash of the node either file of a bundle will do, for
        // its container is gone.
        self.stage(bytes)?.commit()
    }

    /// Makes all ready for [`Self::replace`] but the last step.
    pub fn stage(&self, bytes: &[u8]) -> Result<Staged<'_>, ForeignFileError> {
        let temp = Temp::create(&self.dir, &self.name, &self.path)?;
        temp.write(bytes)?;
        // The owner first: a change of it clears mode bits and security.capability.
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
        Ok(Staged::replacement(temp, self))
    }

    /// Makes ready for the file's removal: finds out whether its directory can be written.
    pub fn stage_removal(&self) -> Result<Staged<'_>, ForeignFileError> {
        let temp = Temp::create(&self.dir, &self.name, &self.path)?;
        Ok(Staged::removal(temp, self))
    }

    /// Removes what is left of its next contents, as [`sweep`] does.
    pub fn sweep(&self) -> Result<(), ForeignFileError> {
        staged::sweep_in(&self.dir, &self.name, &self.path)
    }

    /// The file as it is now.
    pub fn again(&self) -> Result<Self, ForeignFileError> {
        let dir = self.dir.try_clone().map_err(io_call("dup", &self.path))?;
        let file = Self::read_in(dir, &self.name, self.path.clone())?;
        file.ok_or_else(|| ForeignFileError::Changed(self.path.clone()))
    }

    /// Whether the file is still what was read. By a link it can't be told.
    pub fn is_unchanged(&self) -> Result<bool, ForeignFileError> {
        let now = existing(self.stat_again()).map_err(self.failed("lstat"))?;
        Ok(now.is_some_and(|now| self.is_as_read(&now)))
    }

    fn check_unchanged(&self) -> Result<(), ForeignFileError> {
        let now = self.stat_again().map_err(self.failed("lstat"))?;
        if FileType::from_raw_mode(now.st_mode) == FileType::Symlink {
            return Err(ForeignFileError::Symlink(self.path.clone()));
        }
        if self.is_as_read(&now) {
            Ok(())
        } else {
            Err(ForeignFileError::Changed(self.path.clone()))
        }
    }

    fn stat_again(&self) -> Result<Stat, Errno> {
        rustix::fs::statat(&self.dir, &self.name, AtFlags::SYMLINK_NOFOLLOW)
    }

    fn is_as_read(&self, now: &Stat) -> bool {
        let of = |stat: &Stat| {
            let modified = (stat.st_mtime, stat.st_mtime_nsec);
            (stat.st_dev, stat.st_ino, stat.st_size, modified)
        };
        of(now) == of(&self.stat)
    }

    fn copy_xattrs(&self, to: &File) -> Result<(), ForeignFileError> {
        for name in xattr_names(&self.file).map_err(self.failed("flistxattr"))? {
            // Digests of the old content: they would make the new one unreadable under IMA.
            if matches!(name.to_bytes(), b"security.ima" | b"security.evm") {
                continue;
            }
            let value = xattr(&self.file, &name).map_err(self.failed("fgetxattr"))?;
            if let Err(errno) = rustix::fs::fsetxattr(to, &*name, &value, XattrFlags::empty()) {
                // A label that may not be set is often inherited from the directory.
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

/// The names of a file's extended attributes; none where the file system has no such thing.
fn xattr_names(file: &File) -> Result<Vec<CString>, Errno> {
    let list = match grown(|buffer| rustix::fs::flistxattr(file, buffer)) {
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
    grown(|buffer| rustix::fs::fgetxattr(file, name, buffer))
}

/// Calls `read` with a larger buffer while it says that this one is too small (xattr(7): 64 kB
/// at most).
fn grown(read: impl Fn(&mut [u8]) -> Result<usize, Errno>) -> Result<Vec<u8>, Errno> {
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
    fn a_missing_file_or_bundle_is_no_error() {
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
    fn installing_a_file_replaces_it_but_not_what_runs() {
        let dir = bundle("old");
        let path = dir.path().join("config.json");
        let mut before = fs::File::open(&path).unwrap();
        put(&path, b"new", 0o755).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o755);
        let mut kept = String::new();
        before.read_to_string(&mut kept).unwrap();
        assert_eq!(kept, "old");
        assert_eq!(names(dir.path()), ["config.json"]);
        let nowhere = put(&dir.path().join("no/x"), b"", 0o755).unwrap_err();
        assert!(nowhere.to_string().contains("no"), "{nowhere}");
    }

    #[test]
    fn what_is_no_regular_file_is_refused_without_hanging() {
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
    fn a_file_that_was_changed_meanwhile_is_not_replaced() {
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
    fn a_left_over_of_a_killed_process_is_no_obstacle() {
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
    fn a_failure_before_the_rename_leaves_the_old_file_alone() {
        let dir = bundle("text");
        let file = read(dir.path());
        let temp = Temp::create(&file.dir, &file.name, &file.path).unwrap();
        assert_eq!(names(dir.path()).len(), 2);
        drop(temp);
        assert_eq!(names(dir.path()), ["config.json"]);
    }
}
