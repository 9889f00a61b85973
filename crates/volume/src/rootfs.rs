//! Mounts volumes in a container's root file system from a `createContainer` hook, which runs in the container's mount
//! namespace before `pivot_root` (`mount_mode = "hook"`).

mod mount_table;

use std::ffi::OsStr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crust_blockfs::Deadline;
use crust_blockfs::openat2;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags, open, readlinkat, statx};
use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, move_mount};

use crate::attach::{self, BETWEEN_FDS, ViewsError};
use crust_blockfs::device_mounts::mount_id;
use crust_blockfs::errno::Name;
use crust_blockfs::mountinfo::{self, MountInfoError};
use crust_blockfs::options::{self, OptionsError};
use crust_blockfs::sys;
use crust_blockfs::view::{DetachedMount, View};
use mount_table::MountTable;

/// An error of mounting a volume in a container.
#[derive(Debug, thiserror::Error)]
pub enum RootfsError {
    /// The delegate has called `pivot_root` already, so mounts made now would come too late.
    #[error(
        "{} isn't a mount in the container's namespace any more: this delegate runs createContainer \
         hooks after pivot_root; {BIND_MODE_HINT}", .0.display()
    )]
    Pivoted(PathBuf),
    /// The mount point doesn't exist. The delegate creates mount points only for its own mounts.
    #[error("mount {}: the container has no such file or directory; hint: create it in the image, \
             or set mount_mode = \"bind\" in runcrust's configuration", .0.display())]
    Missing(PathBuf),
    /// The volume would hide another mount.
    #[error(
        "mount {}: {} is mounted already; {BIND_MODE_HINT}", destination.display(), mounted.display()
    )]
    Covered {
        destination: PathBuf,
        /// The mount point of the mount that the volume would hide.
        mounted: PathBuf,
    },
    /// A mount at the path would propagate out of the container.
    #[error("mount {}: propagates to other mount namespaces; {BIND_MODE_HINT}", .0.display())]
    Propagates(PathBuf),
    /// The deadline passed before all views were mounted.
    #[error(
        "mount {}: timeout: only {done} other mounts of volumes were made in the container before the create's \
         deadline; hint: give the container fewer mounts of volumes", destination.display()
    )]
    TooSlow {
        /// The mount point of the next view.
        destination: PathBuf,
        /// The number of views mounted so far.
        done: usize,
    },
    /// A bind mount can't have the mount option.
    #[error(
        "mount option {0}: isn't an option of a bind mount; hint: remove it from the mount's options"
    )]
    Option(String),
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// The mount table can't be read.
    #[error(transparent)]
    Mounts(#[from] MountInfoError),
    /// A view can't be made.
    #[error(transparent)]
    Views(#[from] ViewsError),
    #[error("{call}: {}", Name(*errno))]
    Call {
        /// The call with its arguments.
        call: String,
        errno: Errno,
    },
}

const BIND_MODE_HINT: &str = "hint: set mount_mode = \"bind\" in runcrust's configuration";

fn failed(call: impl Into<String>) -> impl FnOnce(Errno) -> RootfsError {
    let call = call.into();
    move |errno| RootfsError::Call { call, errno }
}

/// Returns the attributes that a container's mount requests by its options, except for read-only.
///
/// The volume's mount is private. Private and slave propagation are therefore accepted, and shared propagation is an
/// error.
pub fn bind_attributes<S: AsRef<str>>(options: &[S]) -> Result<MountAttrFlags, RootfsError> {
    let attributes: Vec<&str> = options
        .iter()
        .map(AsRef::as_ref)
        .filter(|option| {
            !matches!(
                *option,
                "bind" | "rbind" | "private" | "rprivate" | "slave" | "rslave" | "rro" | "rrw"
            )
        })
        .collect();
    let parsed = options::parse(&attributes)?;
    match parsed.fs_options.first() {
        Some(option) => Err(RootfsError::Option(option.to_string())),
        None => Ok(parsed.attributes),
    }
}

/// A directory of the host, as it is in the calling mount namespace, on which volumes are mounted while their views are
/// taken.
#[derive(Debug)]
pub struct ScratchDirectory {
    directory: OwnedFd,
    path: PathBuf,
}

impl ScratchDirectory {
    /// Opens the directory. Fails if a mount on it would propagate to other namespaces.
    pub fn open(path: &Path) -> Result<Self, RootfsError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let call = format!("open({})", path.display());
        let directory = open(path, flags, Mode::empty()).map_err(failed(call))?;
        let mounts = MountTable::new(mountinfo::read_own()?);
        refuse_propagation(&directory, path, &mounts)?;
        Ok(Self {
            directory,
            path: path.to_owned(),
        })
    }

    /// Takes views of a detached volume. It is mounted on the directory meanwhile.
    pub fn take_views<'v>(
        &self,
        volume: &OwnedFd,
        views: impl ExactSizeIterator<Item = View<'v>>,
        deadline: Deadline,
    ) -> Result<Vec<DetachedMount>, RootfsError> {
        let Self { directory, path } = self;
        Ok(attach::take_views_at(
            directory, path, volume, views, deadline,
        )?)
    }
}

