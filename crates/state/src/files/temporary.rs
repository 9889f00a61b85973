//! Temporary files: the names under which files and directories are made, and those that killed processes have left.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use rustix::fs::{self, AtFlags, FileType, FlockOperation, OFlags, flock};
use rustix::io::Errno;

use super::{BELOW, Directory, FileError, failed};
use crate::process::{is_running, own_pid};
use crust_blockfs::openat2;

/// Returns a new name, with a dot first, for what is to become `name`. A long name is cut.
pub(super) fn name(name: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = name.get(..100).unwrap_or(name);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    // A crash may have left one under a pid that is ours now.
    let now = since_the_epoch().as_nanos();
    format!(".{name}.{}.{now:x}.{next}", own_pid())
}

/// Locks what has such a name, for as long as it is open: it is being made. The kernel unlocks it when the process is
/// killed, whichever pid namespace that is in.
pub(super) fn hold(made: impl AsFd) -> Result<(), Errno> {
    flock(made, FlockOperation::NonBlockingLockExclusive)
}

fn since_the_epoch() -> Duration {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default()
}

/// The maker of a temporary file, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Maker {
    pid: u32,
    /// The time since the epoch.
    at: Duration,
}

/// Returns the maker by a name; `None` for a name that [`name`] doesn't make.
fn maker(name: &str) -> Option<Maker> {
    let mut parts = name.strip_prefix('.')?.rsplitn(4, '.');
    let (next, at, pid) = (parts.next()?, parts.next()?, parts.next()?);
    parts.next().filter(|name| !name.is_empty())?;
    let _: u32 = next.parse().ok()?;
    let at = u64::from_str_radix(at, 16).ok()?;
    let (pid, at) = (pid.parse().ok()?, Duration::from_nanos(at));
    Some(Maker { pid, at })
}

/// More time than passes between making something and locking it.
const AGE: Duration = Duration::from_secs(600);

/// A file or directory with a temporary name: it is being made or removed, or its process was killed meanwhile. A
/// node may have more of them than a process may have open files, so each is open only while it is looked at.
#[derive(Debug)]
pub struct Leftover<'a> {
    directory: &'a Directory,
    name: String,
    making: MakerState,
    _held: Option<OwnedFd>,
}

/// A function that gets the leftovers one after the other, and errors about those that couldn't be examined.
pub type LeftoverVisitor<'a> = dyn FnMut(Result<Leftover<'_>, FileError>) + 'a;

/// Whether a process still makes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MakerState {
    /// A process does.
    UnderWay,
    /// No process does, and how that is known.
    Over(String),
    /// It is unknown, and why.
    Unsure(String),
}

impl Leftover<'_> {
    /// Returns its path.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.directory.path.join(&self.name)
    }

    /// Whether a process still makes it. If none does, none begins to while this value lives.
    #[must_use]
    pub fn making(&self) -> &MakerState {
        &self.making
    }

    /// Removes it, a directory with the files in it. No link is followed.
    pub fn remove(&self) -> Result<(), FileError> {
        match kind(self.directory, &self.name)? {
            Some(FileType::Directory) => self.directory.remove_tree(&self.name),
            Some(_) => self.directory.remove(&self.name),
            // Another process was faster.
            None => Ok(()),
        }
    }
}

