//! What a process that was killed was making.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::{self, AtFlags, FileType, OFlags};
use rustix::io::Errno;

use super::temporary::{self, Maker, since_the_epoch};
use super::{BELOW, Directory, FileError, failed};
use crate::process::runs;
use crust_blockfs::beneath;

/// Longer than it takes from making something to holding it.
const AGE: Duration = Duration::from_secs(600);

/// A file or directory that is being made or removed, or was when whoever did that was killed. There
/// may be more of them than a process may have files: each is open while somebody looks at it.
#[derive(Debug)]
pub struct Leftover<'a> {
    directory: &'a Directory,
    name: String,
    making: Making,
    _held: Option<OwnedFd>,
}

/// Who is handed what was left, one after the other, and what couldn't be looked at.
pub type Finder<'a> = dyn FnMut(Result<Leftover<'_>, FileError>) + 'a;

/// Whether somebody is at it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Making {
    /// Somebody is.
    UnderWay,
    /// Nobody is, and how that is known.
    Over(String),
    /// It can't be told, and why.
    Unsure(String),
}

impl Leftover<'_> {
    /// Where it stands.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.directory.path.join(&self.name)
    }

    /// Whether somebody is at it. While this value lives nobody begins to be.
    #[must_use]
    pub fn making(&self) -> &Making {
        &self.making
    }

    /// Removes it; of a directory the files, and no link is followed.
    pub fn remove(&self) -> Result<(), FileError> {
        match kind(self.directory, &self.name)? {
            Some(FileType::Directory) => self.directory.remove_tree(&self.name),
            Some(_) => self.directory.remove(&self.name),
            // Somebody else was faster.
            None => Ok(()),
        }
    }
}

impl Directory {
    /// Everything in here that has a name of ours, and is of a kind that we make.
    pub fn leftovers(&self, found: &mut Finder<'_>) {
        let listed = match self.listed() {
            Ok(listed) => listed,
            Err(error) => return found(Err(error)),
        };
        for name in listed {
            let name = match name {
                Ok((name, _)) => name,
                Err(error) => return found(Err(error)),
            };
            if let Some(maker) = temporary::maker(&name)
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
        let opened = beneath::open(&self.fd, &*name, flags, BELOW);
        if matches!(opened, Err(Errno::NOENT)) {
            return Ok(None);
        }
        let held = opened.and_then(|fd| temporary::hold(&fd).map(|()| fd));
        let age = since_the_epoch().saturating_sub(maker.at);
        Ok(Some(Leftover {
            directory: self,
            making: judge(maker.pid, held.as_ref().map(drop), runs(maker.pid), age),
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
fn judge(pid: u32, held: Result<(), &Errno>, runs: bool, age: Duration) -> Making {
    match (held, runs) {
        (Err(&Errno::WOULDBLOCK), _) => Making::UnderWay,
        (Err(error), _) => Making::Unsure(format!("flock: {error}")),
        (Ok(()), false) => Making::Over(format!("process {pid}, which was at it, is gone")),
        (Ok(()), _) if age > AGE => Making::Over("nobody is at it any more".into()),
        (Ok(()), _) => Making::Unsure(format!("process {pid} may be at it")),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::super::tests::few_files;
    use super::*;

    /// More than pids can be.
    const NOBODY: u32 = u32::MAX;

    fn left(name: &str, pid: u32, ago: Duration) -> String {
        let at = since_the_epoch().saturating_sub(ago).as_nanos();
        format!(".{name}.{pid}.{at:x}.0")
    }

    #[test]
    fn nobody_is_at_what_can_be_had_and_whose_maker_is_gone() {
        use Making::{Over, UnderWay, Unsure};
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
    fn what_a_process_that_is_gone_left_is_removed_and_nothing_else() {
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
        temporary::hold(&at_it).unwrap();

        let mut errors = Vec::new();
        directory.leftovers(&mut |leftover| {
            let leftover = leftover.unwrap();
            let is = |name: &str| leftover.path() == path(name);
            match leftover.making() {
                Making::UnderWay => assert!(is(&held), "{leftover:?}"),
                Making::Unsure(_) => assert!(is(&kept[2]), "{leftover:?}"),
                Making::Over(_) => errors.extend(leftover.remove().err()),
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
        few_files();
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
}
