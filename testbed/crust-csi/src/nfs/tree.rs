//! Removes a directory of a share with everything in it. Symbolic links aren't followed, and other file systems that the
//! server exports below the directory aren't entered.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crust_blockfs::{Deadline, openat2};
use rustix::fs::{AtFlags, Dir, FileType, OFlags, ResolveFlags, unlinkat};
use rustix::io::Errno;

/// The largest number of directories that are open at the same time, apart from the one that is being listed.
const MAX_OPEN: usize = 32;

/// The largest number of entries that are listed at once. It bounds the names that are kept for each directory.
const MAX_LISTED: usize = 1024;

/// The number of times that directories of the tree may get new entries before they can be removed.
const MAX_REFILLS: usize = 16;

const RESOLVE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_XDEV);

/// The reason why a tree can't be removed. What has been removed until then stays removed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RemovalError {
    /// A system call failed.
    Call {
        call: &'static str,
        /// The path of the entry, from the parent of the tree.
        path: PathBuf,
        errno: Errno,
    },
    /// The deadline has passed.
    Deadline,
}

/// Removes the tree `name` in the directory `parent`. Succeeds if it doesn't exist. Entries that vanish meanwhile are
/// skipped.
pub(super) fn remove(
    parent: &OwnedFd,
    name: &OsStr,
    deadline: Deadline,
) -> Result<(), RemovalError> {
    let mut removal = Removal::begin(parent, name)?;
    while removal.step(deadline)? {}
    Ok(())
}

/// A removal of a tree, from the bottom up.
struct Removal<'a> {
    parent: &'a OwnedFd,
    /// The directories that lead from the tree's root to the one that is being emptied.
    path: Vec<Directory>,
    /// The number of times that a directory wasn't empty after its entries had been removed.
    refills: usize,
}

/// A directory that is being emptied.
struct Directory {
    name: OsString,
    /// `None` if too many directories were open. It is opened again when its turn comes.
    descriptor: Option<OwnedFd>,
    /// The listed directories that haven't been visited yet.
    pending: Vec<OsString>,
    /// Whether the directory has to be listed: for the first time, or again, because entries have been removed since. A
    /// listing can be incomplete.
    needs_listing: bool,
}

impl<'a> Removal<'a> {
    fn begin(parent: &'a OwnedFd, name: &OsStr) -> Result<Self, RemovalError> {
        let mut removal = Self {
            parent,
            path: Vec::new(),
            refills: 0,
        };
        removal.enter(name.to_owned())?;
        Ok(removal)
    }

    /// Removes the next entries. Returns false if the tree is gone.
    fn step(&mut self, deadline: Deadline) -> Result<bool, RemovalError> {
        let Some(current) = self.path.last_mut() else {
            return Ok(false);
        };
        if deadline.is_expired() {
            return Err(RemovalError::Deadline);
        }
        if let Some(name) = current.pending.pop() {
            self.enter(name)?;
        } else if current.needs_listing {
            self.unlink_files(deadline)?;
        } else {
            self.leave()?;
        }
        Ok(true)
    }

    /// Opens a directory of the current one, to empty it next. Removes the entry if it is no directory.
    fn enter(&mut self, name: OsString) -> Result<(), RemovalError> {
        if !self.open_current()? {
            return Ok(());
        }
        let opened = open_or_unlink(self.current(), &name);
        let Some(descriptor) = opened.map_err(|failed| self.failed(failed, Some(&name)))? else {
            self.list_again();
            return Ok(());
        };
        self.path.push(Directory {
            name,
            descriptor: Some(descriptor),
            pending: Vec::new(),
            needs_listing: true,
        });
        self.limit_open(self.path.len());
        Ok(())
    }

