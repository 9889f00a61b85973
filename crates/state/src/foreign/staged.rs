//! A file's new content, written beside the file, and renamed to its name in one step.

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

/// A change that lacks its last step alone: all that is likely to fail has been done. Dropped, it
/// leaves nothing.
#[derive(Debug)]
pub struct Staged<'a> {
    temp: Temp,
    act: Act<'a>,
}

#[derive(Debug)]
enum Act<'a> {
    /// Whatever is there is replaced.
    Put,
    /// Nothing is there.
    Create,
    /// This is there still.
    Replace(&'a ForeignFile),
    Remove(&'a ForeignFile),
}

impl<'a> Staged<'a> {
    pub(super) fn replacement(temp: Temp, file: &'a ForeignFile) -> Self {
        let act = Act::Replace(file);
        Self { temp, act }
    }

    pub(super) fn removal(temp: Temp, file: &'a ForeignFile) -> Self {
        let act = Act::Remove(file);
        Self { temp, act }
    }

    /// The last step, unless somebody else has changed the file meanwhile.
    pub fn commit(mut self) -> Result<(), ForeignFileError> {
        self.act()
    }

    /// The same; it will outlive a crash of the node.
    pub fn commit_synced(mut self) -> Result<(), ForeignFileError> {
        self.act()?;
        rustix::fs::fsync(&self.temp.dir).map_err(call("fsync", &self.temp.path))
    }

    fn act(&mut self) -> Result<(), ForeignFileError> {
        match self.act {
            Act::Put => self.temp.rename(RenameFlags::empty()),
            Act::Create => self.temp.rename(RenameFlags::NOREPLACE),
            Act::Replace(file) => {
                file.check_unchanged()?;
                self.temp.rename(RenameFlags::empty())
            }
            Act::Remove(file) => {
                file.check_unchanged()?;
                self.temp.unlink(&self.temp.name)
            }
        }
    }
}

/// Writes a file of ours where somebody else looks for it, with this mode, root's: whole, and in the
/// place of one that is there. Whoever has that one open, or runs it, keeps it.
pub fn put(path: &Path, bytes: &[u8], mode: u32) -> Result<(), ForeignFileError> {
    let temp = written(path, bytes, mode)?;
    let act = Act::Put;
    Staged { temp, act }.commit_synced()
}

/// Makes one ready that nobody else has; its directory must be there.
pub fn stage_new(
    path: &Path,
    bytes: &[u8],
    mode: u32,
) -> Result<Staged<'static>, ForeignFileError> {
    let temp = written(path, bytes, mode)?;
    let act = Act::Create;
    Ok(Staged { temp, act })
}

fn written(path: &Path, bytes: &[u8], mode: u32) -> Result<Temp, ForeignFileError> {
    let (dir, name) = split(path)?;
    let temp = Temp::create(&open(dir)?, name, path)?;
    temp.write(bytes)?;
    rustix::fs::fchmod(temp.file(), Mode::from_raw_mode(mode)).map_err(call("fchmod", path))?;
    temp.sync()?;
    Ok(temp)
}

/// Removes what is left of a file's next contents whose writers were killed. For files alone whose
/// writers a lock keeps apart: one that lives would lose its own.
pub fn sweep(path: &Path) -> Result<(), ForeignFileError> {
    let (dir, name) = split(path)?;
    let dir_fd = match open(dir) {
        Err(ForeignFileError::Call { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return Ok(());
        }
        other => other?,
    };
    sweep_in(&dir_fd, name, path)
}

pub(super) fn sweep_in(dir: &OwnedFd, name: &OsStr, path: &Path) -> Result<(), ForeignFileError> {
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

/// `.<name>.<pid>.<attempt>.runcrust`
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

/// The new file until it has its name; removed when that doesn't come about.
#[derive(Debug)]
pub(super) struct Temp {
    dir: OwnedFd,
    temporary: OsString,
    name: OsString,
    path: PathBuf,
    file: File,
    renamed: bool,
}

impl Temp {
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
                // Left by a process of this id that was killed.
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

    /// Waits until it is on the disk.
    pub(super) fn sync(&self) -> Result<(), ForeignFileError> {
        rustix::fs::fsync(&self.file).map_err(call("fsync", &self.path))
    }

    /// Gives it its name.
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

impl Drop for Temp {
    fn drop(&mut self) {
        if !self.renamed {
            // The error that brought us here is the one to tell.
            let _ = rustix::fs::unlinkat(&self.dir, &self.temporary, AtFlags::empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn lab() -> (tempfile::TempDir, PathBuf) {
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
    fn nothing_is_changed_and_nothing_left_before_the_last_step() {
        let (dir, path) = lab();
        drop(stage_new(&path, b"new", 0o644).unwrap());
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

    /// Whoever came between would lose what he wrote.
    #[test]
    fn what_somebody_else_did_since_the_first_step_is_not_undone() {
        let (dir, path) = lab();
        let new = stage_new(&path, b"new", 0o644).unwrap();
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
    fn left_overs_of_this_file_alone_are_swept() {
        let (dir, path) = lab();
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
        sweep(&path).unwrap();
        let mut expected = others.map(OsString::from);
        expected.sort();
        assert_eq!(names(dir.path()), expected);
        sweep(&dir.path().join("none/file")).unwrap();
    }
}
