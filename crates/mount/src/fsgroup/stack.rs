//! Where the walk is: the directories from the root down to the innermost one.

use std::ffi::{CStr, CString, OsStr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::io::Errno;

use super::FsGroupError;
use super::touch::{self, Failure, Look};

/// So many of the innermost directories are kept open; those above are found again by `..`.
const OPEN_DIRECTORIES: usize = 64;

/// Never empty while the walk goes on.
pub(super) struct Stack {
    frames: Vec<Frame>,
    /// The mount that is walked; others aren't entered.
    mount: u64,
}

/// A directory whose entries have been dealt with, except for those directories.
struct Frame {
    /// Empty for the root.
    name: CString,
    /// `None` while we are deep below it.
    directory: Option<OwnedFd>,
    identity: (u32, u32, u64),
    directories: Vec<CString>,
}

impl Stack {
    /// With `root` as the innermost directory.
    pub(super) fn new(root: OwnedFd, look: &Look) -> Self {
        let mut stack = Self {
            frames: Vec::new(),
            mount: look.mount,
        };
        stack.push(CString::default(), root, look);
        stack
    }

    /// Whether an entry is of the volume, rather than of another mount on top of it.
    pub(super) fn is_of_this_mount(&self, look: &Look) -> bool {
        look.mount == self.mount
    }

    /// Whether an entry is in another subvolume of a btrfs than the root: those have an `st_dev`
    /// each, on one mount.
    pub(super) fn is_in_a_subvolume(&self, look: &Look) -> bool {
        let device = |identity: (u32, u32, u64)| (identity.0, identity.1);
        let mut frames = self.frames.iter();
        frames
            .next()
            .is_some_and(|root| device(root.identity) != device(look.identity))
    }

    pub(super) fn push(&mut self, name: CString, directory: OwnedFd, look: &Look) {
        self.frames.push(Frame {
            name,
            directory: Some(directory),
            identity: look.identity,
            directories: Vec::new(),
        });
        if let Some(above) = self.frames.len().checked_sub(OPEN_DIRECTORIES + 1) {
            self.frames[above].directory = None;
        }
    }

    /// Notes the directories in the innermost directory.
    pub(super) fn set_directories(&mut self, directories: Vec<CString>) {
        if let Some(frame) = self.frames.last_mut() {
            frame.directories = directories;
        }
    }

    /// The next of those to descend into.
    pub(super) fn next_directory(&mut self) -> Option<CString> {
        self.frames.last_mut()?.directories.pop()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// The innermost directory, which is always open.
    pub(super) fn top(&self) -> Result<BorrowedFd<'_>, FsGroupError> {
        self.frames
            .last()
            .and_then(|frame| frame.directory.as_ref())
            .map(AsFd::as_fd)
            .ok_or_else(|| self.failed(None, ("openat2", Errno::BADF)))
    }

    /// Leaves the innermost directory: its name (empty for the root) and the directory itself, whose
    /// turn it is now. An error leaves everything as it is.
    pub(super) fn pop(&mut self) -> Result<Option<(CString, OwnedFd)>, FsGroupError> {
        let parent = self.parent()?;
        let Some(frame) = self.frames.pop() else {
            return Ok(None);
        };
        if let (Some(above), Some(parent)) = (self.frames.last_mut(), parent) {
            above.directory = Some(parent);
        }
        Ok(frame.directory.map(|directory| (frame.name, directory)))
    }

    /// The directory above, where it isn't open any more. It must be the one we came from: with
    /// another one the walk would end above the root, and change what is there.
    fn parent(&self) -> Result<Option<OwnedFd>, FsGroupError> {
        let above = self.frames.len().checked_sub(2);
        let above = above.map(|index| &self.frames[index]);
        let Some(above) = above.filter(|frame| frame.directory.is_none()) else {
            return Ok(None);
        };
        let moved = || FsGroupError::Moved {
            path: self.path(None),
        };
        let parent = match touch::open_parent(self.top()?) {
            // Removed, or at the root of a mount.
            Err(Errno::NOENT | Errno::XDEV) => return Err(moved()),
            opened => opened.map_err(|errno| self.failed(None, ("openat2 ..", errno)))?,
        };
        let look =
            touch::look(&parent, c"").map_err(|errno| self.failed(None, ("statx ..", errno)))?;
        if look.identity == above.identity && self.is_of_this_mount(&look) {
            Ok(Some(parent))
        } else {
            Err(moved())
        }
    }

    /// The error for a failed call on the innermost directory, or on `name` in it.
    pub(super) fn failed(&self, name: Option<&CStr>, (call, errno): Failure) -> FsGroupError {
        let path = self.path(name);
        FsGroupError::Call { call, path, errno }
    }

    /// Relative to the root: of the innermost directory, or of `name` in it.
    pub(super) fn path(&self, name: Option<&CStr>) -> PathBuf {
        let names = self.frames.iter().map(|frame| frame.name.as_c_str());
        let names = names.chain(name);
        names
            .map(|name| OsStr::from_bytes(name.to_bytes()))
            .collect()
    }
}
