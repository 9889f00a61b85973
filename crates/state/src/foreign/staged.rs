//! Atomic changes of a file: the new content is written to a temporary file beside it, which is then renamed.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::{ForeignFile, ForeignFileError, call, io_call};

/// The suffix of each temporary file's name.
const SUFFIX: &str = "runcrust";

/// A prepared change of a file. Only its last step is missing; the steps that are likely to fail have been done. If the
/// value is dropped, the file is unchanged and the temporary file is removed.
#[derive(Debug)]
pub struct StagedChange<'a> {
    temp: TemporaryFile,
    action: Action<'a>,
}

#[derive(Debug)]
enum Action<'a> {
    /// Creates the file, or replaces an existing one.
    Write,
    /// Creates the file. Fails if it exists.
    Create,
    /// Replaces the file. Fails if it has changed since it was read.
    Replace(&'a ForeignFile),
    /// Removes the file. Fails if it has changed since it was read.
    Remove(&'a ForeignFile),
}

impl<'a> StagedChange<'a> {
    pub(super) fn replacement(temp: TemporaryFile, file: &'a ForeignFile) -> Self {
        let action = Action::Replace(file);
        Self { temp, action }
    }

    pub(super) fn removal(temp: TemporaryFile, file: &'a ForeignFile) -> Self {
        let action = Action::Remove(file);
        Self { temp, action }
    }

    /// Carries out the change. Fails if another program has changed the file since it was read.
    pub fn commit(mut self) -> Result<(), ForeignFileError> {
        self.run()
    }

    /// Carries out the change as [`Self::commit`] does, and syncs the directory, so that the change survives a crash of
    /// the node.
    pub fn commit_synced(mut self) -> Result<(), ForeignFileError> {
        self.run()?;
        rustix::fs::fsync(&self.temp.dir).map_err(call("fsync", &self.temp.path))
    }

    fn run(&mut self) -> Result<(), ForeignFileError> {
        match self.action {
            Action::Write => self.temp.rename(RenameFlags::empty()),
            Action::Create => self.temp.rename(RenameFlags::NOREPLACE),
            Action::Replace(file) => {
                file.check_unchanged()?;
                self.temp.rename(RenameFlags::empty())
            }
            Action::Remove(file) => {
                file.check_unchanged()?;
                self.temp.unlink(&self.temp.name)
            }
        }
    }
}

/// Writes a file that root owns, with this mode, atomically, and syncs it. Replaces an existing file. Processes that
/// have the old file open, or execute it, keep it.
pub fn write_file(path: &Path, bytes: &[u8], mode: u32) -> Result<(), ForeignFileError> {
    let temp = write_temp(path, bytes, mode)?;
    let action = Action::Write;
    StagedChange { temp, action }.commit_synced()
}

/// Prepares a new file. [`StagedChange::commit`] creates it, and fails if the file exists by then. Fails if the
/// directory doesn't exist.
pub fn stage_new_file(
    path: &Path,
    bytes: &[u8],
    mode: u32,
) -> Result<StagedChange<'static>, ForeignFileError> {
    let temp = write_temp(path, bytes, mode)?;
    let action = Action::Create;
    Ok(StagedChange { temp, action })
}

fn write_temp(path: &Path, bytes: &[u8], mode: u32) -> Result<TemporaryFile, ForeignFileError> {
    let (dir, name) = split(path)?;
    let temp = TemporaryFile::create(&open(dir)?, name, path)?;
    temp.write(bytes)?;
    rustix::fs::fchmod(temp.file(), Mode::from_raw_mode(mode)).map_err(call("fchmod", path))?;
    temp.sync()?;
    Ok(temp)
}

/// Removes the temporary files that killed writers of a file have left beside it. The caller has to hold a lock that
/// all writers of the file take: the temporary file of a live writer would be removed too.
pub fn remove_leftovers(path: &Path) -> Result<(), ForeignFileError> {
    let (dir, name) = split(path)?;
    let dir_fd = match open(dir) {
        Err(ForeignFileError::Call { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return Ok(());
        }
        other => other?,
    };
    remove_leftovers_in(&dir_fd, name, path)
}

pub(super) fn remove_leftovers_in(
    dir: &OwnedFd,
    name: &OsStr,
    path: &Path,
) -> Result<(), ForeignFileError> {
    let entries = rustix::fs::Dir::read_from(dir).map_err(call("getdents", path))?;
    for entry in entries {
        let entry = entry.map_err(call("getdents", path))?;
        let found = OsStr::from_bytes(entry.file_name().to_bytes());
        if is_temporary(found, name) {
            rustix::fs::unlinkat(dir, found, AtFlags::empty())
                .map_err(call("unlink", &path.with_file_name(found)))?;
        }
    }
    Ok(())
}

/// Returns whether `found` is a temporary name of the file `name`: `.<name>.<pid>.<attempt>.runcrust`.
fn is_temporary(found: &OsStr, name: &OsStr) -> bool {
    let numbers = || {
        let rest = found.as_encoded_bytes().strip_prefix(b".")?;
        let rest = rest.strip_prefix(name.as_encoded_bytes())?;
        let rest = str::from_utf8(rest.strip_prefix(b".")?).ok()?;
        rest.strip_suffix(SUFFIX)?
            .strip_suffix('.')?
            .split_once('.')
    };
    let is_number = |text: &str| text.parse::<u32>().is_ok();
    numbers().is_some_and(|(pid, attempt)| is_number(pid) && is_number(attempt))
}

fn split(path: &Path) -> Result<(&Path, &OsStr), ForeignFileError> {
    let parts = path.parent().zip(path.file_name());
    parts.ok_or_else(|| ForeignFileError::NotAFile(path.to_path_buf()))
}

fn open(dir: &Path) -> Result<OwnedFd, ForeignFileError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, dir, flags, Mode::empty()).map_err(call("open", dir))
}

