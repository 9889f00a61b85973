//! A watch on directories with inotify(7). It wakes the task that reads the directories. The `notify` crate isn't used:
//! docs/adr/0013-one-of-each.md.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{sleep, timeout};

/// The time for which changes are collected before they are reported as one. Writing one file causes several changes.
const SETTLE_TIME: Duration = Duration::from_millis(50);

/// The longest time without a report. inotify doesn't see what other nodes change on a network file system.
const RESCAN_INTERVAL: Duration = Duration::from_secs(60);

/// The longest time without a report while a directory is missing. inotify doesn't report that it was created.
const MISSING_RESCAN_INTERVAL: Duration = Duration::from_secs(1);

/// A watch on directories by their paths. If a directory is replaced by another at the same path, the new directory is
/// watched from then on.
#[derive(Debug)]
pub(crate) struct DirWatch {
    inotify: AsyncFd<OwnedFd>,
    /// The kernel's watch descriptor of each path. `None` while the path can't be watched, for example because it
    /// doesn't exist.
    watched: BTreeMap<PathBuf, Option<i32>>,
}

impl DirWatch {
    /// Watches directories. All of them must exist now. A directory that is removed later is watched again once it has
    /// been recreated.
    pub(crate) fn new(directories: &[PathBuf]) -> io::Result<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        #[expect(
            deprecated,
            reason = "the replacement is unsafe, because a descriptor could change; an OwnedFd's can't"
        )]
        let inotify = AsyncFd::with_interest(inotify, Interest::READABLE)?;
        let mut watch = Self {
            inotify,
            watched: BTreeMap::new(),
        };
        for directory in directories {
            let descriptor = watch.add(directory).map_err(|errno| {
                let directory = directory.display();
                io::Error::new(
                    io::Error::from(errno).kind(),
                    format!("inotify_add_watch {directory}: {errno}{}", hint(errno)),
                )
            })?;
            watch.watched.insert(directory.clone(), Some(descriptor));
        }
        Ok(watch)
    }

    /// Watches these directories and no others. Returns whether a directory has been added. Earlier changes to such a
    /// directory are not reported.
    pub(crate) fn set(&mut self, directories: &BTreeSet<PathBuf>) -> bool {
        let mut dropped: Vec<PathBuf> = self.watched.keys().cloned().collect();
        dropped.retain(|directory| !directories.contains(directory));
        for directory in &dropped {
            let descriptor = self.watched.remove(directory).flatten();
            self.forget(descriptor);
        }
        for directory in directories {
            self.watched.entry(directory.clone()).or_default();
        }
        self.renew()
    }

    /// Waits until something in a watched directory has changed, or may have. Changes within 50 ms are reported
    /// together. Later changes are reported by the next call, so a caller that reads the directories after each call
    /// misses nothing.
    pub(crate) async fn changed(&mut self) {
        if self.renew() {
            return;
        }
        let is_missing = self.watched.values().any(Option::is_none);
        let rescan_interval = if is_missing {
            MISSING_RESCAN_INTERVAL
        } else {
            RESCAN_INTERVAL
        };
        // The caller reads the directories again after an error, too.
        if timeout(rescan_interval, self.inotify.readable())
            .await
            .is_ok()
        {
            sleep(SETTLE_TIME).await;
            self.drain();
        }
        self.renew();
    }

    /// Discards the events. The caller reads the directories again after any event.
    fn drain(&self) {
        let mut events = [0_u8; 4096];
        let mut read = |inotify: &OwnedFd| Ok(rustix::io::read(inotify, &mut events)?);
        while let Ok(1..) = self.inotify.try_io(Interest::READABLE, &mut read) {}
    }

    /// Renews the watches on all paths. Returns whether a new directory is watched.
    fn renew(&mut self) -> bool {
        let directories: Vec<PathBuf> = self.watched.keys().cloned().collect();
        let mut is_new = false;
        for directory in directories {
            // A directory that is watched already keeps its descriptor.
            let descriptor = self.add(&directory).ok();
            let previous = self.watched.insert(directory, descriptor).flatten();
            if previous != descriptor {
                is_new |= descriptor.is_some();
                self.forget(previous);
            }
        }
        is_new
    }

    fn add(&self, directory: &Path) -> Result<i32, Errno> {
        let events = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::ATTRIB
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        inotify::add_watch(&self.inotify, directory, events)
    }

    /// Removes a watch, unless another path leads to the same directory.
    fn forget(&self, descriptor: Option<i32>) {
        if let Some(descriptor) = descriptor
            && !self
                .watched
                .values()
                .any(|other| *other == Some(descriptor))
        {
            // Fails if the directory is gone, because the kernel has removed the watch.
            let _ = inotify::remove_watch(&self.inotify, descriptor);
        }
    }
}

