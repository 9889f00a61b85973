//! A subPath → a descriptor inside the volume (docs/protocol.md, "subPath").

mod create;
mod error;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, OFlags, ResolveFlags, fstat};
use rustix::io::Errno;

pub use error::SubpathError;

use crate::openat2;

/// The treatment of a subPath that doesn't exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissingPolicy {
    /// Make directories, with the mode of the volume's root.
    Create,
    /// Fail.
    Refuse,
}

/// The directory or file that a subPath leads to.
#[derive(Debug)]
pub struct ResolvedSubpath {
    /// `O_PATH` and close-on-exec; it means this directory or file whatever is renamed later.
    pub fd: OwnedFd,
    /// The kind of file.
    pub kind: MountPointType,
}

/// The type of a mount point: a directory is mounted on a directory, anything else on a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MountPointType {
    /// A directory.
    Directory,
    /// A regular file; or a socket, a named pipe or a device node, as kubelet bind-mounts them
    /// (`doBindSubPath`). Such a bind gives no more than the same node below the volume's root does:
    /// it has the volume's mount attributes (`nodev`), and the container's device cgroup counts.
    File,
}

/// Never out, never through /proc's links, never onto another mount. Links that stay inside are
/// followed.
const INSIDE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// Resolves `subpath` in the volume whose root directory is `root` (`O_PATH` will do, a detached
/// mount too). Relative links inside the volume are followed; an absolute link, or one that leads
/// out, is an error. Errors name the subPath as it was given and nothing of the host. Empty and `.`
/// are the root itself.
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
        opened => opened.map_err(|errno| SubpathError::of_lookup(subpath, errno))?,
    };
    let stat = fstat(&fd).map_err(|errno| SubpathError::call("fstat", subpath, errno))?;
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => MountPointType::Directory,
        _ => MountPointType::File,
    };
    Ok(ResolvedSubpath { fd, kind })
}

/// The components, without `.`; refuses what kubelet's validation refuses, whoever was asked.
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

/// Opens `relative`, links followed, as `O_PATH`: that opens no device and waits for no named pipe.
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
    fn components_are_taken_as_kubelet_validates_them() {
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
