//! Temporary files: the names under which files and directories are created and removed, and those that killed
//! processes have left behind.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use rustix::fs::{self, AtFlags, FileType, FlockOperation, OFlags, flock};
use rustix::io::Errno;

use super::{BENEATH, Directory, FileError, failed};
use crate::process::{is_running, own_pid};
use crust_blockfs::openat2;

/// Returns a new temporary name for a file or directory: `.<name>.<pid>.<time>.<counter>`. A long name is truncated.
pub(super) fn name(name: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = name.get(..100).unwrap_or(name);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    // The time makes the name unique: a killed process with the same pid may have left one.
    let now = since_the_epoch().as_nanos();
    format!(".{name}.{}.{now:x}.{next}", own_pid())
}

/// Locks a temporary file or directory while it is open, to show that a process is at work on it. The kernel releases
/// the lock when the process is killed, in whichever pid namespace it is.
pub(super) fn try_lock(file: impl AsFd) -> Result<(), Errno> {
    flock(file, FlockOperation::NonBlockingLockExclusive)
}

fn since_the_epoch() -> Duration {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default()
}

/// The process that chose a temporary name, and the time when it did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Maker {
    pid: u32,
    /// Time since the Unix epoch.
    time: Duration,
}

/// Parses a temporary name. Returns `None` for a name that isn't of [`name`]'s form.
fn maker(name: &str) -> Option<Maker> {
    let mut parts = name.strip_prefix('.')?.rsplitn(4, '.');
    let (counter, time, pid) = (parts.next()?, parts.next()?, parts.next()?);
    parts.next().filter(|name| !name.is_empty())?;
    let _: u32 = counter.parse().ok()?;
    let time = u64::from_str_radix(time, 16).ok()?;
    let (pid, time) = (pid.parse().ok()?, Duration::from_nanos(time));
    Some(Maker { pid, time })
}

/// The age from which an unlocked file counts as abandoned. It is far more than the time between the creation of a file
/// and its lock.
const ABANDONED_AGE: Duration = Duration::from_secs(600);

/// A file or directory with a temporary name: it is being created or removed, or a killed process has left it behind.
///
/// A node may have more leftovers than a process may have open files, so each is open only while it is visited.
#[derive(Debug)]
pub struct Leftover<'a> {
    directory: &'a Directory,
    name: String,
    maker_state: MakerState,
    _held: Option<OwnedFd>,
}

/// A function that gets the leftovers one by one, and the errors for those that couldn't be examined.
pub type LeftoverVisitor<'a> = dyn FnMut(Result<Leftover<'_>, FileError>) + 'a;

/// Whether a process still creates or removes a temporary file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MakerState {
    InProgress,
    /// No process works on the file any more. The text gives the evidence.
    Abandoned(String),
    /// It is unknown whether a process works on the file. The text gives the reason.
    Unknown(String),
}

impl Leftover<'_> {
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.directory.path.join(&self.name)
    }

    /// Returns whether a process still creates or removes the file. An abandoned file stays locked, and so abandoned,
    /// until this value is dropped.
    #[must_use]
    pub fn maker_state(&self) -> &MakerState {
        &self.maker_state
    }

    /// Removes the file, or the directory with the files in it. Symbolic links aren't followed.
    pub fn remove(&self) -> Result<(), FileError> {
        match file_type(self.directory, &self.name)? {
            Some(FileType::Directory) => self.directory.remove_tree(&self.name),
            Some(_) => self.directory.remove(&self.name),
            // Another process has removed it.
            None => Ok(()),
        }
    }
}

impl Directory {
    /// Visits the files and directories in this directory that have a temporary name.
    pub fn leftovers(&self, found: &mut LeftoverVisitor<'_>) {
        let listed = match self.entries() {
            Ok(listed) => listed,
            Err(error) => return found(Err(error)),
        };
        for name in listed {
            let name = match name {
                Ok((name, _)) => name,
                Err(error) => return found(Err(error)),
            };
            if let Some(maker) = maker(&name)
                && let Some(leftover) = self.leftover(name, &maker).transpose()
            {
                found(leftover);
            }
        }
    }