/// A container's root file system, seen from within its mount namespace.
#[derive(Debug)]
pub struct Rootfs {
    root: OwnedFd,
    /// Read at the first mount.
    mounts: Option<MountTable>,
    /// The number of views mounted so far.
    done: usize,
}

impl Rootfs {
    /// Opens the root file system at `path` on the host. Fails if the delegate has called `pivot_root` already.
    pub fn open(path: &Path) -> Result<Self, RootfsError> {
        let mounts = mountinfo::read_own()?;
        if !mounts.iter().any(|mount| mount.mount_point == path) {
            return Err(RootfsError::Pivoted(path.to_owned()));
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = open(path, flags, Mode::empty());
        let root = root.map_err(failed(format!("open({})", path.display())))?;
        Ok(Self {
            root,
            mounts: None,
            done: 0,
        })
    }

    /// Mounts a view of a volume at a path in the container.
    ///
    /// From the first call on, no other process may mount anything in this namespace, because the mount table isn't
    /// read again.
    pub fn mount(
        &mut self,
        view: &DetachedMount,
        destination: &Path,
        attributes: MountAttrFlags,
        deadline: Deadline,
    ) -> Result<(), RootfsError> {
        if deadline.is_expired() {
            return Err(RootfsError::TooSlow {
                destination: destination.to_owned(),
                done: self.done,
            });
        }
        let mounts = match &mut self.mounts {
            Some(mounts) => mounts,
            none => none.insert(MountTable::new(mountinfo::read_own()?)),
        };
        let (mount_point, path) = open_mount_point(&self.root, destination, mounts)?;
        sys::add_attributes(&view.fd, attributes).map_err(failed("mount_setattr"))?;
        let call = format!("move_mount(volume, {})", destination.display());
        move_mount(&view.fd, "", &mount_point, "", BETWEEN_FDS).map_err(failed(call))?;
        mounts.add(path, mount_id(&view.fd));
        self.done += 1;
        Ok(())
    }
}

/// Opens a mount point in the container, and returns it with its path in this namespace. Links are resolved within the
/// container's root.
fn open_mount_point(
    root: &OwnedFd,
    destination: &Path,
    mounts: &MountTable,
) -> Result<(OwnedFd, PathBuf), RootfsError> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let mount_point = match openat2::open(root, destination, OFlags::PATH, resolve) {
        Ok(mount_point) => mount_point,
        Err(Errno::NOENT) => return Err(RootfsError::Missing(destination.to_owned())),
        Err(errno) => return Err(failed(format!("openat2({})", destination.display()))(errno)),
    };
    let link = format!("/proc/thread-self/fd/{}", mount_point.as_raw_fd());
    let path = readlinkat(CWD, link, Vec::with_capacity(256)).map_err(failed("readlink"))?;
    let path = PathBuf::from(OsStr::from_bytes(path.as_bytes()));
    if let Some(mounted) = mounts.find_within(&path) {
        return Err(RootfsError::Covered {
            destination: destination.to_owned(),
            mounted: mounted.to_owned(),
        });
    }
    refuse_propagation(&mount_point, destination, mounts)?;
    Ok((mount_point, path))
}

/// Fails if a mount on `mount_point` would propagate.
fn refuse_propagation(
    mount_point: &OwnedFd,
    path: &Path,
    mounts: &MountTable,
) -> Result<(), RootfsError> {
    let stat =
        statx(mount_point, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).map_err(failed("statx"))?;
    if mounts.is_unshared(stat.stx_mnt_id) {
        return Ok(());
    }
    Err(RootfsError::Propagates(path.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bind_mounts_options_become_attributes() {
        let options = ["rbind", "rprivate", "rw", "nosuid", "noatime"];
        let expected = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOATIME;
        assert_eq!(bind_attributes(&options).unwrap(), expected);
    }

    #[test]
    fn an_option_that_a_bind_mount_cannot_have_is_named() {
        let error = bind_attributes(&["rbind", "size=1m"])
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("mount option size=1m: isn't an option of a bind mount"),
            "{error}"
        );
        let error = bind_attributes(&["rbind", "rshared"])
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("mount option rshared"), "{error}");
    }
}
