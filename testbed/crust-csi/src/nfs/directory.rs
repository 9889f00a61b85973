//! The directories of volumes on a server. They are reached through a mount that isn't attached anywhere.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use crust_blockfs::Deadline;
use crust_blockfs::errno::Name;
use crust_blockfs::options;
use crust_nfs::error::ShareMountError;
use crust_nfs::mount::{ShareMountRequest, mount_detached};
use crust_nfs::options::normalize;
use rustix::fs::{Mode, OFlags, fchmod, mkdirat, openat};
use rustix::io::Errno;

use super::fstype::NfsType;
use super::location::ProvisionedVolume;
use super::tree::{self, RemovalError};
use crate::capability::FileSystem as _;
use crate::refusal::NodeError;

/// The mount options for work on the share itself. A server that stops answering ends the call with an error, and
/// nothing is locked.
const OPTIONS: &str = "soft,timeo=100,nolock,nosuid,nodev,noexec";

/// The timeout for creating or deleting a directory. csi-provisioner doesn't wait as long by default, but repeats the
/// call.
pub(super) const DIRECTORY_TIMEOUT: Duration = Duration::from_secs(60);

/// The timeout for deleting the contents of a directory, which leaves time to unmount the share. The next call
/// continues.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(50);

/// The timeout for contacting the server.
const CONTACT_TIMEOUT: Duration = Duration::from_secs(10);

/// The mode of a new volume, as with csi-driver-nfs. A server that maps root to another user lets nobody change the
/// owner or the group, and a workload of any user must be able to write.
const MODE: Mode = Mode::from_raw_mode(0o777);

/// The reason why a volume's directory can't be created or removed.
#[derive(Debug, thiserror::Error)]
pub(super) enum DirectoryError {
    #[error(transparent)]
    Mount(#[from] ShareMountError),
    /// There wasn't enough time to delete all contents.
    #[error("timeout")]
    Deadline,
    /// A system call failed.
    #[error("{call} {path:?} in {share}: {}; hint: {}", Name(*errno), hint(*errno))]
    Call {
        call: &'static str,
        path: String,
        share: String,
        errno: Errno,
    },
}

impl NodeError for DirectoryError {}

fn hint(errno: Errno) -> &'static str {
    match errno {
        Errno::ACCESS | Errno::PERM => {
            "let the server export the share to this node without mapping root to another user (no_root_squash), or give \
             that user the directory"
        }
        Errno::ROFS => "let the server export the share for writing (rw)",
        Errno::NOSPC | Errno::DQUOT => "free space on the server",
        Errno::IO | Errno::TIMEDOUT => "check that the server answers; the call is retried",
        Errno::XDEV => {
            "another export is mounted there on the server, and its contents aren't deleted: unmount it on the server, and \
             the call is repeated"
        }
        Errno::BUSY => {
            "something is mounted there on the server: unmount it, and the call is repeated"
        }
        Errno::NOTEMPTY | Errno::EXIST => {
            "a client of the server keeps writing there: end the programs that use the directory"
        }
        _ => "check the directory on the server",
    }
}

/// Creates the directory of a volume, unless it exists.
pub(super) fn create(volume: &ProvisionedVolume) -> Result<(), DirectoryError> {
    let mut parent = mount(volume)?;
    let mut path = String::new();
    for (index, name) in volume.directory.iter().enumerate() {
        path.push('/');
        path.push_str(name);
        let is_new = match mkdirat(&parent, name.as_str(), MODE) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(errno) => return Err(failed("mkdir", &path, volume)(errno)),
        };
        let is_volume = index + 1 == volume.directory.len();
        let access = if is_new && is_volume {
            OFlags::RDONLY
        } else {
            OFlags::PATH
        };
        let flags = access | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = openat(&parent, name.as_str(), flags, Mode::empty());
        let directory = directory.map_err(failed("open", &path, volume))?;
        if is_new && is_volume {
            // The umask applies to mkdir.
            fchmod(&directory, MODE).map_err(failed("chmod", &path, volume))?;
        }
        parent = directory;
    }
    Ok(())
}

/// Removes the directory of a volume with everything in it, except for other exports of the server: they are an error.
/// Succeeds if it doesn't exist.
pub(super) fn remove(volume: &ProvisionedVolume) -> Result<(), DirectoryError> {
    let deadline = Deadline::after(REMOVAL_TIMEOUT);
    let mut parent = mount(volume)?;
    let path = volume.directory.join("/");
    let Some((name, above)) = volume.directory.split_last() else {
        return Ok(());
    };
    for name in above {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        parent = match openat(&parent, name.as_str(), flags, Mode::empty()) {
            Ok(directory) => directory,
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(failed("open", &path, volume)(errno)),
        };
    }
    match tree::remove(&parent, OsStr::new(name), deadline) {
        Ok(()) => Ok(()),
        Err(RemovalError::Deadline) => Err(DirectoryError::Deadline),
        Err(RemovalError::Call { call, path, errno }) => {
            let path = above
                .iter()
                .map(String::as_str)
                .map(OsStr::new)
                .chain(&path);
            let path: PathBuf = path.collect();
            Err(failed(call, &path.to_string_lossy(), volume)(errno))
        }
    }
}

fn mount(volume: &ProvisionedVolume) -> Result<OwnedFd, DirectoryError> {
    let options = options::parse(&[OPTIONS]).unwrap_or_default();
    let options = normalize(&options, NfsType::DEFAULT).unwrap_or(options);
    let request = ShareMountRequest {
        share: &volume.share,
        fstype: NfsType::DEFAULT,
        options: &options,
        is_host_network: true,
        deadline: Deadline::after(CONTACT_TIMEOUT),
    };
    Ok(mount_detached(&request)?.mount)
}

fn failed(
    call: &'static str,
    path: &str,
    volume: &ProvisionedVolume,
) -> impl FnOnce(Errno) -> DirectoryError {
    let (path, share) = (path.to_owned(), volume.share.to_string());
    move |errno| DirectoryError::Call {
        call,
        path,
        share,
        errno,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_for_work_on_a_share_are_valid() {
        let options = options::parse(&[OPTIONS]).unwrap();
        let normalized = normalize(&options, NfsType::DEFAULT).unwrap();
        assert_eq!(normalized.fs_options.len(), 3);
        assert!(!normalized.attributes.is_empty());
    }
}
