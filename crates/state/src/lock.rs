//! Locks between runcrust processes: files under `<state_dir>/locks` that are never unlinked.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;

use crate::deadline::Deadline;
use crate::device::DeviceNumber;
use crate::files::{Directory, FileError, failed};
use crate::target::Digest;

/// What a lock protects. Whoever takes more than one takes them in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LockName {
    /// The attach directory's own mount.
    Attach,
    /// One volume's entry and record, and its place in a sandbox.
    Volume(Digest),
    /// One block device's superblock: held while it is mounted, which may take long.
    Device(DeviceNumber),
    /// The index of owners; never held over anything that touches a device.
    Owners,
}

/// A lock that is held until it is dropped, or the process ends or execs: the descriptor is
/// close-on-exec.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "the open file is the lock")] File);

/// Why a lock wasn't had.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Somebody held it for too long.
    #[error("{} is held by {holder} and wasn't let go in time; hint: see what that process waits for; a hanging device would show it in state D", path.display())]
    Held {
        /// The lock file.
        path: PathBuf,
        /// The process that holds it, as it said of itself.
        holder: String,
    },
    /// The lock file can't be used.
    #[error(transparent)]
    File(#[from] FileError),
}

impl Lock {
    /// Locks a bundle: its config and its record, from the first look until the delegate runs.
    /// The lock is on the directory itself, so that nothing is left of it when the bundle goes.
    pub fn bundle(directory: &Path, deadline: Deadline) -> Result<Self, LockError> {
        Self::directory(directory, "another create of this bundle", deadline)
    }

    /// Locks the configurations of a node's engines, by its root directory: it is there on each node,
    /// the same for every container that has it, and nothing has to be written for it. Any user of the
    /// node can hold it, which keeps an installation from its turn, and no container from its start.
    pub fn node(root: &Path, deadline: Deadline) -> Result<Self, LockError> {
        Self::directory(root, "another runcrust install or uninstall", deadline)
    }

    fn directory(directory: &Path, others: &str, deadline: Deadline) -> Result<Self, LockError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(directory, flags, Mode::empty())
            .map_err(|error| failed("open", directory, error))?;
        let holder = |_| others.to_owned();
        wait_for(File::from(fd), directory.to_owned(), holder, deadline).map(Self)
    }

    /// Takes the lock, waiting for it until `deadline`. `locks` is the directory of lock files.
    pub fn acquire(
        locks: &Directory,
        name: LockName,
        deadline: Deadline,
    ) -> Result<Self, LockError> {
        let file_name = match name {
            LockName::Volume(digest) => format!("{digest}.lock"),
            LockName::Device(device) => format!("{device}.lock"),
            LockName::Owners => "owners.lock".to_owned(),
            LockName::Attach => "attach.lock".to_owned(),
        };
        let path = locks.path().join(&file_name);
        let mut file = wait_for(locks.open_lock(&file_name)?, path, holder, deadline)?;
        // For the message of whoever waits; the lock holds without it.
        let _ = file.set_len(0);
        let _ = file.rewind();
        let _ = file.write_all(format!("process {}", own_pid()).as_bytes());
        Ok(Self(file))
    }
}

/// As the host knows it: in a container's own hook the pid namespace is the container's, but `/proc`
/// is the host's still.
fn own_pid() -> String {
    match std::fs::read_link("/proc/self") {
        Ok(pid) => pid.display().to_string(),
        Err(_) => std::process::id().to_string(),
    }
}

/// Locks an open file. flock(2) has no time-out; polling costs nothing where nobody holds it.
fn wait_for(
    file: File,
    path: PathBuf,
    holder: impl FnOnce(File) -> String,
    deadline: Deadline,
) -> Result<File, LockError> {
    let locked =
        deadline.poll(
            || match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => Ok(Some(())),
                Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(None),
                Err(error) => Err(failed("flock", &path, error)),
            },
        )?;
    match locked {
        Some(()) => Ok(file),
        None => Err(LockError::Held {
            holder: holder(file),
            path,
        }),
    }
}

/// As it said of itself.
fn holder(file: File) -> String {
    const MOST: u64 = 64;
    let mut name = Vec::new();
    let _ = file.take(MOST).read_to_end(&mut name);
    if name.is_empty() {
        return "a process that didn't name itself".to_owned();
    }
    String::from_utf8_lossy(&name).into_owned()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_second_taker_waits_and_is_told_who_holds_it() {
        let temporary = tempfile::tempdir().unwrap();
        let locks = Directory::create(&temporary.path().join("locks")).unwrap();
        let held = Lock::acquire(&locks, LockName::Owners, Deadline::never()).unwrap();
        let soon = Deadline::after(Duration::from_millis(20));
        let error = Lock::acquire(&locks, LockName::Owners, soon)
            .unwrap_err()
            .to_string();
        let holder = format!("held by process {}", std::process::id());
        assert!(
            error.contains("owners.lock") && error.contains(&holder),
            "{error}"
        );
        let other = LockName::Device("7:1".parse().unwrap());
        Lock::acquire(&locks, other, soon).expect("another lock is free");
        drop(held);
        Lock::acquire(&locks, LockName::Owners, soon).expect("it was let go");
        let file = std::fs::File::open(locks.path().join("owners.lock")).unwrap();
        std::fs::write(locks.path().join("owners.lock"), "x".repeat(10_000)).unwrap();
        assert_eq!(holder(file), "x".repeat(64), "no more is read than a process says");
        assert!(
            locks.names().unwrap().contains(&"owners.lock".to_owned()),
            "never unlinked"
        );
    }
}
