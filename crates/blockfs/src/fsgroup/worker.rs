//! One of those who walk: takes a directory, deals with what is in it, and leaves its subdirectories
//! to whoever is free.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::{Builder, Scope};

use rustix::io::Errno;

use super::batch::{Batch, Buffer, Names};
use super::change;
use super::directory::{Directory, Open};
use super::entry::{self, EntryStat, FailedCall};
use super::error::FsGroupError;
use super::pool::{Halt, NextTask};
use super::progress::{EntryCounts, EntryOutcome};
use super::queue::{Task, Waiting};
use super::walk::{Observe, Walk, failed};
use crate::sys;

/// So often an entry may turn out to be something else than at the last look.
const TRIES: usize = 16;

pub(super) struct Worker<'scope, 'env> {
    walk: &'env Walk,
    scope: &'scope Scope<'scope, 'env>,
    /// The caller's own worker has it, and no helper.
    observe: Option<Observe<'env>>,
    buffer: Buffer,
    batch: Batch,
    /// Those that the others haven't been told of.
    counts: EntryCounts,
    /// The counts that all workers had reported before.
    told: EntryCounts,
    /// The last entry wasn't right. Then the next one isn't either, as a rule, and is held before it
    /// is looked at.
    changing: bool,
}

/// An entry that isn't a directory, or wasn't listed as one.
enum Entry {
    Done,
    Directory,
}

impl<'scope, 'env> Worker<'scope, 'env> {
    pub(super) fn new(
        walk: &'env Walk,
        scope: &'scope Scope<'scope, 'env>,
        observe: Option<Observe<'env>>,
    ) -> Self {
        Self {
            walk,
            scope,
            observe,
            buffer: Buffer::new(),
            batch: Batch::default(),
            counts: EntryCounts::default(),
            told: EntryCounts::default(),
            changing: false,
        }
    }

    /// Until nobody has anything to do any more, or the walk is halted.
    pub(super) fn work(mut self) {
        if let Err(why) = self.tasks() {
            self.walk.pool.halt(why, self.counts);
        }
    }

    fn tasks(&mut self) -> Result<(), Halt> {
        let pool = &self.walk.pool;
        let mut had_task = false;
        loop {
            let turn = pool.next(had_task, &mut self.counts, self.observe.is_none());
            if self.observe.is_some() {
                self.told = pool.counts();
            }
            had_task = matches!(turn, NextTask::Task(_));
            match turn {
                NextTask::Task(task) => {
                    self.get_help(0);
                    self.task(task)?;
                }
                NextTask::Wait => self.go_on()?,
                NextTask::End => return Ok(()),
            }
        }
    }

    /// Starts a helper where there is work that nobody does.
    fn get_help(&self, entries: usize) {
        let (walk, scope) = (self.walk, self.scope);
        if !walk.pool.hires(entries as u64) {
            return;
        }
        let helper = move || {
            // Or the caller couldn't enter a sandbox when all is done.
            if sys::unshare_fs().is_ok() {
                Worker::new(walk, scope, None).work();
            }
        };
        let name = "fsgroup".to_owned();
        if Builder::new()
            .name(name)
            .spawn_scoped(scope, helper)
            .is_err()
        {
            walk.pool.hires_no_more();
        }
    }

    fn task(&mut self, task: Task) -> Result<(), Halt> {
        match task {
            Task::Part(directory, part) => self.part(&directory, &part),
            Task::Read(directory) => self.read_run(directory),
            Task::Descend(parent, name) => self.descend(&parent, name),
            Task::OpenAgain(waiting) => Ok(self.open_again(waiting)?),
        }
    }

