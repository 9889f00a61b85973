//! A container's root file system while its `createContainer` hooks run: in the container's mount
//! namespace, before `pivot_root` (`mount_mode = "hook"`).

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

/// The error of mounting a volume in a container.
#[derive(Debug, thiserror::Error)]
pub enum RootfsError {
    /// The mounts that the delegate makes come after this hook, and would hide the volume.
    #[error(
        "{} isn't a mount in the container's namespace any more: this delegate runs createContainer \
         hooks after pivot_root; {BIND}", .0.display()
    )]
    Pivoted(PathBuf),
    /// There is nothing to mount on, and the delegate makes mountpoints only for its own mounts.
    #[error("mount {}: the container has no such file or directory; hint: make it in the image, \
             or set mount_mode = \"bind\" in runcrust's configuration", .0.display())]
    Missing(PathBuf),
    /// The volume would hide a mount, or be hidden by it.
    #[error(
        "mount {}: {} is mounted already; {BIND}", destination.display(), mounted.display()
    )]
    Covered {
        /// The volume's place.
        destination: PathBuf,
        /// The other mount's.
        mounted: PathBuf,
    },
    /// A mount there would be seen outside the container.
    #[error("mount {}: propagates to other mount namespaces; {BIND}", .0.display())]
    Propagates(PathBuf),
    /// A container has more mounts than there is time for.
    #[error(
        "mount {}: the time for a create was over when {done} other mounts of volumes had been made in the \
         container; hint: give the container fewer mounts of volumes", destination.display()
    )]
    TooSlow {
        /// Place of the volume that is next.
        destination: PathBuf,
        /// Number of mounts made so far.
        done: usize,
    },
    /// A mount option that a bind mount can't have.
    #[error(
        "mount option {0}: isn't one of a bind mount; hint: remove it from the mount's options"
    )]
    Option(String),
    /// A mount option that nobody can have.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// The mounts can't be read.
    #[error(transparent)]
    Mounts(#[from] MountInfoError),
    /// The volume can't be shown as the container wants it.
    #[error(transparent)]
    Views(#[from] ViewsError),
    /// A call failed.
    #[error("{call}: {}", Name(*errno))]
    Call {
        /// The call, with its arguments.
        call: String,
        /// The kernel's answer.
        errno: Errno,
    },
}

const BIND: &str = "hint: set mount_mode = \"bind\" in runcrust's configuration";

fn failed(call: impl Into<String>) -> impl FnOnce(Errno) -> RootfsError {
    let call = call.into();
    move |errno| RootfsError::Call { call, errno }
}

/// The attributes that a container's mount asks for, beside `ro`. Propagation is left out: the
/// mount is private, which only a shared one isn't content with.
pub fn bind_attributes<S: AsRef<str>>(options: &[S]) -> Result<MountAttrFlags, RootfsError> {
    let own: Vec<&str> = options
        .iter()
        .map(AsRef::as_ref)
        .filter(|option| {
            !matches!(
                *option,
                "bind" | "rbind" | "private" | "rprivate" | "slave" | "rslave" | "rro" | "rrw"
            )
        })
        .collect();
    let parsed = options::parse(&own)?;
    match parsed.fs_options.first() {
        Some(option) => Err(RootfsError::Option(option.to_string())),
        None => Ok(parsed.attributes),
    }
}

/// A directory on the host on which volumes are mounted while views of them are taken. The calling mount
/// namespace has its own copy.
#[derive(Debug)]
pub struct ScratchDirectory {
    directory: OwnedFd,
    path: PathBuf,
}

impl ScratchDirectory {
    /// Opens the directory. Fails if what is mounted on it would propagate to other namespaces.
    pub fn open(path: &Path) -> Result<Self, RootfsError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let named = format!("open({})", path.display());
        let directory = open(path, flags, Mode::empty()).map_err(failed(named))?;
        let mounts = MountTable::new(mountinfo::read_own()?);
        refuse_propagation(&directory, path, &mounts)?;
        Ok(Self {
            directory,
            path: path.to_owned(),
        })
    }

    /// Takes views of a volume that is mounted nowhere, which is mounted here meanwhile.
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

/// A container's root file system, from within its mount namespace.
#[derive(Debug)]
pub struct Rootfs {
    root: OwnedFd,
    /// Read at the first mount.
    mounts: Option<MountTable>,
    /// Number of views mounted so far.
    done: usize,
}

impl Rootfs {
    /// Opens the root file system at `path` on the host, which the delegate hasn't pivoted into yet.
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

    /// Mounts a view of a volume at a place in the container. Nobody else may mount anything in this
    /// namespace from the first call on: its mount table isn't read again.
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
            unread => unread.insert(MountTable::new(mountinfo::read_own()?)),
        };
        let (place, real) = find_place(&self.root, destination, mounts)?;
        sys::add_attributes(&view.fd, attributes).map_err(failed("mount_setattr"))?;
        let named = format!("move_mount(volume, {})", destination.display());
        move_mount(&view.fd, "", &place, "", BETWEEN_FDS).map_err(failed(named))?;
        mounts.add(real, mount_id(&view.fd));
        self.done += 1;
        Ok(())
    }
}

/// Returns where a destination leads in the container, opened and as a path in this namespace. Links are
/// followed within the container.
fn find_place(
    root: &OwnedFd,
    destination: &Path,
    mounts: &MountTable,
) -> Result<(OwnedFd, PathBuf), RootfsError> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let place = match openat2::open(root, destination, OFlags::PATH, resolve) {
        Ok(place) => place,
        Err(Errno::NOENT) => return Err(RootfsError::Missing(destination.to_owned())),
        Err(errno) => return Err(failed(format!("openat2({})", destination.display()))(errno)),
    };
    let link = format!("/proc/thread-self/fd/{}", place.as_raw_fd());
    let real = readlinkat(CWD, link, Vec::with_capacity(256)).map_err(failed("readlink"))?;
    let real = PathBuf::from(OsStr::from_bytes(real.as_bytes()));
    if let Some(mounted) = mounts.within(&real) {
        return Err(RootfsError::Covered {
            destination: destination.to_owned(),
            mounted: mounted.to_owned(),
        });
    }
    refuse_propagation(&place, destination, mounts)?;
    Ok((place, real))
}

fn refuse_propagation(
    place: &OwnedFd,
    path: &Path,
    mounts: &MountTable,
) -> Result<(), RootfsError> {
    let stat =
        statx(place, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).map_err(failed("statx"))?;
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
    fn what_a_bind_mount_cannot_have_is_named() {
        let error = bind_attributes(&["rbind", "size=1m"])
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("mount option size=1m: isn't one of a bind mount"),
            "{error}"
        );
        let error = bind_attributes(&["rbind", "rshared"])
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("mount option rshared"), "{error}");
    }
}
