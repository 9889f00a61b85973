//! The lookup of a target path in the file system. Its result is shared by everything that is derived from the path.

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

const NO_LINKS: ResolveFlags = ResolveFlags::NO_SYMLINKS;

/// A target path that was looked up.
#[derive(Debug)]
pub struct TargetLookup<'a> {
    pub(super) path: &'a TargetPath,
    /// `None` if the path has symbolic links, or couldn't be opened.
    pub(super) link_free: Option<LinkFreePath<'a>>,
}

/// The deepest part of a path that exists, if no component of it is a symbolic link. Such a path is
/// equal to its resolved form. One system call has shown that; `realpath(3)` makes one call for each component.
#[derive(Debug)]
pub(super) struct LinkFreePath<'a> {
    pub(super) part: &'a Path,
    pub(super) is_directory: bool,
    /// `st_dev`.
    pub(super) device: DeviceNumber,
}

impl<'a> LinkFreePath<'a> {
    /// Reads the attributes of an open file that never change. Unlike fstat(2), this doesn't ask a file server.
    fn new(part: &'a Path, file: &OwnedFd) -> Result<Self, Errno> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let stat = statx(file, c"", flags, StatxFlags::TYPE)?;
        Ok(Self {
            part,
            is_directory: FileType::from_raw_mode(stat.stx_mode.into()).is_dir(),
            device: DeviceNumber::new(stat.stx_dev_major, stat.stx_dev_minor),
        })
    }
}

impl TargetPath {
    #[must_use]
    pub fn look_up(&self) -> TargetLookup<'_> {
        let link_free = self.link_free(|part| openat2::open(CWD, part, OFlags::PATH, NO_LINKS));
        TargetLookup {
            path: self,
            link_free,
        }
    }

    /// Looks the path up in the kernel's cache alone, without waiting for a disk or a file server. Returns `None` if
    /// the path isn't cached or has symbolic links.
    #[must_use]
    pub fn look_up_cached(&self) -> Option<TargetLookup<'_>> {
        let link_free = self.link_free(|part| openat2::open_cached(part, NO_LINKS))?;
        Some(TargetLookup {
            path: self,
            link_free: Some(link_free),
        })
    }

    /// Resolves the symbolic links on the path. Components that don't exist are kept. Fails for a dangling link.
    ///
    /// containerd and CRI-O pass the sources of mounts on in this form.
    pub fn resolved(&self) -> io::Result<Self> {
        self.look_up().resolved()
    }

    /// Opens the deepest part of the path that exists. Returns `None` if there is a symbolic link or an error. A walk
    /// along the path then reports the error.
    fn link_free(
        &self,
        open: impl Fn(&Path) -> Result<OwnedFd, Errno>,
    ) -> Option<LinkFreePath<'_>> {
        for part in self.as_path().ancestors() {
            match open(part) {
                Ok(file) => return LinkFreePath::new(part, &file).ok(),
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

    /// Returns the path with its symbolic links resolved, as [`TargetPath::resolved`] does.
    pub(crate) fn resolved(&self) -> io::Result<TargetPath> {
        match self.link_free {
            Some(_) => Ok(self.path.clone()),
            None => canonicalize_existing(self.path),
        }
    }

    /// Returns the number of entries of a volume with this target path: two if the path has symbolic links, else one.
    #[must_use]
    pub fn entry_count(&self) -> u64 {
        self.spellings().len() as u64
    }

    /// Returns the path as it was given and, if it differs, with its symbolic links resolved.
    #[must_use]
    pub fn spellings(&self) -> Vec<TargetPath> {
        let mut paths = vec![self.path.clone()];
        let resolved = self.resolved().ok();
        paths.extend(resolved.filter(|resolved| resolved != self.path));
        paths
    }
}

/// Resolves the part of the path that exists, and appends the components that don't.
fn canonicalize_existing(path: &TargetPath) -> io::Result<TargetPath> {
    let mut missing: Vec<&OsStr> = Vec::new();
    let mut existing = path.as_path();
    loop {
        match fs::canonicalize(existing) {
            Ok(mut real) => {
                real.extend(missing.iter().rev());
                return Ok(TargetPath(real.into_os_string().into_vec()));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // A dangling link would resolve to another path once its target exists.
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
