//! The walk: an explicit stack of directories, children first.

use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{FileType, RawDir};
use rustix::io::Errno;

use super::change::{self, Standing};
use super::stack::Stack;
use super::touch::{self, Descriptors, Failure, Look, Touched};
use super::{Counts, FsGroupError};

/// So often an entry may turn out to be something else than at the last look.
const TRIES: usize = 16;
/// So many of the entries that can't be changed are named in the log.
const NAMED: u64 = 10;
/// For getdents64(2), in bytes.
const LISTING: usize = 64 * 1024;

pub(super) struct Walk<'a> {
    group: u32,
    descriptors: Descriptors,
    stack: Stack,
    counts: Counts,
    observe: &'a mut dyn FnMut(&Counts) -> ControlFlow<()>,
    listing: Vec<u8>,
}

/// What an entry that isn't a directory, or not seen as one, turned out to be.
enum Entry {
    Done,
    Directory,
}

impl<'a> Walk<'a> {
    pub(super) fn new(
        root: BorrowedFd<'_>,
        group: u32,
        observe: &'a mut dyn FnMut(&Counts) -> ControlFlow<()>,
    ) -> Result<Self, FsGroupError> {
        let failed = |(call, errno): Failure| FsGroupError::Call {
            call,
            path: PathBuf::new(),
            errno,
        };
        let descriptors = Descriptors::open().map_err(failed)?;
        // The caller's may be O_PATH, and listing moves a shared offset.
        let root = touch::open_directory(root, c".").map_err(|errno| failed(("openat2", errno)))?;
        let look = touch::look(&root, c"").map_err(|errno| failed(("statx", errno)))?;
        Ok(Self {
            group,
            descriptors,
            stack: Stack::new(root, &look),
            counts: Counts::default(),
            observe,
            listing: Vec::with_capacity(LISTING),
        })
    }

    /// How the root stands. To be asked before [`Walk::run`].
    pub(super) fn root_standing(&self) -> Result<Standing, FsGroupError> {
        let look = touch::look(self.top()?, c"");
        look.map(|look| look.standing)
            .map_err(|errno| self.failed(None, ("statx", errno)))
    }

    pub(super) fn run(mut self) -> Result<Counts, FsGroupError> {
        self.list()?;
        while !self.stack.is_empty() {
            match self.stack.next_directory() {
                Some(name) => self.descend(name)?,
                None => self.finish()?,
            }
        }
        Ok(self.counts)
    }

    /// Enters `name` in the innermost directory, if it still is a directory.
    fn descend(&mut self, name: CString) -> Result<(), FsGroupError> {
        for _ in 0..TRIES {
            match touch::open_directory(self.top()?, &name) {
                Ok(directory) => return self.enter(name, directory),
                Err(Errno::NOENT) => return Ok(()),
                Err(Errno::XDEV) => {
                    self.counts.other_mounts += 1;
                    return Ok(());
                }
                // Not a directory any more (a symbolic link is ELOOP).
                Err(Errno::NOTDIR | Errno::LOOP) => match self.entry(&name)? {
                    Entry::Done => return Ok(()),
                    Entry::Directory => {}
                },
                Err(errno) => return Err(self.failed(Some(&name), ("openat2", errno))),
            }
        }
        let path = self.stack.path(Some(&name));
        Err(FsGroupError::Restless { path })
    }

    fn enter(&mut self, name: CString, directory: OwnedFd) -> Result<(), FsGroupError> {
        let look = match touch::look(&directory, c"") {
            Ok(look) => look,
            Err(errno) => return Err(self.failed(Some(&name), ("statx", errno))),
        };
        self.stack.push(name, directory, &look);
        self.list()
    }

