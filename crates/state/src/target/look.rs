//! One look at how much of a target path is there, for all that is asked of it.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, OFlags, ResolveFlags, StatxFlags, statx};
use rustix::io::Errno;

use super::{StandingError, TargetPath};
use crust_blockfs::DeviceNumber;
use crust_blockfs::beneath;

/// Over no link.
const PLAINLY: ResolveFlags = ResolveFlags::NO_SYMLINKS;

/// What was seen of a path.
#[derive(Debug)]
pub struct TargetLook<'a> {
    pub(super) path: &'a TargetPath,
    pub(super) plain: Option<Plain<'a>>,
}

/// The deepest part of a path that is there, with no link on the way to it: so it is what it leads to, and one
/// call has said so. (`realpath(3)` is one for each name.)
#[derive(Debug)]
pub(super) struct Plain<'a> {
    pub(super) part: &'a Path,
    pub(super) is_directory: bool,
    /// `st_dev`.
    pub(super) device: DeviceNumber,
}

impl<'a> Plain<'a> {
    /// What never changes of a file, and is known where it is open: no server is asked, as by fstat(2).
    fn of(part: &'a Path, there: &OwnedFd) -> Result<Self, Errno> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let stat = statx(there, c"", flags, StatxFlags::TYPE)?;
        Ok(Self {
            part,
            is_directory: FileType::from_raw_mode(stat.stx_mode.into()).is_dir(),
            device: DeviceNumber::new(stat.stx_dev_major, stat.stx_dev_minor),
        })
    }
}

impl TargetPath {
    /// Looks.
    #[must_use]
    pub fn look(&self) -> TargetLook<'_> {
        let plain = self.plain(|part| beneath::open(CWD, part, OFlags::PATH, PLAINLY));
        TargetLook { path: self, plain }
    }

    /// The same where nothing is to be waited for, neither a disk nor a file server: the kernel remembers the whole
    /// way. `None` where it doesn't, or there is a link.
    #[must_use]
    pub fn look_at_once(&self) -> Option<TargetLook<'_>> {
        let plain = self.plain(|part| beneath::open_at_once(part, PLAINLY))?;
        Some(TargetLook {
            path: self,
            plain: Some(plain),
        })
    }

    /// Where the path leads when the symbolic links that exist on the way are resolved; what
    /// doesn't exist yet is kept as it is.
    ///
    /// containerd and CRI-O hand mount sources on in this form.
    pub fn resolved(&self) -> io::Result<Self> {
        self.look().resolved()
    }

    /// `None` where there is a link, or anything else to be said: who walks the path says it.
    fn plain(&self, open: impl Fn(&Path) -> Result<OwnedFd, Errno>) -> Option<Plain<'_>> {
        for part in self.as_path().ancestors() {
            match open(part) {
                Ok(there) => return Plain::of(part, &there).ok(),
                Err(Errno::NOENT) => {}
                Err(_) => return None,
            }
        }
        None
    }
}

impl TargetLook<'_> {
    /// Of which path.
    #[must_use]
    pub fn path(&self) -> &TargetPath {
        self.path
    }

    /// See [`TargetPath::resolved`].
    pub(crate) fn resolved(&self) -> io::Result<TargetPath> {
        match self.plain {
            Some(_) => Ok(self.path.clone()),
            None => walked(self.path),
        }
    }

    /// `st_dev` of the deepest directory of the path that is there.
    pub(crate) fn device(&self) -> Result<DeviceNumber, StandingError> {
        match &self.plain {
            Some(plain) if plain.is_directory => Ok(plain.device),
            _ => Ok(self.standing()?.device),
        }
    }

    /// Returns the number of entries that a volume with this target path has: two if symbolic links lead to it.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.spellings().len() as u64
    }

    /// Returns the path as it was given and, where it differs, with its links resolved.
    #[must_use]
    pub fn spellings(&self) -> Vec<TargetPath> {
        let mut paths = vec![self.path.clone()];
        let resolved = self.resolved().ok();
        paths.extend(resolved.filter(|resolved| resolved != self.path));
        paths
    }
}

fn walked(path: &TargetPath) -> io::Result<TargetPath> {
    let mut missing: Vec<&OsStr> = Vec::new();
    let mut existing = path.as_path();
    loop {
        match fs::canonicalize(existing) {
            Ok(mut real) => {
                real.extend(missing.iter().rev());
                return Ok(TargetPath(real.into_os_string().into_vec()));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // A dangling link would resolve elsewhere once its target exists.
                if existing.is_symlink() {
                    return Err(error);
                }
                let (Some(parent), Some(name)) = (existing.parent(), existing.file_name()) else {
                    return Err(error);
                };
                missing.push(name);
                existing = parent;
            }
            Err(error) => return Err(error),
        }
    }
}