impl Directory {
    /// Finds the files and directories in this directory that have a temporary name.
    pub fn leftovers(&self, found: &mut LeftoverVisitor<'_>) {
        let listed = match self.listed() {
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

    /// `None` where it is gone by now: it was made.
    fn leftover(&self, name: String, maker: &Maker) -> Result<Option<Leftover<'_>>, FileError> {
        let Some(FileType::Directory | FileType::RegularFile) = kind(self, &name)? else {
            return Ok(None);
        };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let opened = openat2::open(&self.fd, &*name, flags, BELOW);
        if matches!(opened, Err(Errno::NOENT)) {
            return Ok(None);
        }
        let held = opened.and_then(|fd| hold(&fd).map(|()| fd));
        let age = since_the_epoch().saturating_sub(maker.at);
        Ok(Some(Leftover {
            directory: self,
            making: judge(
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

fn kind(directory: &Directory, name: &str) -> Result<Option<FileType>, FileError> {
    match fs::statat(&directory.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(FileType::from_raw_mode(stat.st_mode))),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(failed("fstatat", &directory.path.join(name), error)),
    }
}

/// `held`: whether it could be had. Whoever makes something holds it from the next moment on; a pid
/// that doesn't run may be one of another pid namespace, and one that does may be another process's by
/// now.
fn judge(pid: u32, held: Result<(), &Errno>, runs: bool, age: Duration) -> MakerState {
    match (held, runs) {
        (Err(&Errno::WOULDBLOCK), _) => MakerState::UnderWay,
        (Err(error), _) => MakerState::Unsure(format!("flock: {error}")),
        (Ok(()), false) => MakerState::Over(format!("process {pid}, which was at it, is gone")),
        (Ok(()), _) if age > AGE => MakerState::Over("nobody is at it any more".into()),
        (Ok(()), _) => MakerState::Unsure(format!("process {pid} may be at it")),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::super::tests::limit_open_files;
    use super::*;

    /// More than pids can be.
    const NOBODY: u32 = u32::MAX;

    fn left(name: &str, pid: u32, ago: Duration) -> String {
        let at = since_the_epoch().saturating_sub(ago).as_nanos();
        format!(".{name}.{pid}.{at:x}.0")
    }

    #[test]
    fn nobody_is_at_what_can_be_had_and_whose_maker_is_gone() {
        use MakerState::{Over, UnderWay, Unsure};
        let (free, long, now) = (Ok(()), AGE * 2, Duration::ZERO);
        for (held, runs, age, expected) in [
            (Err(&Errno::WOULDBLOCK), false, long, UnderWay),
            (
                free,
                false,
                now,
                Over("process 7, which was at it, is gone".into()),
            ),
            (free, true, long, Over("nobody is at it any more".into())),
            (free, true, now, Unsure("process 7 may be at it".into())),
        ] {
            assert_eq!(
                judge(7, held, runs, age),
                expected,
                "{held:?} {runs:?} {age:?}"
            );
        }
        let error = judge(7, Err(&Errno::NOLCK), false, long);
        assert!(matches!(error, Unsure(why) if why.starts_with("flock: ")));
    }

    #[test]
    fn only_leftovers_of_ended_processes_are_removed() {
        let temporary = tempfile::tempdir().unwrap();
        let directory = Directory::create(&temporary.path().join("crust")).unwrap();
        let path = |name: &str| directory.path().join(name);
        let outside = temporary.path().join("outside");
        std::fs::write(&outside, "kept").unwrap();

        let now = Duration::ZERO;
        let file = left("mountInfo.json", NOBODY, now);
        std::fs::write(path(&file), "{").unwrap();
        let entry = left("entry", NOBODY, now);
        directory.create_directory(&entry).unwrap();
        std::fs::write(path(&entry).join("mountInfo.json"), "{}").unwrap();
        symlink(&outside, path(&entry).join("link")).unwrap();
        let reused = left("reused", std::process::id(), AGE * 2);
        std::fs::write(path(&reused), "{").unwrap();

        let deep = left("deep", NOBODY, now);
        directory.create_directory(&deep).unwrap();
        std::fs::create_dir(path(&deep).join("below")).unwrap();
        let held = left("held", NOBODY, AGE * 2);
        let kept = [
            "plain".to_owned(),
            ".hidden".to_owned(),
            left("recent", std::process::id(), now),
            held.clone(),
        ];
        for name in &kept {
            std::fs::write(path(name), "{}").unwrap();
        }
        let link = left("link", NOBODY, AGE * 2);
        symlink(&outside, path(&link)).unwrap();
        let at_it = std::fs::File::open(path(&held)).unwrap();
        hold(&at_it).unwrap();

        let mut errors = Vec::new();
        directory.leftovers(&mut |leftover| {
            let leftover = leftover.unwrap();
            let is = |name: &str| leftover.path() == path(name);
            match leftover.making() {
                MakerState::UnderWay => assert!(is(&held), "{leftover:?}"),
                MakerState::Unsure(_) => assert!(is(&kept[2]), "{leftover:?}"),
                MakerState::Over(_) => errors.extend(leftover.remove().err()),
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
    fn there_may_be_more_of_them_than_open_files() {
        const LEFT: usize = 3000;
        let temporary = tempfile::tempdir().unwrap();
        let directory = Directory::create(&temporary.path().join("crust")).unwrap();
        limit_open_files();
        for number in 0..LEFT {
            let name = left(&format!("{number}"), NOBODY, Duration::ZERO);
            std::fs::write(directory.path().join(name), "{").unwrap();
        }
        let mut removed = 0;
        directory.leftovers(&mut |leftover| {
            leftover.unwrap().remove().unwrap();
            removed += 1;
        });
        assert_eq!(removed, LEFT);
        assert_eq!(directory.names().unwrap(), <[String; 0]>::default());
    }

    #[test]
    fn a_name_tells_who_made_it_and_when() {
        let before = since_the_epoch();
        for long in ["mountInfo.json", &"a.b".repeat(80)] {
            let maker = maker(&name(long)).unwrap();
            assert_eq!(maker.pid, std::process::id());
            assert!(
                before <= maker.at && maker.at <= since_the_epoch(),
                "{maker:?}"
            );
        }
    }

    #[test]
    fn other_names_are_nobodys() {
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