    /// Lists the current directory and removes its files. The listed directories are pending then.
    fn unlink_files(&mut self, deadline: Deadline) -> Result<(), RemovalError> {
        if !self.open_current()? {
            return Ok(());
        }
        let listed = list(self.current());
        let listed = listed.map_err(|errno| self.failed(("getdents64", errno), None))?;
        let (mut pending, mut needs_listing) = (Vec::new(), false);
        for (name, kind) in listed {
            if deadline.is_expired() {
                return Err(RemovalError::Deadline);
            }
            if kind == FileType::Directory {
                pending.push(name);
                continue;
            }
            match unlinkat(self.current(), &name, AtFlags::empty()) {
                Ok(()) => needs_listing = true,
                // Another client has removed the entry, or the whole directory.
                Err(Errno::NOENT | Errno::STALE) => {}
                // The server doesn't tell the types of entries, or the entry was replaced.
                Err(Errno::ISDIR) => pending.push(name),
                Err(errno) => return Err(self.failed(("unlink", errno), Some(&name))),
            }
        }
        if let Some(current) = self.path.last_mut() {
            current.pending = pending;
            current.needs_listing = needs_listing;
        }
        Ok(())
    }

    /// Removes the current directory, and goes on with the one that contains it.
    fn leave(&mut self) -> Result<(), RemovalError> {
        let Some(left) = self.path.pop() else {
            return Ok(());
        };
        if !self.open_current()? {
            return Ok(());
        }
        match unlinkat(self.current(), &left.name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => self.list_again(),
            // Another client has created entries, or has replaced the directory.
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) if self.refills < MAX_REFILLS => {
                self.refills += 1;
                self.enter(left.name)?;
            }
            Err(errno) => return Err(self.failed(("rmdir", errno), Some(&left.name))),
        }
        Ok(())
    }

    fn list_again(&mut self) {
        if let Some(current) = self.path.last_mut() {
            current.needs_listing = true;
        }
    }

    /// Returns the current directory, which must be open, or the parent of the tree.
    fn current(&self) -> BorrowedFd<'_> {
        let current = self.path.last();
        let current = current.and_then(|current| current.descriptor.as_ref());
        current.unwrap_or(self.parent).as_fd()
    }

    /// Opens the current directory again if it was closed. Returns false if it isn't at its path any more. The removal
    /// then goes on with a directory above.
    fn open_current(&mut self) -> Result<bool, RemovalError> {
        let is_closed = |it: &Directory| it.descriptor.is_none();
        if self.path.last().is_some_and(is_closed) {
            self.reopen()
        } else {
            Ok(true)
        }
    }

    /// Opens all directories of the path again, one below the other. Returns false, and shortens the path, if one of
    /// them isn't there any more.
    fn reopen(&mut self) -> Result<bool, RemovalError> {
        for index in 0..self.path.len() {
            let above = index.checked_sub(1).and_then(|above| self.path.get(above));
            let above = above.and_then(|above| above.descriptor.as_ref());
            let at = above.unwrap_or(self.parent);
            match open(at.as_fd(), &self.path[index].name) {
                Ok(descriptor) => self.path[index].descriptor = Some(descriptor),
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                    self.path.truncate(index);
                    self.list_again();
                    return Ok(false);
                }
                Err(errno) => {
                    self.path.truncate(index + 1);
                    return Err(self.failed((OPEN, errno), None));
                }
            }
            self.limit_open(index + 1);
        }
        Ok(true)
    }

    /// Closes the directory that is the farthest from the last one of the first `length` directories of the path.
    fn limit_open(&mut self, length: usize) {
        let oldest = length.checked_sub(MAX_OPEN + 1);
        if let Some(oldest) = oldest.and_then(|index| self.path.get_mut(index)) {
            oldest.descriptor = None;
        }
    }

    /// Returns the error of a call on an entry of the current directory, or on that directory itself.
    fn failed(&self, (call, errno): FailedCall, entry: Option<&OsStr>) -> RemovalError {
        let names = self.path.iter().map(|directory| directory.name.as_os_str());
        RemovalError::Call {
            call,
            path: names.chain(entry).collect(),
            errno,
        }
    }
}

