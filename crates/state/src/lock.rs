//! Locks between runcrust processes: files under `<state_dir>/locks`.
//!
//! The lock file of a volume is unlinked with the volume. The lock file of a device is unlinked when the kernel has no
//! device with that number any more. The process that unlinks the file holds the lock. A process that waited for it
//! notices that the file is unlinked, and takes the lock of the new file.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat};
use rustix::io::Errno;

use crate::files::{Directory, FileError, failed};
use crate::process::own_pid;
use crate::target::Digest;
use crust_blockfs::Deadline;
use crust_blockfs::DeviceNumber;

/// The resource that a lock protects. A caller that takes several locks has to take them in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LockName {
    /// The mount of the attach directory.
    Attach,
    /// The entry and the record of a volume, and its mount in a sandbox.
    Volume(Digest),
    /// The superblock on a block device. The lock is held during a mount, which may take long.
    Device(DeviceNumber),
    /// The lists of volumes by device (`owners/`). The lock is never held while a device is read.
    Owners,
    /// The index of target paths.
    Targets,
}

/// A held lock. It is released when the value is dropped, and when the process ends or execs, because the descriptor is
/// close-on-exec.
#[derive(Debug)]
pub struct Lock {
    /// The file holds the lock while it is open.
    file: File,
    had_to_wait: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// The lock wasn't released before the deadline.
    #[error("{} is held by {holder} and wasn't released in time; hint: see what that process waits for: if a device hangs, the process is in state D", path.display())]
    Held {
        path: PathBuf,
        /// The description of the holder in the lock file.
        holder: String,
    },
    /// The lock file can't be opened or locked.
    #[error(transparent)]
    File(#[from] FileError),
}

impl Lock {
    /// Locks a bundle: its config and its record, from the first read until the delegate runs. The lock is on the
    /// directory itself, so that nothing has to be removed with the bundle.
    pub fn acquire_bundle(directory: &Path, deadline: Deadline) -> Result<Self, LockError> {
        Self::acquire_directory(directory, "another create of this bundle", deadline)
    }

    /// Locks the configurations of a node's engines. The lock is on the node's root directory, because that exists on
    /// each node, is the same in every container that has it mounted, and needs no write. Any user of the node can hold
    /// it, and so delay an installation, but not the start of a container.
    pub fn acquire_node(root: &Path, deadline: Deadline) -> Result<Self, LockError> {
        Self::acquire_directory(root, "another runcrust install or uninstall", deadline)
    }

    fn acquire_directory(
        directory: &Path,
        holder: &str,
        deadline: Deadline,
    ) -> Result<Self, LockError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(directory, flags, Mode::empty())
            .map_err(|error| failed("open", directory, error))?;
        let holder = |_| holder.to_owned();
        wait_for(File::from(fd), directory.to_owned(), holder, deadline)
    }

    /// Takes the lock. Waits for it until the deadline. `locks` is the directory of lock files.
    pub fn acquire(
        locks: &Directory,
        name: LockName,
        deadline: Deadline,
    ) -> Result<Self, LockError> {
        let file_name = name.file_name();
        let path = locks.path().join(&file_name);
        let (lock, length) = loop {
            let file = locks.open_lock(&file_name)?;
            let lock = wait_for(file, path.clone(), read_holder, deadline)?;
            if let Some(length) = length_unless_retired(&lock.file, &path)? {
                break (lock, length);
            }
        };
        // A process that waits in vain shows this text in its error. The lock is valid without the text, so errors are
        // ignored.
        let own = format!("process {}", own_pid());
        if length > own.len() as u64 {
            let _ = lock.file.set_len(0);
        }
        let _ = lock.file.write_all_at(own.as_bytes(), 0);
        Ok(lock)
    }

    /// Takes the lock if its file exists, without waiting and without changing the file. Returns `None` if the file
    /// doesn't exist, because the lock was never taken or was retired. Fails if another process holds the lock.
    pub fn try_acquire_existing(
        locks: &Directory,
        name: LockName,
    ) -> Result<Option<Self>, LockError> {
        let file_name = name.file_name();
        let path = locks.path().join(&file_name);
        let Some(file) = locks.find_lock(&file_name)? else {
            return Ok(None);
        };
        let now = Deadline::after(Duration::ZERO);
        let lock = wait_for(file, path.clone(), read_holder, now)?;
        let length = length_unless_retired(&lock.file, &path)?;
        Ok(length.map(|_| lock))
    }

    /// Returns whether another process held the lock when this process tried to take it. Then anything that was read
    /// before may be out of date.
    #[must_use]
    pub fn had_to_wait(&self) -> bool {
        self.had_to_wait
    }

    /// Removes the lock file and releases the lock, because the locked resource doesn't exist any more. Otherwise the
    /// files of all volumes and devices that ever existed would fill `/run`, which is in memory.
    pub fn retire(self, locks: &Directory, name: LockName) -> Result<(), FileError> {
        locks.remove(&name.file_name())
    }
}