    /// Goes through the innermost directory: directories are noted, all else is dealt with.
    fn list(&mut self) -> Result<(), FsGroupError> {
        let directory = self.top()?.try_clone_to_owned();
        let directory = directory.map_err(|error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::MFILE);
            self.failed(None, ("dup", errno))
        })?;
        let mut listing = std::mem::take(&mut self.listing);
        let result = self.list_into(&directory, listing.spare_capacity_mut());
        self.listing = listing;
        self.stack.set_directories(result?);
        Ok(())
    }

    fn list_into(
        &mut self,
        directory: &OwnedFd,
        buffer: &mut [MaybeUninit<u8>],
    ) -> Result<Vec<CString>, FsGroupError> {
        let mut directories = Vec::new();
        let mut entries = RawDir::new(directory, buffer);
        while let Some(entry) = entries.next() {
            let entry = match entry {
                Ok(entry) => entry,
                // It was removed since it was opened.
                Err(Errno::NOENT) => break,
                Err(errno) => return Err(self.failed(None, ("getdents64", errno))),
            };
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            // The type spares directories a look; Unknown is for file systems that don't tell.
            let is_directory = entry.file_type() == FileType::Directory
                || matches!(self.entry(name)?, Entry::Directory);
            if is_directory {
                directories.push(name.to_owned());
            }
        }
        Ok(directories)
    }

    /// Deals with `name` in the innermost directory, unless it is a directory.
    fn entry(&mut self, name: &CStr) -> Result<Entry, FsGroupError> {
        self.go_on()?;
        let looked = match touch::look(self.top()?, name) {
            Err(Errno::NOENT) => return Ok(Entry::Done),
            looked => looked.map_err(|errno| self.failed(Some(name), ("statx", errno)))?,
        };
        if !self.stack.is_of_this_mount(&looked) {
            self.counts.other_mounts += 1;
            return Ok(Entry::Done);
        }
        if looked.standing.kind == FileType::Directory {
            return Ok(Entry::Directory);
        }
        if change::needed(&looked.standing, self.group).is_none() {
            self.count(Touched::Right);
            return Ok(Entry::Done);
        }
        self.change_entry(name)
    }

    fn change_entry(&mut self, name: &CStr) -> Result<Entry, FsGroupError> {
        let handle = match touch::open_handle(self.top()?, name) {
            Err(Errno::NOENT) => return Ok(Entry::Done),
            Err(Errno::XDEV) => {
                self.counts.other_mounts += 1;
                return Ok(Entry::Done);
            }
            opened => opened.map_err(|errno| self.failed(Some(name), ("openat2", errno)))?,
        };
        // Once more, of what is held: the name may mean something else by now.
        let look =
            touch::look(&handle, c"").map_err(|errno| self.failed(Some(name), ("statx", errno)))?;
        if look.standing.kind == FileType::Directory {
            return Ok(Entry::Directory);
        }
        self.touch(handle.as_fd(), &look, Some(name))?;
        Ok(Entry::Done)
    }

    /// The innermost directory's own turn, and back to the one above.
    fn finish(&mut self) -> Result<(), FsGroupError> {
        self.go_on()?;
        let look =
            touch::look(self.top()?, c"").map_err(|errno| self.failed(None, ("statx", errno)))?;
        let Some((name, directory)) = self.stack.pop()? else {
            return Ok(());
        };
        let name = (!name.is_empty()).then_some(name.as_c_str());
        self.touch(directory.as_fd(), &look, name)
    }

    fn touch(
        &mut self,
        entry: BorrowedFd<'_>,
        look: &Look,
        name: Option<&CStr>,
    ) -> Result<(), FsGroupError> {
        let touched = match self.descriptors.touch(entry, look, self.group) {
            // A snapshot on a volume that can be written to, where kubelet logs and goes on. If all
            // of the volume became read-only meanwhile, the root fails at last.
            Err((_, Errno::ROFS)) if self.stack.is_in_a_subvolume(look) => Touched::ReadOnly,
            touched => touched.map_err(|failure| self.failed(name, failure))?,
        };
        if matches!(touched, Touched::Immutable | Touched::ReadOnly) {
            self.tell_what_stays(touched, name);
        }
        self.count(touched);
        Ok(())
    }

    /// The first few by name: an operator who wonders about the sum wants one to look at.
    fn tell_what_stays(&self, touched: Touched, name: Option<&CStr>) {
        let Counts {
            immutable,
            read_only,
            ..
        } = self.counts;
        if immutable + read_only < NAMED {
            let (path, group) = (self.stack.path(name), self.group);
            tracing::warn!(?path, group, why = ?touched, "fsGroup: an entry stays as it is");
        }
    }

    fn count(&mut self, touched: Touched) {
        self.counts.entries += 1;
        match touched {
            Touched::Right => {}
            Touched::Changed => self.counts.changed += 1,
            Touched::Immutable => self.counts.immutable += 1,
            Touched::ReadOnly => self.counts.read_only += 1,
        }
    }

    fn go_on(&mut self) -> Result<(), FsGroupError> {
        match (self.observe)(&self.counts) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(FsGroupError::Stopped {
                group: self.group,
                counts: self.counts,
            }),
        }
    }

    fn top(&self) -> Result<BorrowedFd<'_>, FsGroupError> {
        self.stack.top()
    }

    fn failed(&self, name: Option<&CStr>, failure: Failure) -> FsGroupError {
        self.stack.failed(name, failure)
    }
}
