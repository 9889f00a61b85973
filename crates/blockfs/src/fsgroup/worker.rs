//! A worker of a walk. It takes a directory from the queue, handles the entries in it, and puts the subdirectories into
//! the queue for any worker.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::{Builder, Scope};

use rustix::io::Errno;

use super::batch::{EntryBatch, ListingBuffer, NameStack};
use super::change;
use super::directory::{Directory, OpenDirectory};
use super::entry::{self, EntryStat, FailedCall};
use super::error::FsGroupError;
use super::pool::{HaltReason, NextTask};
use super::progress::{EntryCounts, EntryOutcome};
use super::queue::{PendingSubdirectories, Task};
use super::walk::{ContinueCheck, Walk, call_error};
use crate::sys;

/// Maximum number of attempts to enter a directory that other processes keep replacing by something else.
const MAX_ATTEMPTS: usize = 16;

pub(super) struct Worker<'scope, 'env> {
    walk: &'env Walk,
    scope: &'scope Scope<'scope, 'env>,
    /// `None` for helpers: the callback is called on the caller's thread only.
    check_continue: Option<ContinueCheck<'env>>,
    buffer: ListingBuffer,
    batch: EntryBatch,
    /// Counts that this worker hasn't reported to the pool yet.
    counts: EntryCounts,
    /// Counts that all workers had reported when this worker took its task.
    reported: EntryCounts,
    /// Whether the last entry needed a change. Then the next one probably needs one too, and is opened before its
    /// attributes are read.
    expects_change: bool,
}

/// The result of handling an entry that wasn't listed as a directory.
enum EntryResult {
    Done,
    /// The entry is a directory, and must be entered.
    Directory,
}

impl<'scope, 'env> Worker<'scope, 'env> {
    pub(super) fn new(
        walk: &'env Walk,
        scope: &'scope Scope<'scope, 'env>,
        check_continue: Option<ContinueCheck<'env>>,
    ) -> Self {
        Self {
            walk,
            scope,
            check_continue,
            buffer: ListingBuffer::new(),
            batch: EntryBatch::default(),
            counts: EntryCounts::default(),
            reported: EntryCounts::default(),
            expects_change: false,
        }
    }

    /// Handles tasks until there are none left or the walk is halted.
    pub(super) fn run(mut self) {
        if let Err(reason) = self.run_tasks() {
            self.walk.pool.halt(reason, self.counts);
        }
    }

    fn run_tasks(&mut self) -> Result<(), HaltReason> {
        let pool = &self.walk.pool;
        let mut had_task = false;
        loop {
            let next = pool.next(had_task, &mut self.counts, self.check_continue.is_none());
            if self.check_continue.is_some() {
                self.reported = pool.counts();
            }
            had_task = matches!(next, NextTask::Task(_));
            match next {
                NextTask::Task(task) => {
                    self.start_helper_if_useful(0);
                    self.run_task(task)?;
                }
                NextTask::Wait => self.check_halted()?,
                NextTask::End => return Ok(()),
            }
        }
    }

    /// Starts a helper if there are queued tasks and no idle workers. `entries` is the number of entries that this
    /// worker is about to handle.
    fn start_helper_if_useful(&self, entries: usize) {
        let (walk, scope) = (self.walk, self.scope);
        if !walk.pool.should_start_helper(entries as u64) {
            return;
        }
        let helper = move || {
            // Without this call the caller's thread would share its fs attributes with the helper, and setns(2) into a
            // sandbox's mount namespace would fail.
            if sys::unshare_fs().is_ok() {
                Worker::new(walk, scope, None).run();
            }
        };
        let name = "fsgroup".to_owned();
        if Builder::new()
            .name(name)
            .spawn_scoped(scope, helper)
            .is_err()
        {
            walk.pool.stop_starting_helpers();
        }
    }

    fn run_task(&mut self, task: Task) -> Result<(), HaltReason> {
        match task {
            Task::HandleEntries(directory, entries) => self.handle_entries(&directory, &entries),
            Task::ReadDirectory(directory) => self.read_large_directory(directory),
            Task::Enter(parent, name) => self.enter(&parent, name),
            Task::Reopen(pending) => Ok(self.reopen(pending)?),
        }
    }