    /// Reopens a directory that was closed while the walk was below it. It must be the same one: in
    /// another one the walk would change what it shouldn't. If it was moved, another pass is needed.
    fn open_again(&self, waiting: Waiting) -> Result<(), FsGroupError> {
        let directory = Arc::clone(&waiting.directory);
        let opened = match directory.open_again(&self.walk.root.descriptor) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => {
                self.walk.leave_behind(directory.path(None));
                return Ok(());
            }
            opened => opened.map_err(|errno| failed(&directory, None, ("openat2", errno)))?,
        };
        let look = entry::look(&opened, c"");
        let look = look.map_err(|errno| failed(&directory, None, ("statx", errno)))?;
        if look.identity != directory.identity || !self.walk.is_of_this_mount(&look) {
            self.walk.leave_behind(directory.path(None));
            return Ok(());
        }
        self.walk.pool.push(waiting.opened(opened));
        Ok(())
    }

    /// Enters `name` in `parent`, if it still is a directory.
    fn descend(&mut self, parent: &Open, name: CString) -> Result<(), Halt> {
        for _ in 0..TRIES {
            match entry::open_directory(&parent.descriptor, &name) {
                Ok(directory) => return self.enter(parent, name, directory),
                Err(Errno::NOENT) => {
                    // Unlike a file, which is nothing but itself: see `super::walked`.
                    self.walk.miss();
                    return Ok(());
                }
                Err(Errno::XDEV) => {
                    self.counts.other_mounts += 1;
                    return Ok(());
                }
                // Not a directory any more (a symbolic link is ELOOP).
                Err(Errno::NOTDIR | Errno::LOOP) => match self.entry(parent, &name)? {
                    Entry::Done => return Ok(()),
                    Entry::Directory => {}
                },
                Err(errno) => return Err(on(parent, &name, ("openat2", errno))),
            }
        }
        self.walk.leave_behind(parent.directory.path(Some(&name)));
        Ok(())
    }

    fn enter(&mut self, parent: &Open, name: CString, entered: OwnedFd) -> Result<(), Halt> {
        let look = entry::look(&entered, c"");
        let look = look.map_err(|errno| on(parent, &name, ("statx", errno)))?;
        self.list(&Open {
            directory: Arc::new(Directory::below(&parent.directory, name, look.identity)),
            descriptor: Arc::new(entered),
        })
    }

    /// Goes through a directory, or through the beginning of a large one: the rest is left to
    /// whoever is free.
    fn list(&mut self, open: &Open) -> Result<(), Halt> {
        let mut batch = std::mem::take(&mut self.batch);
        let result = self.list_into(open, &mut batch);
        self.batch = batch;
        result
    }

    fn list_into(&mut self, open: &Open, batch: &mut Batch) -> Result<(), Halt> {
        loop {
            batch.clear();
            if !self.read(open, batch)? {
                return self.finish(open);
            }
            batch.sort();
            let large = batch.is_large();
            if large {
                self.walk.pool.push_listing(open.clone());
                self.get_help(batch.len());
            }
            self.leave(open, batch.directories());
            self.part(open, batch)?;
            if large {
                return Ok(());
            }
        }
    }

    /// Reads on in a large directory, as much as may be in memory at once.
    fn read_run(&mut self, open: Open) -> Result<(), Halt> {
        let mut run = Batch::default();
        let mut more = true;
        while more && !run.is_full() {
            self.go_on()?;
            more = self.read(&open, &mut run)?;
        }
        run.sort();
        self.leave(&open, run.directories());
        if more {
            self.walk.pool.push_listing(open.clone());
        } else {
            self.finish(&open)?;
        }
        self.walk.pool.push_run(open, run);
        Ok(())
    }

    fn read(&mut self, open: &Open, batch: &mut Batch) -> Result<bool, FsGroupError> {
        let before = batch.names_size();
        let read = batch.read(open.descriptor.as_fd(), &mut self.buffer);
        let more = read.map_err(|errno| failed(&open.directory, None, ("getdents64", errno)))?;
        self.walk.list(&open.directory, batch.names_from(before))?;
        Ok(more)
    }

    /// Everything but the directories.
    fn part(&mut self, open: &Open, batch: &Batch) -> Result<(), Halt> {
        // Where the listing didn't tell.
        let mut directories = Vec::new();
        for name in batch.others() {
            if matches!(self.entry(open, name)?, Entry::Directory) {
                directories.push(name);
            }
        }
        self.leave(open, Names::first_to_last(directories.into_iter()));
        Ok(())
    }

    fn leave(&self, parent: &Open, directories: Names) {
        if let Some(waiting) = Waiting::new(parent, directories) {
            self.walk.pool.push(waiting);
        }
    }

    /// Deals with `name` in a directory, unless it is a directory.
    fn entry(&mut self, parent: &Open, name: &CStr) -> Result<Entry, Halt> {
        self.go_on()?;
        if !self.changing {
            let looked = match entry::look(&parent.descriptor, name) {
                Err(Errno::NOENT) => return Ok(Entry::Done),
                looked => looked.map_err(|errno| on(parent, name, ("statx", errno)))?,
            };
            if let Some(entry) = self.settled(&looked) {
                return Ok(entry);
            }
        }
        self.change_entry(parent, name)
    }

    /// Settles an entry by its attributes alone: one of another mount, a directory, or one that needs no change.
    fn settled(&mut self, look: &EntryStat) -> Option<Entry> {
        if !self.walk.is_of_this_mount(look) {
            self.counts.other_mounts += 1;
            return Some(Entry::Done);
        }
        if look.attributes.is_directory() {
            return Some(Entry::Directory);
        }
        self.changing = change::needed(&look.attributes, self.walk.group).is_some();
        if self.changing {
            return None;
        }
        self.counts.count(EntryOutcome::Right);
        Some(Entry::Done)
    }

    fn change_entry(&mut self, parent: &Open, name: &CStr) -> Result<Entry, Halt> {
        let handle = match entry::open_handle(&parent.descriptor, name) {
            Err(Errno::NOENT) => return Ok(Entry::Done),
            Err(Errno::XDEV) => {
                self.counts.other_mounts += 1;
                return Ok(Entry::Done);
            }
            opened => opened.map_err(|errno| on(parent, name, ("openat2", errno)))?,
        };
        // Of what is held, whatever the name meant before or means by now.
        let look = || {
            let look = entry::look(&handle, c"");
            look.map_err(|errno| on(parent, name, ("statx", errno)))
        };
        let mut looked = look()?;
        let _alone;
        if looked.linked && !looked.attributes.is_directory() {
            _alone = self.walk.alone_with(&looked);
            looked = look()?;
        }
        if let Some(entry) = self.settled(&looked) {
            return Ok(entry);
        }
        let directory = &parent.directory;
        let touched = self
            .walk
            .touch(handle.as_fd(), &looked, directory, Some(name));
        self.counts.count(touched?);
        Ok(Entry::Done)
    }

    /// A directory's own turn, except for the root's: that comes when all else is done.
    fn finish(&mut self, open: &Open) -> Result<(), Halt> {
        if open.directory.is_root() {
            return Ok(());
        }
        self.go_on()?;
        let look = entry::look(&open.descriptor, c"");
        let look = look.map_err(|errno| failed(&open.directory, None, ("statx", errno)))?;
        let (entry, directory) = (open.descriptor.as_fd(), &open.directory);
        self.counts
            .count(self.walk.touch(entry, &look, directory, None)?);
        Ok(())
    }

    fn go_on(&mut self) -> Result<(), Halt> {
        let stop = self.walk.pool.is_halted()
            || match &mut self.observe {
                Some(observe) => observe(&(self.told + self.counts)).is_break(),
                None => false,
            };
        if stop { Err(Halt::Stopped) } else { Ok(()) }
    }
}

fn on(parent: &Open, name: &CStr, failure: FailedCall) -> Halt {
    failed(&parent.directory, Some(name), failure).into()
}
