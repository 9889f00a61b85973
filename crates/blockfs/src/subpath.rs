//! Resolves the subPath of a volume to a descriptor inside the volume (docs/protocol.md, "subPath").

mod create;
mod error;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, OFlags, ResolveFlags, fstat};
use rustix::io::Errno;

pub use error::SubpathError;

use crate::openat2;

/// The action if a subPath doesn't exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissingPolicy {
    /// Make the missing directories, with the mode of the volume's root.
    Create,
    /// Fail with [`SubpathError::Missing`].
    Refuse,
}

/// The directory or file that a subPath leads to.
#[derive(Debug)]
pub struct ResolvedSubpath {
    /// Descriptor with `O_PATH` and close-on-exec. It refers to the same directory or file even if that is renamed.
    pub fd: OwnedFd,
    /// Type of the mount point that the directory or file needs.
    pub kind: MountPointType,
}

/// The type of a mount point. A directory is mounted on a directory, anything else on a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MountPointType {
    /// The mount point must be a directory.
    Directory,
    /// The mount point must be a file: for a regular file, socket, named pipe or device node. kubelet bind-mounts all
    /// of these (`doBindSubPath`).
    ///
    /// The bind mount of a device node gives no more access than the node below the volume's root. It has the volume's
    /// mount attributes (`nodev`), and the container's device cgroup applies.
    File,
}

/// Flags with which a lookup doesn't leave the volume, doesn't follow magic links of /proc, and doesn't enter other
/// mounts. Symbolic links inside the volume are followed.
const INSIDE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// Resolves a subPath in a volume.
///
/// `root` is the volume's root directory. It may be opened with `O_PATH`, and may be a detached mount. Relative
/// symbolic links inside the volume are followed. An absolute link, or one that leads out of the volume, is an error.
/// An empty subPath and `.` are the root itself.
///
/// Errors contain the subPath as it was given, and no paths of the host.
pub fn resolve(
    root: impl AsFd,
    subpath: &Path,
    missing: MissingPolicy,
) -> Result<ResolvedSubpath, SubpathError> {
    let root = root.as_fd();
    let components = components(subpath)?;
    let fd = match open(root, &components) {
        Err(Errno::NOENT) if missing == MissingPolicy::Create => {
            create::directories(root, subpath, &components)?
        }
        opened => opened.map_err(|errno| SubpathError::from_lookup(subpath, errno))?,
    };
    let stat = fstat(&fd).map_err(|errno| SubpathError::call("fstat", subpath, errno))?;
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => MountPointType::Directory,
        _ => MountPointType::File,
    };
    Ok(ResolvedSubpath { fd, kind })
}

/// Returns the relative path without `.` components. Refuses the same paths as kubelet's validation, because a caller
/// other than kubelet may not have validated the path.
fn components(subpath: &Path) -> Result<PathBuf, SubpathError> {
    if subpath.as_os_str().as_encoded_bytes().contains(&0) {
        return Err(SubpathError::Nul);
    }
    let mut relative = PathBuf::new();
    for component in subpath.components() {
        match component {
            Component::Normal(name) => relative.push(name),
            Component::CurDir => {}
            Component::ParentDir => {
                return Err(SubpathError::ParentDirectory {
                    subpath: subpath.into(),
                });
            }
            Component::RootDir | Component::Prefix(_) => {
                return Err(SubpathError::Absolute {
                    subpath: subpath.into(),
                });
            }
        }
    }
    Ok(relative)
}

/// Opens `relative` with `O_PATH`, and follows symbolic links. `O_PATH` doesn't open a device, and doesn't wait for a
/// named pipe.
fn open(root: BorrowedFd<'_>, relative: &Path) -> Result<OwnedFd, Errno> {
    let path = if relative.as_os_str().is_empty() {
        Path::new(".")
    } else {
        relative
    };
    openat2::open(root, path, OFlags::PATH, INSIDE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_paths_are_normalized() {
        for (subpath, expected) in [
            ("", ""),
            (".", ""),
            ("./", ""),
            ("a", "a"),
            ("a/b/", "a/b"),
            ("a//./b", "a/b"),
            ("..a/b..", "..a/b.."),
        ] {
            assert_eq!(
                components(Path::new(subpath)).expect(subpath),
                Path::new(expected)
            );
        }
    }

    #[test]
    fn absolute_paths_parents_and_nul_are_refused() {
        for (subpath, start) in [
            ("/", "subPath \"/\": is absolute"),
            ("/a", "subPath \"/a\": is absolute"),
            ("..", "subPath \"..\": contains \"..\""),
            ("a/../b", "subPath \"a/../b\": contains \"..\""),
            ("a\0b", "subPath: contains a NUL byte"),
        ] {
            let error = components(Path::new(subpath))
                .expect_err(subpath)
                .to_string();
            assert!(error.starts_with(start), "{error}");
        }
    }
}