    /// Examines a file with a temporary name. Returns `None` if it doesn't exist any more, because it got its final
    /// name or was removed, or if it is neither a file nor a directory.
    fn leftover(&self, name: String, maker: &Maker) -> Result<Option<Leftover<'_>>, FileError> {
        let Some(FileType::Directory | FileType::RegularFile) = file_type(self, &name)? else {
            return Ok(None);
        };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let opened = openat2::open(&self.fd, &*name, flags, BENEATH);
        if matches!(opened, Err(Errno::NOENT)) {
            return Ok(None);
        }
        let held = opened.and_then(|fd| try_lock(&fd).map(|()| fd));
        let age = since_the_epoch().saturating_sub(maker.time);
        Ok(Some(Leftover {
            directory: self,
            maker_state: maker_state(
                maker.pid,
                held.as_ref().map(drop),
                is_running(maker.pid),
                age,
            ),
            name,
            _held: held.ok(),
        }))
    }
}

fn file_type(directory: &Directory, name: &str) -> Result<Option<FileType>, FileError> {
    match fs::statat(&directory.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(FileType::from_raw_mode(stat.st_mode))),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(failed("fstatat", &directory.path.join(name), error)),
    }
}

/// Decides whether a process still works on a temporary file.
///
/// `lock` is the result of trying to lock the file. The process that creates the file locks it right afterwards, so an
/// unlocked file is either new or abandoned. The pid alone isn't enough. If no process has this pid, the creator may be
/// in another pid namespace. If a process has this pid, it may be another one that got the same pid later.
fn maker_state(pid: u32, lock: Result<(), &Errno>, is_running: bool, age: Duration) -> MakerState {
    match (lock, is_running) {
        (Err(&Errno::WOULDBLOCK), _) => MakerState::InProgress,
        (Err(error), _) => MakerState::Unknown(format!("flock: {error}")),
        (Ok(()), false) => {
            MakerState::Abandoned(format!("process {pid}, which was writing it, has ended"))
        }
        (Ok(()), _) if age > ABANDONED_AGE => {
            MakerState::Abandoned("no process writes it any more".into())
        }
        (Ok(()), _) => MakerState::Unknown(format!("process {pid} may still be writing it")),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::super::tests::limit_open_files;
    use super::*;

    /// Larger than any pid.
    const UNUSED_PID: u32 = u32::MAX;

    fn temporary_name(name: &str, pid: u32, ago: Duration) -> String {
        let at = since_the_epoch().saturating_sub(ago).as_nanos();
        format!(".{name}.{pid}.{at:x}.0")
    }

    #[test]
    fn an_unlocked_file_is_abandoned_if_old_or_without_maker() {
        use MakerState::{Abandoned, InProgress, Unknown};
        let (unlocked, long, now) = (Ok(()), ABANDONED_AGE * 2, Duration::ZERO);
        for (lock, is_running, age, expected) in [
            (Err(&Errno::WOULDBLOCK), false, long, InProgress),
            (
                unlocked,
                false,
                now,
                Abandoned("process 7, which was writing it, has ended".into()),
            ),
            (
                unlocked,
                true,
                long,
                Abandoned("no process writes it any more".into()),
            ),
            (
                unlocked,
                true,
                now,
                Unknown("process 7 may still be writing it".into()),
            ),
        ] {
            assert_eq!(
                maker_state(7, lock, is_running, age),
                expected,
                "{lock:?} {is_running:?} {age:?}"
            );
        }
        let error = maker_state(7, Err(&Errno::NOLCK), false, long);
        assert!(matches!(error, Unknown(reason) if reason.starts_with("flock: ")));
    }

    #[test]
    fn only_abandoned_leftovers_are_removed() {
        let temporary = tempfile::tempdir().unwrap();
        let directory = Directory::create(&temporary.path().join("crust")).unwrap();
        let path = |name: &str| directory.path().join(name);
        let outside = temporary.path().join("outside");
        std::fs::write(&outside, "kept").unwrap();

        let now = Duration::ZERO;
        let file = temporary_name("mountInfo.json", UNUSED_PID, now);
        std::fs::write(path(&file), "{").unwrap();
        let entry = temporary_name("entry", UNUSED_PID, now);
        directory.create_directory(&entry).unwrap();
        std::fs::write(path(&entry).join("mountInfo.json"), "{}").unwrap();
        symlink(&outside, path(&entry).join("link")).unwrap();
        let reused = temporary_name("reused", std::process::id(), ABANDONED_AGE * 2);
        std::fs::write(path(&reused), "{").unwrap();

        let deep = temporary_name("deep", UNUSED_PID, now);
        directory.create_directory(&deep).unwrap();
        std::fs::create_dir(path(&deep).join("below")).unwrap();
        let held = temporary_name("held", UNUSED_PID, ABANDONED_AGE * 2);
        let kept = [
            "plain".to_owned(),
            ".hidden".to_owned(),
            temporary_name("recent", std::process::id(), now),
            held.clone(),
        ];
        for name in &kept {
            std::fs::write(path(name), "{}").unwrap();
        }
        let link = temporary_name("link", UNUSED_PID, ABANDONED_AGE * 2);
        symlink(&outside, path(&link)).unwrap();
        let locked = std::fs::File::open(path(&held)).unwrap();
        try_lock(&locked).unwrap();

        let mut errors = Vec::new();
        directory.leftovers(&mut |leftover| {
            let leftover = leftover.unwrap();
            let is = |name: &str| leftover.path() == path(name);
            match leftover.maker_state() {
                MakerState::InProgress => assert!(is(&held), "{leftover:?}"),
                MakerState::Unknown(_) => assert!(is(&kept[2]), "{leftover:?}"),
                MakerState::Abandoned(_) => errors.extend(leftover.remove().err()),
            }
        });
        let [error] = &errors[..] else {
            panic!("{errors:?}");
        };
        assert!(error.to_string().contains(&deep), "{error}");
        let mut expected: Vec<&String> = kept.iter().chain([&deep, &link]).collect();
        expected.sort();
        let mut names = directory.names().unwrap();
        names.sort();
        assert_eq!(names.iter().collect::<Vec<_>>(), expected);
        assert_eq!(std::fs::read(&outside).unwrap(), b"kept");
    }

    #[test]
    fn there_may_be_more_leftovers_than_open_files() {
        const LEFTOVERS: usize = 3000;
        let temporary = tempfile::tempdir().unwrap();
        let directory = Directory::create(&temporary.path().join("crust")).unwrap();
        limit_open_files();
        for number in 0..LEFTOVERS {
            let name = temporary_name(&format!("{number}"), UNUSED_PID, Duration::ZERO);
            std::fs::write(directory.path().join(name), "{").unwrap();
        }
        let mut removed = 0;
        directory.leftovers(&mut |leftover| {
            leftover.unwrap().remove().unwrap();
            removed += 1;
        });
        assert_eq!(removed, LEFTOVERS);
        assert_eq!(directory.names().unwrap(), <[String; 0]>::default());
    }

    #[test]
    fn the_maker_is_parsed_from_a_name() {
        let before = since_the_epoch();
        for long in ["mountInfo.json", &"a.b".repeat(80)] {
            let maker = maker(&name(long)).unwrap();
            assert_eq!(maker.pid, std::process::id());
            assert!(
                before <= maker.time && maker.time <= since_the_epoch(),
                "{maker:?}"
            );
        }
    }

    #[test]
    fn other_names_have_no_maker() {
        for other in [
            "",
            ".",
            "..",
            "name.1.a.0",
            ".name",
            ".name.1.a",
            "..1.a.0",
            ".name.x.a.0",
            ".name.1.xyz.0",
            ".name.1.a.b",
            ".name.-1.a.0",
            ".name.1.a.0.swp",
        ] {
            assert_eq!(maker(other), None, "{other}");
        }
    }
}