impl LockName {
    fn file_name(self) -> String {
        match self {
            Self::Volume(digest) => format!("{digest}.lock"),
            Self::Device(device) => format!("{device}.lock"),
            Self::Owners => "owners.lock".to_owned(),
            Self::Attach => "attach.lock".to_owned(),
            Self::Targets => "targets.lock".to_owned(),
        }
    }

    /// Returns the lock of a volume or a device by the name of its file; `None` for other names.
    pub(crate) fn from_file_name(name: &str) -> Option<Self> {
        let name = name.strip_suffix(".lock")?;
        let device = || name.parse().ok().map(Self::Device);
        name.parse().ok().map(Self::Volume).or_else(device)
    }
}

/// Returns the size in bytes of a lock file. Returns `None` if the file was unlinked while this process waited for it.
/// Its lock then protects nothing.
fn length_unless_retired(file: &File, path: &Path) -> Result<Option<u64>, FileError> {
    let stat = fstat(file).map_err(|error| failed("fstat", path, error))?;
    Ok((stat.st_nlink != 0).then_some(stat.st_size.cast_unsigned()))
}

/// Locks an open file. Polls, because flock(2) has no timeout. A free lock is taken by the first call.
fn wait_for(
    file: File,
    path: PathBuf,
    read_holder: impl FnOnce(File) -> String,
    deadline: Deadline,
) -> Result<Lock, LockError> {
    let mut had_to_wait = false;
    let locked =
        deadline.poll(
            || match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => Ok(Some(())),
                Err(Errno::WOULDBLOCK | Errno::INTR) => {
                    had_to_wait = true;
                    Ok(None)
                }
                Err(error) => Err(failed("flock", &path, error)),
            },
        )?;
    match locked {
        Some(()) => Ok(Lock { file, had_to_wait }),
        None => Err(LockError::Held {
            holder: read_holder(file),
            path,
        }),
    }
}

/// Reads the holder's description from a lock file.
fn read_holder(file: File) -> String {
    const MAX_BYTES: u64 = 64;
    let mut name = Vec::new();
    let _ = file.take(MAX_BYTES).read_to_end(&mut name);
    if name.is_empty() {
        return "an unknown process".to_owned();
    }
    String::from_utf8_lossy(&name).into_owned()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_lock_that_is_held_fails_with_its_holder() {
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
        let error = Lock::try_acquire_existing(&locks, LockName::Owners).unwrap_err();
        assert!(error.to_string().contains(&holder), "{error}");
        let other = LockName::Device("7:1".parse().unwrap());
        let existing = Lock::try_acquire_existing(&locks, other).unwrap();
        assert!(existing.is_none());
        assert_eq!(
            locks.names().unwrap(),
            ["owners.lock"],
            "the attempt creates no file"
        );
        Lock::acquire(&locks, other, soon).expect("another lock is free");
        drop(held);
        Lock::acquire(&locks, LockName::Owners, soon).expect("the lock was released");
        let existing = Lock::try_acquire_existing(&locks, LockName::Owners).unwrap();
        assert!(existing.is_some(), "it was released again");
        let error = Lock::acquire(&locks, LockName::Owners, soon).unwrap_err();
        assert!(
            matches!(error, LockError::Held { .. }),
            "the existing lock is held"
        );
        drop(existing);
        let names = locks.names().unwrap();
        let is_kept = names.contains(&"owners.lock".to_owned());
        assert!(is_kept, "a released lock keeps its file");
    }

    #[test]
    fn the_lock_of_a_volume_or_device_is_parsed_from_its_file_name() {
        let digest: Digest = "5f".repeat(32).parse().unwrap();
        for name in [
            LockName::Volume(digest),
            LockName::Device("253:7".parse().unwrap()),
        ] {
            assert_eq!(LockName::from_file_name(&name.file_name()), Some(name));
        }
        for other in [
            "owners.lock",
            "attach.lock",
            "253:7",
            "7.lock",
            ".lock",
            ".253:7.lock",
        ] {
            assert_eq!(LockName::from_file_name(other), None, "{other}");
        }
    }

    #[test]
    fn at_most_64_bytes_of_the_holders_description_are_read() {
        let temporary = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(temporary.path(), "x".repeat(10_000)).unwrap();
        assert_eq!(read_holder(temporary.reopen().unwrap()), "x".repeat(64));
    }

    #[test]
    fn a_process_that_waited_for_a_retired_lock_takes_the_new_one() {
        const ROUNDS: usize = 200;
        let temporary = tempfile::tempdir().unwrap();
        let locks = Directory::create(&temporary.path().join("locks")).unwrap();
        let name = LockName::Device("7:1".parse().unwrap());
        let inside = AtomicUsize::new(0);
        let work = || {
            for round in 0..ROUNDS {
                let lock = Lock::acquire(&locks, name, Deadline::never()).unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at once");
                std::thread::yield_now();
                inside.fetch_sub(1, Ordering::SeqCst);
                if round % 2 == 0 {
                    lock.retire(&locks, name).unwrap();
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(work);
            }
        });
    }
}
