//! A container's root file system while its `createContainer` hooks run: in the container's mount
//! namespace, before `pivot_root` (`mount_mode = "hook"`).

use std::ffi::OsStr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crust_state::Deadline;
use crust_state::beneath;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags, open, readlinkat, statx};
use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, move_mount};

use crate::attach::{self, ONTO, ViewsError};
use crate::errno::Name;
use crate::mountinfo::{self, Mount, MountInfoError};
use crate::options::{self, OptionsError};
use crate::sys;
use crate::view::{DetachedMount, View};

/// Why a volume can't be mounted in the container.
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
        "mount {}: {} is mounted already; {BIND}", destination.display(), there.display()
    )]
    Covered {
        /// The volume's place.
        destination: PathBuf,
        /// The other mount's.
        there: PathBuf,
    },
    /// What is mounted there would be seen outside the container.
    #[error("mount {}: propagates to other mount namespaces; {BIND}", .0.display())]
    Propagates(PathBuf),
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
pub fn attributes<S: AsRef<str>>(options: &[S]) -> Result<MountAttrFlags, RootfsError> {
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

/// Views of a volume that is mounted nowhere: it is, on `scratch`, while they are taken. That is a
/// directory on the host, of which this namespace has its own copy.
pub fn views<'v>(
    volume: &OwnedFd,
    views: impl ExactSizeIterator<Item = View<'v>>,
    scratch: &Path,
    deadline: Deadline,
) -> Result<Vec<DetachedMount>, RootfsError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let named = format!("open({})", scratch.display());
    let aside = open(scratch, flags, Mode::empty()).map_err(failed(named))?;
    refuse_propagation(&aside, scratch, &mountinfo::read_own()?)?;
    Ok(attach::views_at(&aside, scratch, volume, views, deadline)?)
}

/// A container's root file system, from within its mount namespace.
#[derive(Debug)]
pub struct Rootfs {
    root: OwnedFd,
}

impl Rootfs {
    /// The one at `path` on the host, which the delegate hasn't pivoted into yet.
    pub fn in_this_namespace(path: &Path) -> Result<Self, RootfsError> {
        let mounts = mountinfo::read_own()?;
        if !mounts.iter().any(|mount| mount.mount_point == path) {
            return Err(RootfsError::Pivoted(path.to_owned()));
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = open(path, flags, Mode::empty());
        let root = root.map_err(failed(format!("open({})", path.display())))?;
        Ok(Self { root })
    }

    /// Mounts a view of a volume at a place in the container.
    pub fn mount(
        &self,
        view: &DetachedMount,
        destination: &Path,
        attributes: MountAttrFlags,
    ) -> Result<(), RootfsError> {
        let place = self.place(destination)?;
        sys::add_attributes(&view.fd, attributes).map_err(failed("mount_setattr"))?;
        let named = format!("move_mount(volume, {})", destination.display());
        move_mount(&view.fd, "", &place, "", ONTO).map_err(failed(named))
    }

    /// Where a destination leads in the container: its links are followed within it.
    fn place(&self, destination: &Path) -> Result<OwnedFd, RootfsError> {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let place = match beneath::open(&self.root, destination, OFlags::PATH, resolve) {
            Ok(place) => place,
            Err(Errno::NOENT) => return Err(RootfsError::Missing(destination.to_owned())),
            Err(errno) => return Err(failed(format!("openat2({})", destination.display()))(errno)),
        };
        let link = format!("/proc/thread-self/fd/{}", place.as_raw_fd());
        let real = readlinkat(CWD, link, Vec::with_capacity(256)).map_err(failed("readlink"))?;
        let real = Path::new(OsStr::from_bytes(real.as_bytes()));
        let mounts = mountinfo::read_own()?;
        if let Some(there) = mounts
            .iter()
            .find(|mount| mount.mount_point.starts_with(real))
        {
            return Err(RootfsError::Covered {
                destination: destination.to_owned(),
                there: there.mount_point.clone(),
            });
        }
        refuse_propagation(&place, destination, &mounts)?;
        Ok(place)
    }
}

fn refuse_propagation(place: &OwnedFd, path: &Path, mounts: &[Mount]) -> Result<(), RootfsError> {
    let stat =
        statx(place, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).map_err(failed("statx"))?;
    let held = mounts
        .iter()
        .find(|mount| u64::from(mount.id) == stat.stx_mnt_id);
    if held.is_none_or(|mount| mount.propagation.shared.is_some()) {
        return Err(RootfsError::Propagates(path.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bind_mounts_options_become_attributes() {
        let options = ["rbind", "rprivate", "rw", "nosuid", "noatime"];
        let expected = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOATIME;
        assert_eq!(attributes(&options).unwrap(), expected);
    }

    #[test]
    fn what_a_bind_mount_cannot_have_is_named() {
        let error = attributes(&["rbind", "size=1m"]).unwrap_err().to_string();
        assert!(
            error.starts_with("mount option size=1m: isn't one of a bind mount"),
            "{error}"
        );
        let error = attributes(&["rbind", "rshared"]).unwrap_err().to_string();
        assert!(error.starts_with("mount option rshared"), "{error}");
    }
}
