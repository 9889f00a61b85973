//! Locks between runcrust processes: files under `<state_dir>/locks`. A volume's is unlinked with the
//! volume, and a device's when the kernel has no device of that number any more, in either case by whoever
//! holds it. Whoever waited for it then takes the one that is there.

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

/// The resource that a lock protects. A caller that takes several takes them in this order.
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
    /// The index of target paths.
    Targets,
}

/// A lock that is held until it is dropped, or the process ends or execs: the descriptor is
/// close-on-exec.
#[derive(Debug)]
pub struct Lock {
    /// The open file is the lock.
    file: File,
    had_to_wait: bool,
}

/// The error of taking a lock.
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
        wait_for(File::from(fd), directory.to_owned(), holder, deadline)
    }

    /// Takes the lock, waiting for it until `deadline`. `locks` is the directory of lock files.
    pub fn acquire(
        locks: &Directory,
        name: LockName,
        deadline: Deadline,
    ) -> Result<Self, LockError> {
        let file_name = name.file_name();
        let path = locks.path().join(&file_name);
        let (lock, length) = loop {
            let file = locks.open_lock(&file_name)?;
            let lock = wait_for(file, path.clone(), holder, deadline)?;
            if let Some(length) = length_unless_retired(&lock.file, &path)? {
                break (lock, length);
            }
        };
        // For the message of whoever waits; the lock holds without it.
        let own = format!("process {}", own_pid());
        if length > own.len() as u64 {
            let _ = lock.file.set_len(0);
        }
        let _ = lock.file.write_all_at(own.as_bytes(), 0);
        Ok(lock)
    }

    /// Takes the lock for a look, at once or not at all, and leaves no trace of that: `None` where
    /// nobody ever took it, or it was retired.
    pub fn glance(locks: &Directory, name: LockName) -> Result<Option<Self>, LockError> {
        let file_name = name.file_name();
        let path = locks.path().join(&file_name);
        let Some(file) = locks.find_lock(&file_name)? else {
            return Ok(None);
        };
        let now = Deadline::after(Duration::ZERO);
        let lock = wait_for(file, path.clone(), holder, now)?;
        let length = length_unless_retired(&lock.file, &path)?;
        Ok(length.map(|_| lock))
    }

    /// Returns whether another process held the lock when it was asked for: what was read before may be out of date.
    #[must_use]
    pub fn had_to_wait(&self) -> bool {
        self.had_to_wait
    }

    /// Lets the lock of something go that is no more, with its file: one for each volume and device that
    /// ever was would fill the memory that `/run` is.
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

    /// Returns the volume or the device that a file is the lock of; `None` for the locks of the whole node.
    pub(crate) fn of_file(name: &str) -> Option<Self> {
        let name = name.strip_suffix(".lock")?;
        let device = || name.parse().ok().map(Self::Device);
        name.parse().ok().map(Self::Volume).or_else(device)
    }
}

/// How many bytes a lock file has; `None` where it was retired while it was waited for, and keeps nobody out.
fn length_unless_retired(file: &File, path: &Path) -> Result<Option<u64>, FileError> {
    let stat = fstat(file).map_err(|error| failed("fstat", path, error))?;
    Ok((stat.st_nlink != 0).then_some(stat.st_size.cast_unsigned()))
}

/// Locks an open file. flock(2) has no time-out; polling costs nothing where nobody holds it.
fn wait_for(
    file: File,
    path: PathBuf,
    holder: impl FnOnce(File) -> String,
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
            holder: holder(file),
            path,
        }),
    }
}

/// Returns the description that the holder has written of itself.
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
    use std::sync::atomic::{AtomicUsize, Ordering};

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
        let error = Lock::glance(&locks, LockName::Owners).unwrap_err();
        assert!(error.to_string().contains(&holder), "{error}");
        let other = LockName::Device("7:1".parse().unwrap());
        assert!(Lock::glance(&locks, other).unwrap().is_none());
        assert_eq!(
            locks.names().unwrap(),
            ["owners.lock"],
            "a look makes no file"
        );
        Lock::acquire(&locks, other, soon).expect("another lock is free");
        drop(held);
        Lock::acquire(&locks, LockName::Owners, soon).expect("it was let go");
        let glance = Lock::glance(&locks, LockName::Owners).unwrap();
        assert!(glance.is_some(), "and again");
        let error = Lock::acquire(&locks, LockName::Owners, soon).unwrap_err();
        assert!(
            matches!(error, LockError::Held { .. }),
            "what is looked at stays as it is"
        );
        drop(glance);
        let names = locks.names().unwrap();
        assert!(names.contains(&"owners.lock".to_owned()), "it stays");
    }

    #[test]
    fn a_lock_is_known_by_its_file() {
        let digest: Digest = "5f".repeat(32).parse().unwrap();
        for name in [
            LockName::Volume(digest),
            LockName::Device("253:7".parse().unwrap()),
        ] {
            assert_eq!(LockName::of_file(&name.file_name()), Some(name));
        }
        for other in [
            "owners.lock",
            "attach.lock",
            "253:7",
            "7.lock",
            ".lock",
            ".253:7.lock",
        ] {
            assert_eq!(LockName::of_file(other), None, "{other}");
        }
    }

    #[test]
    fn of_a_lock_file_no_more_is_read_than_a_process_says() {
        let temporary = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(temporary.path(), "x".repeat(10_000)).unwrap();
        assert_eq!(holder(temporary.reopen().unwrap()), "x".repeat(64));
    }

    #[test]
    fn who_waited_for_a_retired_lock_takes_the_one_that_is_there() {
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