type FailedCall = (&'static str, Errno);

const OPEN: &str = "openat2(RESOLVE_NO_XDEV)";

fn open(at: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    openat2::open(at, name, flags, RESOLVE)
}

/// Opens a directory, or removes anything else with that name. `None` if nothing has the name any more.
fn open_or_unlink(at: BorrowedFd<'_>, name: &OsStr) -> Result<Option<OwnedFd>, FailedCall> {
    match open(at, name) {
        Ok(directory) => Ok(Some(directory)),
        Err(Errno::NOENT) => Ok(None),
        Err(Errno::NOTDIR | Errno::LOOP) => match unlinkat(at, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(("unlink", errno)),
        },
        Err(errno) => Err((OPEN, errno)),
    }
}

/// Returns entries of a directory with their types, from the beginning. There are none if it was removed.
fn list(directory: BorrowedFd<'_>) -> Result<Vec<(OsString, FileType)>, Errno> {
    let mut listed = Vec::new();
    // Opens the directory again, and so starts from the beginning.
    let entries = match Dir::read_from(directory) {
        Ok(entries) => entries,
        Err(Errno::NOENT | Errno::STALE) => return Ok(listed),
        Err(errno) => return Err(errno),
    };
    for entry in entries {
        let entry = match entry {
            Ok(entry) => entry,
            Err(Errno::NOENT | Errno::STALE) => break,
            Err(errno) => return Err(errno),
        };
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            listed.push((OsStr::from_bytes(name).to_owned(), entry.file_type()));
        }
        if listed.len() == MAX_LISTED {
            break;
        }
    }
    Ok(listed)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;
    use std::thread;

    use crust_blockfs::sys::unshare_mount_namespace;
    use rustix::fs::{CWD, Mode, openat};
    use rustix::mount::{
        MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount,
    };

    use super::*;

    /// A directory with the tree `volume`, and beside it the directory `outside` with a file.
    struct Scene {
        directory: tempfile::TempDir,
        parent: OwnedFd,
    }

    impl Scene {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            fs::create_dir(directory.path().join("volume")).unwrap();
            fs::create_dir(directory.path().join("outside")).unwrap();
            fs::write(directory.path().join("outside/file"), "data").unwrap();
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let parent = openat(CWD, directory.path(), flags, Mode::empty()).unwrap();
            Self { directory, parent }
        }

        fn at(&self, path: impl AsRef<Path>) -> PathBuf {
            self.directory.path().join(path)
        }

        fn remove(&self) -> Result<(), RemovalError> {
            remove(&self.parent, OsStr::new("volume"), Deadline::never())
        }

        #[track_caller]
        fn assert_only_outside_is_left(&self) {
            let left = fs::read_dir(self.directory.path()).unwrap();
            let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
            assert_eq!(left, ["outside"]);
            assert_eq!(fs::read(self.at("outside/file")).unwrap(), b"data");
        }
    }

    #[test]
    fn everything_is_removed_and_no_link_is_followed() {
        let scene = Scene::new();
        fs::create_dir_all(scene.at("volume/a/b")).unwrap();
        for number in 0..=MAX_LISTED {
            fs::write(scene.at(format!("volume/a/{number}")), "").unwrap();
            fs::create_dir(scene.at(format!("volume/a/b/{number}"))).unwrap();
        }
        symlink("../../outside", scene.at("volume/a/link")).unwrap();
        symlink("nowhere", scene.at("volume/dangling")).unwrap();
        scene.remove().unwrap();
        scene.assert_only_outside_is_left();
        scene.remove().unwrap();
        for path in ["outside", "nowhere"] {
            symlink(path, scene.at("volume")).unwrap();
            scene.remove().unwrap();
            scene.assert_only_outside_is_left();
        }
    }

    /// Makes directories within each other, with a file in each one.
    fn make_deep(scene: &Scene, depth: usize) -> PathBuf {
        let mut path = PathBuf::from("volume");
        for _ in 0..depth {
            path.push("d");
            fs::create_dir(scene.at(&path)).unwrap();
            fs::write(scene.at(&path).join("file"), "").unwrap();
        }
        path
    }

    #[test]
    fn few_directories_of_a_deep_tree_are_open() {
        let scene = Scene::new();
        make_deep(&scene, 10 * MAX_OPEN);
        let mut removal = Removal::begin(&scene.parent, OsStr::new("volume")).unwrap();
        let mut depth = 0;
        while removal.step(Deadline::never()).unwrap() {
            let open = removal.path.iter().filter(|it| it.descriptor.is_some());
            assert!(open.count() <= MAX_OPEN);
            depth = depth.max(removal.path.len());
        }
        assert_eq!(depth, 10 * MAX_OPEN + 1);
        scene.assert_only_outside_is_left();
    }

    #[test]
    fn a_moved_directory_does_not_lead_out_of_the_tree() {
        for destination in ["volume/moved", "outside/moved"] {
            let scene = Scene::new();
            let deepest = make_deep(&scene, 3 * MAX_OPEN);
            let mut removal = Removal::begin(&scene.parent, OsStr::new("volume")).unwrap();
            while scene.at(&deepest).join("file").exists() {
                assert!(removal.step(Deadline::never()).unwrap());
            }
            fs::rename(scene.at("volume/d/d"), scene.at(destination)).unwrap();
            while removal.step(Deadline::never()).unwrap() {}
            if destination.starts_with("outside") {
                let below = scene.at(destination).join("d");
                assert!(below.exists(), "directories that were moved out are left");
                fs::remove_dir_all(scene.at(destination)).unwrap();
            }
            scene.assert_only_outside_is_left();
        }
    }

    #[test]
    fn entries_that_come_and_go_are_skipped() {
        let scene = Scene::new();
        fs::create_dir_all(scene.at("volume/a/b")).unwrap();
        fs::create_dir_all(scene.at("volume/c")).unwrap();
        let mut removal = Removal::begin(&scene.parent, OsStr::new("volume")).unwrap();
        assert!(removal.step(Deadline::never()).unwrap());
        assert_eq!(removal.path[0].pending.len(), 2);
        fs::remove_dir_all(scene.at("volume/a")).unwrap();
        fs::remove_dir(scene.at("volume/c")).unwrap();
        symlink("../outside", scene.at("volume/c")).unwrap();
        fs::write(scene.at("volume/new"), "").unwrap();
        while removal.step(Deadline::never()).unwrap() {}
        scene.assert_only_outside_is_left();
    }

    #[test]
    fn a_removal_ends_at_its_deadline() {
        let scene = Scene::new();
        let deadline = Deadline::after(std::time::Duration::ZERO);
        let ended = remove(&scene.parent, OsStr::new("volume"), deadline);
        assert_eq!(ended, Err(RemovalError::Deadline));
        assert!(scene.at("volume").exists());
        assert_eq!(
            remove(&scene.parent, OsStr::new("missing"), deadline),
            Ok(())
        );
    }

    #[test]
    fn a_file_system_below_is_not_entered() {
        // A thread of its own, because its mounts are only visible in its own mount namespace.
        let mounted = thread::spawn(|| {
            unshare_mount_namespace().unwrap();
            let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
            mount_change("/", private).unwrap();
            let scene = Scene::new();
            let below = scene.at("volume/a/other");
            for point in [below.clone(), scene.at("volume")] {
                fs::create_dir_all(&below).unwrap();
                mount("tmpfs", &point, "tmpfs", MountFlags::empty(), None).unwrap();
                fs::write(point.join("file"), "of another export").unwrap();
                let error = scene.remove().unwrap_err();
                let path = point.strip_prefix(scene.directory.path()).unwrap();
                assert_eq!(
                    error,
                    RemovalError::Call {
                        call: OPEN,
                        path: path.to_owned(),
                        errno: Errno::XDEV
                    }
                );
                assert!(point.join("file").exists());
                unmount(&point, UnmountFlags::empty()).unwrap();
                scene.remove().unwrap();
                scene.assert_only_outside_is_left();
            }
        });
        mounted.join().unwrap();
    }
}