    /// Reopens a directory that was closed while the walk was below it.
    ///
    /// It must be the same directory, or the walk would change files outside the volume. If the directory was moved,
    /// another pass is needed.
    fn reopen(&self, pending: PendingSubdirectories) -> Result<(), FsGroupError> {
        let directory = Arc::clone(&pending.directory);
        let opened = match directory.reopen(&self.walk.root.descriptor) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => {
                self.walk.record_moved_directory(directory.path(None));
                return Ok(());
            }
            opened => opened.map_err(|errno| call_error(&directory, None, ("openat2", errno)))?,
        };
        let stat = entry::stat(&opened, c"");
        let stat = stat.map_err(|errno| call_error(&directory, None, ("statx", errno)))?;
        if stat.identity != directory.identity || !self.walk.is_on_this_mount(&stat) {
            self.walk.record_moved_directory(directory.path(None));
            return Ok(());
        }
        self.walk.pool.push(pending.reopened(opened));
        Ok(())
    }

    /// Enters `name` in `parent`, if it still is a directory.
    fn enter(&mut self, parent: &OpenDirectory, name: CString) -> Result<(), HaltReason> {
        for _ in 0..MAX_ATTEMPTS {
            match entry::open_directory(&parent.descriptor, &name) {
                Ok(directory) => return self.list_entered(parent, name, directory),
                Err(Errno::NOENT) => {
                    // A missing directory hides other entries, unlike a missing file: see `super::walk_tree`.
                    self.walk.record_missing_directory();
                    return Ok(());
                }
                Err(Errno::XDEV) => {
                    self.counts.other_mounts += 1;
                    return Ok(());
                }
                // It isn't a directory any more. (The error for a symbolic link is ELOOP.)
                Err(Errno::NOTDIR | Errno::LOOP) => match self.handle_entry(parent, &name)? {
                    EntryResult::Done => return Ok(()),
                    EntryResult::Directory => {}
                },
                Err(errno) => return Err(halt_error(parent, &name, ("openat2", errno))),
            }
        }
        self.walk
            .record_moved_directory(parent.directory.path(Some(&name)));
        Ok(())
    }

    fn list_entered(
        &mut self,
        parent: &OpenDirectory,
        name: CString,
        entered: OwnedFd,
    ) -> Result<(), HaltReason> {
        let stat = entry::stat(&entered, c"");
        let stat = stat.map_err(|errno| halt_error(parent, &name, ("statx", errno)))?;
        self.list(&OpenDirectory {
            directory: Arc::new(Directory::below(&parent.directory, name, stat.identity)),
            descriptor: Arc::new(entered),
        })
    }

    /// Lists a directory and handles its entries. Of a large directory, handles only the first entries, and leaves the
    /// rest to the queue.
    fn list(&mut self, open: &OpenDirectory) -> Result<(), HaltReason> {
        let mut batch = std::mem::take(&mut self.batch);
        let result = self.list_into(open, &mut batch);
        self.batch = batch;
        result
    }

    fn list_into(
        &mut self,
        open: &OpenDirectory,
        batch: &mut EntryBatch,
    ) -> Result<(), HaltReason> {
        loop {
            batch.clear();
            if !self.read(open, batch)? {
                return self.change_directory(open);
            }
            batch.sort();
            let is_large = batch.is_large();
            if is_large {
                self.walk.pool.push_directory(open.clone());
                self.start_helper_if_useful(batch.len());
            }
            self.push_subdirectories(open, batch.directories());
            self.handle_entries(open, batch)?;
            if is_large {
                return Ok(());
            }
        }
    }

    /// Reads more of a large directory, as much as may be in memory at once.
    fn read_large_directory(&mut self, open: OpenDirectory) -> Result<(), HaltReason> {
        let mut batch = EntryBatch::default();
        let mut has_more = true;
        while has_more && !batch.is_full() {
            self.check_halted()?;
            has_more = self.read(&open, &mut batch)?;
        }
        batch.sort();
        self.push_subdirectories(&open, batch.directories());
        if has_more {
            self.walk.pool.push_directory(open.clone());
        } else {
            self.change_directory(&open)?;
        }
        self.walk.pool.push_entries(open, batch);
        Ok(())
    }

    /// Adds the next entries of a directory to a batch. Returns false at the end of the directory.
    fn read(&mut self, open: &OpenDirectory, batch: &mut EntryBatch) -> Result<bool, FsGroupError> {
        let before = batch.names_size();
        let read = batch.read(open.descriptor.as_fd(), &mut self.buffer);
        let has_more =
            read.map_err(|errno| call_error(&open.directory, None, ("getdents64", errno)))?;
        self.walk
            .count_listed(&open.directory, batch.names_from(before))?;
        Ok(has_more)
    }

    /// Handles the entries of a batch that weren't listed as directories.
    fn handle_entries(
        &mut self,
        open: &OpenDirectory,
        batch: &EntryBatch,
    ) -> Result<(), HaltReason> {
        // The directories among these entries. There are some if the file system doesn't report types in listings.
        let mut directories = Vec::new();
        for name in batch.non_directories() {
            if matches!(self.handle_entry(open, name)?, EntryResult::Directory) {
                directories.push(name);
            }
        }
        self.push_subdirectories(open, NameStack::first_to_last(directories.into_iter()));
        Ok(())
    }

    fn push_subdirectories(&self, parent: &OpenDirectory, names: NameStack) {
        if let Some(pending) = PendingSubdirectories::new(parent, names) {
            self.walk.pool.push(pending);
        }
    }

    /// Changes `name` in a directory if needed, unless it is a directory.
    fn handle_entry(
        &mut self,
        parent: &OpenDirectory,
        name: &CStr,
    ) -> Result<EntryResult, HaltReason> {
        self.check_halted()?;
        if !self.expects_change {
            let stat = match entry::stat(&parent.descriptor, name) {
                Err(Errno::NOENT) => return Ok(EntryResult::Done),
                stat => stat.map_err(|errno| halt_error(parent, name, ("statx", errno)))?,
            };
            if let Some(result) = self.handle_unchanged(&stat) {
                return Ok(result);
            }
        }
        self.change_entry(parent, name)
    }

    /// Handles an entry that isn't changed here: an entry on another mount, a directory, or an entry that needs no
    /// change. Returns `None` for any other entry.
    fn handle_unchanged(&mut self, stat: &EntryStat) -> Option<EntryResult> {
        if !self.walk.is_on_this_mount(stat) {
            self.counts.other_mounts += 1;
            return Some(EntryResult::Done);
        }
        if stat.attributes.is_directory() {
            return Some(EntryResult::Directory);
        }
        self.expects_change = change::needed(&stat.attributes, self.walk.group).is_some();
        if self.expects_change {
            return None;
        }
        self.counts.count(EntryOutcome::Matches);
        Some(EntryResult::Done)
    }

    fn change_entry(
        &mut self,
        parent: &OpenDirectory,
        name: &CStr,
    ) -> Result<EntryResult, HaltReason> {
        let handle = match entry::open_handle(&parent.descriptor, name) {
            Err(Errno::NOENT) => return Ok(EntryResult::Done),
            Err(Errno::XDEV) => {
                self.counts.other_mounts += 1;
                return Ok(EntryResult::Done);
            }
            opened => opened.map_err(|errno| halt_error(parent, name, ("openat2", errno)))?,
        };
        // The attributes of the open file. Meanwhile the name may lead to another file.
        let read_stat = || {
            let stat = entry::stat(&handle, c"");
            stat.map_err(|errno| halt_error(parent, name, ("statx", errno)))
        };
        let mut stat = read_stat()?;
        let _guard;
        if stat.has_other_links && !stat.attributes.is_directory() {
            _guard = self.walk.lock_linked_file(&stat);
            stat = read_stat()?;
        }
        if let Some(result) = self.handle_unchanged(&stat) {
            return Ok(result);
        }
        let directory = &parent.directory;
        let outcome = self
            .walk
            .apply_group(handle.as_fd(), &stat, directory, Some(name));
        self.counts.count(outcome?);
        Ok(EntryResult::Done)
    }

    /// Changes a directory itself after all its entries have been listed. The root is changed at the end of the walk.
    fn change_directory(&mut self, open: &OpenDirectory) -> Result<(), HaltReason> {
        if open.directory.is_root() {
            return Ok(());
        }
        self.check_halted()?;
        let stat = entry::stat(&open.descriptor, c"");
        let stat = stat.map_err(|errno| call_error(&open.directory, None, ("statx", errno)))?;
        let (entry, directory) = (open.descriptor.as_fd(), &open.directory);
        self.counts
            .count(self.walk.apply_group(entry, &stat, directory, None)?);
        Ok(())
    }

    /// Fails if the walk was halted, or if the caller ends it.
    fn check_halted(&mut self) -> Result<(), HaltReason> {
        let stop = self.walk.pool.is_halted()
            || match &mut self.check_continue {
                Some(check_continue) => check_continue(&(self.reported + self.counts)).is_break(),
                None => false,
            };
        if stop {
            Err(HaltReason::Stopped)
        } else {
            Ok(())
        }
    }
}

fn halt_error(parent: &OpenDirectory, name: &CStr, failure: FailedCall) -> HaltReason {
    call_error(&parent.directory, Some(name), failure).into()
}