/// A temporary file. If the value is dropped before the file was renamed, the file is removed.
#[derive(Debug)]
pub(super) struct TemporaryFile {
    dir: OwnedFd,
    temporary: OsString,
    name: OsString,
    path: PathBuf,
    file: File,
    renamed: bool,
}

impl TemporaryFile {
    pub(super) fn create(
        dir: &OwnedFd,
        name: &OsStr,
        path: &Path,
    ) -> Result<Self, ForeignFileError> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let owner_only = Mode::RUSR | Mode::WUSR;
        for attempt in 0..1024_u32 {
            let mut temporary = OsString::from(".");
            temporary.push(name);
            temporary.push(format!(".{}.{attempt}.{SUFFIX}", std::process::id()));
            match rustix::fs::openat(dir, &temporary, flags, owner_only) {
                Ok(fd) => {
                    return Ok(Self {
                        dir: dir.try_clone().map_err(io_call("dup", path))?,
                        temporary,
                        name: name.to_os_string(),
                        path: path.to_path_buf(),
                        file: File::from(fd),
                        renamed: false,
                    });
                }
                // A killed process with the same pid has left a file with this name.
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(call("open", &path.with_file_name(&temporary))(errno)),
            }
        }
        Err(ForeignFileError::NoName(path.to_path_buf()))
    }

    pub(super) const fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn write(&self, bytes: &[u8]) -> Result<(), ForeignFileError> {
        let mut file = &self.file;
        file.write_all(bytes).map_err(io_call("write", &self.path))
    }

    /// Waits until the content is on the disk.
    pub(super) fn sync(&self) -> Result<(), ForeignFileError> {
        rustix::fs::fsync(&self.file).map_err(call("fsync", &self.path))
    }

    /// Renames the file to its final name.
    fn rename(&mut self, flags: RenameFlags) -> Result<(), ForeignFileError> {
        let (dir, from, to) = (&self.dir, &self.temporary, &self.name);
        let renamed = if flags.is_empty() {
            rustix::fs::renameat(dir, from, dir, to)
        } else {
            rustix::fs::renameat_with(dir, from, dir, to, flags)
        };
        renamed.map_err(|errno| match errno {
            Errno::EXIST => ForeignFileError::Changed(self.path.clone()),
            Errno::BUSY => ForeignFileError::MountPoint(self.path.clone()),
            errno => call("rename", &self.path)(errno),
        })?;
        self.renamed = true;
        Ok(())
    }

    fn unlink(&self, name: &OsStr) -> Result<(), ForeignFileError> {
        rustix::fs::unlinkat(&self.dir, name, AtFlags::empty()).map_err(|errno| match errno {
            Errno::BUSY => ForeignFileError::MountPoint(self.path.clone()),
            errno => call("unlink", &self.path)(errno),
        })
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        if !self.renamed {
            // The caller reports the error that led here.
            let _ = rustix::fs::unlinkat(&self.dir, &self.temporary, AtFlags::empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn temporary_file_path() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        (dir, path)
    }

    fn names(dir: &Path) -> Vec<OsString> {
        let entries = fs::read_dir(dir).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_dropped_change_leaves_the_directory_unchanged() {
        let (dir, path) = temporary_file_path();
        drop(stage_new_file(&path, b"new", 0o644).unwrap());
        assert!(names(dir.path()).is_empty());
        fs::write(&path, "old").unwrap();
        let file = ForeignFile::read(&path).unwrap().unwrap();
        drop(file.stage(b"new").unwrap());
        drop(file.stage_removal().unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(names(dir.path()), ["file"]);
        file.stage_removal().unwrap().commit_synced().unwrap();
        assert!(names(dir.path()).is_empty());
    }

    #[test]
    fn a_change_fails_if_the_file_has_changed_since_it_was_read() {
        let (dir, path) = temporary_file_path();
        let new = stage_new_file(&path, b"new", 0o644).unwrap();
        fs::write(&path, "else").unwrap();
        let error = new.commit().unwrap_err();
        assert!(matches!(error, ForeignFileError::Changed(_)), "{error}");

        let file = ForeignFile::read(&path).unwrap().unwrap();
        for staged in [file.stage(b"new").unwrap(), file.stage_removal().unwrap()] {
            fs::write(&path, "something else").unwrap();
            let error = staged.commit().unwrap_err();
            assert!(matches!(error, ForeignFileError::Changed(_)), "{error}");
        }
        assert_eq!(fs::read(&path).unwrap(), b"something else");
        assert_eq!(names(dir.path()), ["file"]);
    }

    #[test]
    fn only_leftovers_of_the_same_file_are_removed() {
        let (dir, path) = temporary_file_path();
        let others = [
            ".file.1.x.runcrust",
            ".file.1.runcrust",
            ".other.1.0.runcrust",
            "file",
        ];
        for name in others
            .iter()
            .chain(&[".file.1.0.runcrust", ".file.99999.3.runcrust"])
        {
            fs::write(dir.path().join(name), "").unwrap();
        }
        remove_leftovers(&path).unwrap();
        let mut expected = others.map(OsString::from);
        expected.sort();
        assert_eq!(names(dir.path()), expected);
        remove_leftovers(&dir.path().join("none/file")).unwrap();
    }
}
