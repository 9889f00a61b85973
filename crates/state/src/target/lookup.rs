//! A lookup of a target path in the file system, made once for all that is asked about the path.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, OFlags, ResolveFlags, StatxFlags, statx};
use rustix::io::Errno;

use super::TargetPath;
use crust_blockfs::DeviceNumber;
use crust_blockfs::openat2;

/// Fails at a symbolic link.
const PLAINLY: ResolveFlags = ResolveFlags::NO_SYMLINKS;

/// The result of looking a target path up.
#[derive(Debug)]
pub struct TargetLookup<'a> {
    pub(super) path: &'a TargetPath,
    pub(super) plain: Option<Plain<'a>>,
}

/// The deepest part of a path that exists, with no link on the way to it. So it is its own resolved form, and one call
/// has told that (`realpath(3)` makes one for each component).
#[derive(Debug)]
pub(super) struct Plain<'a> {
    pub(super) part: &'a Path,
    pub(super) is_directory: bool,
    /// `st_dev`.
    pub(super) device: DeviceNumber,
}

impl<'a> Plain<'a> {
    /// Reads the attributes that never change of an open file. No file server is asked, unlike by fstat(2).
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
    /// Looks the path up.
    #[must_use]
    pub fn look(&self) -> TargetLookup<'_> {
        let plain = self.plain(|part| openat2::open(CWD, part, OFlags::PATH, PLAINLY));
        TargetLookup { path: self, plain }
    }

    /// Looks the path up without waiting for a disk or a file server, in the kernel's cache alone. `None` if the path
    /// isn't cached, or has a link.
    #[must_use]
    pub fn look_at_once(&self) -> Option<TargetLookup<'_>> {
        let plain = self.plain(|part| openat2::open_cached(part, PLAINLY))?;
        Some(TargetLookup {
            path: self,
            plain: Some(plain),
        })
    }

    /// Resolves the symbolic links that exist on the path; what doesn't exist yet is kept as it is.
    ///
    /// containerd and CRI-O hand mount sources on in this form.
    pub fn resolved(&self) -> io::Result<Self> {
        self.look().resolved()
    }

    /// `None` if there is a link or an error, which a walk along the path reports.
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

impl TargetLookup<'_> {
    /// Returns the path that was looked up.
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