fn hint(errno: Errno) -> &'static str {
    match errno {
        Errno::NOSPC => "; hint: raise fs.inotify.max_user_watches with sysctl",
        Errno::NOTDIR => "; hint: use the path of a directory",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    struct TestDir(tempfile::TempDir);

    impl TestDir {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn mkdir(&self, name: &str) -> PathBuf {
            fs::create_dir(self.path(name)).unwrap();
            self.path(name)
        }
    }

    /// Returns whether a change is reported. The paused clock doesn't advance while an event is ready. Without an
    /// event, it jumps to the next rescan.
    async fn reports_change(watch: &mut DirWatch) -> bool {
        let start = tokio::time::Instant::now();
        watch.changed().await;
        start.elapsed() < MISSING_RESCAN_INTERVAL
    }

    #[tokio::test(start_paused = true)]
    async fn simultaneous_changes_are_reported_once() {
        let dir = TestDir::new();
        let (a, b) = (dir.mkdir("a"), dir.mkdir("b"));
        let mut watch = DirWatch::new(&[a.clone(), b.clone()]).unwrap();
        fs::write(a.join("x"), "1").unwrap();
        fs::write(b.join("x"), "2").unwrap();
        fs::rename(a.join("x"), b.join("y")).unwrap();
        assert!(reports_change(&mut watch).await);
        assert!(
            !reports_change(&mut watch).await,
            "all changes are reported"
        );
        fs::remove_file(b.join("y")).unwrap();
        assert!(reports_change(&mut watch).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_replaced_directory_is_watched() {
        let dir = TestDir::new();
        let a = dir.mkdir("a");
        let mut watch = DirWatch::new(std::slice::from_ref(&a)).unwrap();
        fs::rename(&a, dir.path("old")).unwrap();
        assert!(reports_change(&mut watch).await);
        assert!(!reports_change(&mut watch).await, "the directory is gone");
        dir.mkdir("a");
        assert!(reports_change(&mut watch).await, "the directory is back");
        fs::write(a.join("x"), "").unwrap();
        assert!(reports_change(&mut watch).await);
        fs::write(dir.path("old/x"), "").unwrap();
        assert!(
            !reports_change(&mut watch).await,
            "the old directory isn't watched"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn directories_are_added_and_removed() {
        let dir = TestDir::new();
        let (a, b) = (dir.mkdir("a"), dir.mkdir("b"));
        let mut watch = DirWatch::new(std::slice::from_ref(&a)).unwrap();
        let both = BTreeSet::from([a.clone(), b.clone()]);
        assert!(watch.set(&both), "b was added");
        assert!(!watch.set(&both));
        fs::write(b.join("x"), "").unwrap();
        assert!(reports_change(&mut watch).await);
        assert!(!watch.set(&BTreeSet::from([b])));
        assert!(
            reports_change(&mut watch).await,
            "the removal of the watch on a is an event"
        );
        fs::write(a.join("x"), "").unwrap();
        assert!(!reports_change(&mut watch).await);
    }

    #[tokio::test]
    async fn an_error_names_the_directory() {
        let dir = TestDir::new();
        fs::write(dir.path("file"), "").unwrap();
        for (name, cause) in [
            ("none", "No such file or directory"),
            ("file", "; hint: use the path of a directory"),
        ] {
            let error = DirWatch::new(&[dir.path(name)]).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(cause), "{error}");
        }
    }
}
