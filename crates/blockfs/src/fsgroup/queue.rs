//! The queue of a walk's tasks. It makes no system calls.

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::batch::{EntryBatch, NameStack};
use super::directory::{Directory, OpenDirectory};

/// Maximum number of parents in the queue that are kept open. The innermost parents are kept open, and the others are
/// reopened by their paths.
const MAX_OPEN_PARENTS: usize = 24;
/// A size in bytes. Once the queued names have reached it, subdirectories are visited before further large directories
/// are read.
const MAX_QUEUED_NAMES: usize = 4 << 20;
/// Number of unread directories. Once so many are in the queue, no further subdirectory is entered, because unread
/// directories stay open.
const MAX_UNREAD_DIRECTORIES: usize = 8;

/// The queue of a walk. The walk is depth first, so that the queue stays short: it holds the unvisited subdirectories
/// of the directories on the path down.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Entries of a large directory, without its subdirectories.
    entries: Option<PendingEntries>,
    /// Whether a worker is reading entries of a large directory. There is one batch of them at a time, which limits the
    /// memory.
    is_reading: bool,
    /// Directories that haven't been read to the end: the root at first, and then large ones.
    unread_directories: Vec<OpenDirectory>,
    /// Unvisited subdirectories; those of the innermost directory are last.
    subdirectories: Vec<PendingSubdirectories>,
    /// Size of the names in `subdirectories` in bytes.
    names_size: usize,
}

#[derive(Debug)]
struct PendingEntries {
    directory: OpenDirectory,
    entries: EntryBatch,
}

/// The unvisited subdirectories of a directory. There is at least one.
#[derive(Debug)]
pub(super) struct PendingSubdirectories {
    pub(super) directory: Arc<Directory>,
    /// A descriptor of the directory; `None` after it was closed because the walk is deep below it.
    descriptor: Option<Arc<OwnedFd>>,
    names: NameStack,
}

#[derive(Debug)]
pub(super) enum Task {
    /// Handle these entries of a large directory. None of them was listed as a directory.
    HandleEntries(OpenDirectory, EntryBatch),
    /// Read more of the directory, and pass the entries to [`Queue::push_entries`].
    ReadDirectory(OpenDirectory),
    /// Enter the named subdirectory.
    Enter(OpenDirectory, CString),
    /// Reopen the directory, and put its subdirectories back with [`Queue::push`].
    Reopen(PendingSubdirectories),
}

/// The part of the queue that the next task comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TaskSource {
    Entries,
    UnreadDirectories,
    Subdirectories,
}

impl PendingSubdirectories {
    /// Creates a value for the subdirectories of `parent` with these names; `None` if there are no names.
    pub(super) fn new(parent: &OpenDirectory, names: NameStack) -> Option<Self> {
        (!names.is_empty()).then(|| Self {
            directory: Arc::clone(&parent.directory),
            descriptor: Some(Arc::clone(&parent.descriptor)),
            names,
        })
    }

    pub(super) fn reopened(self, descriptor: OwnedFd) -> Self {
        Self {
            descriptor: Some(Arc::new(descriptor)),
            ..self
        }
    }
}

impl Queue {
    pub(super) fn push_directory(&mut self, directory: OpenDirectory) {
        self.unread_directories.push(directory);
    }

    pub(super) fn push(&mut self, subdirectories: PendingSubdirectories) {
        self.names_size += subdirectories.names.size();
        self.subdirectories.push(subdirectories);
        if let Some(outer) = self.subdirectories.len().checked_sub(MAX_OPEN_PARENTS + 1) {
            self.subdirectories[outer].descriptor = None;
        }
    }

    /// Adds the entries that a worker has read for [`Task::ReadDirectory`].
    pub(super) fn push_entries(&mut self, directory: OpenDirectory, entries: EntryBatch) {
        self.is_reading = false;
        if !entries.is_drained() {
            self.entries = Some(PendingEntries { directory, entries });
        }
    }

    /// Returns true if [`Queue::take`] would return a task.
    pub(super) fn has_task(&self) -> bool {
        self.next_source().is_some()
    }

    pub(super) fn take(&mut self) -> Option<Task> {
        match self.next_source()? {
            TaskSource::Entries => self.take_entries(),
            TaskSource::UnreadDirectories => {
                let directory = self.unread_directories.pop()?;
                self.is_reading = true;
                Some(Task::ReadDirectory(directory))
            }
            TaskSource::Subdirectories => self.take_subdirectory(),
        }
    }

    /// Returns where the next task comes from. A large directory is read to its end before subdirectories are entered,
    /// so that few large directories stay open. This changes when too many names of subdirectories are queued.
    fn next_source(&self) -> Option<TaskSource> {
        let is_full = self.unread_directories.len() >= MAX_UNREAD_DIRECTORIES;
        let may_read =
            is_full || self.subdirectories.is_empty() || self.names_size < MAX_QUEUED_NAMES;
        if self.entries.is_some() {
            Some(TaskSource::Entries)
        } else if may_read && !self.is_reading && !self.unread_directories.is_empty() {
            Some(TaskSource::UnreadDirectories)
        } else if !is_full && !self.subdirectories.is_empty() {
            Some(TaskSource::Subdirectories)
        } else {
            None
        }
    }

    fn take_entries(&mut self) -> Option<Task> {
        let pending = self.entries.as_mut()?;
        let task = Task::HandleEntries(pending.directory.clone(), pending.entries.take_chunk()?);
        if pending.entries.is_drained() {
            self.entries = None;
        }
        Some(task)
    }

    fn take_subdirectory(&mut self) -> Option<Task> {
        let mut pending = self.subdirectories.pop()?;
        self.names_size -= pending.names.size();
        let Some(descriptor) = pending.descriptor.clone() else {
            return Some(Task::Reopen(pending));
        };
        let name = pending.names.pop()?;
        let directory = Arc::clone(&pending.directory);
        if !pending.names.is_empty() {
            self.names_size += pending.names.size();
            self.subdirectories.push(pending);
        }
        let parent = OpenDirectory {
            directory,
            descriptor,
        };
        Some(Task::Enter(parent, name))
    }

    #[cfg(test)]
    fn open_parents(&self) -> usize {
        let parents = self.subdirectories.iter();
        parents.filter(|parent| parent.descriptor.is_some()).count()
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;
    use crate::fsgroup::batch::ListingBuffer;

    fn directory() -> OpenDirectory {
        OpenDirectory {
            directory: Arc::new(Directory::root((0, 0, 0))),
            descriptor: Arc::new(File::open("/").expect("the directory opens").into()),
        }
    }

    fn subdirectories(names: &[&CStr]) -> PendingSubdirectories {
        let names = NameStack::first_to_last(names.iter().copied());
        PendingSubdirectories::new(&directory(), names).expect("there are names")
    }

    fn name(task: Option<Task>) -> CString {
        match task {
            Some(Task::Enter(_, name)) => name,
            other => panic!("{other:?}"),
        }
    }

    /// Ends the reading of a directory after [`Task::ReadDirectory`].
    fn end_reading(queue: &mut Queue) {
        queue.push_entries(directory(), EntryBatch::default());
    }

    #[test]
    fn innermost_subdirectories_come_first_in_the_order_of_names() {
        let mut queue = Queue::default();
        queue.push(subdirectories(&[c"a", c"b"]));
        assert_eq!(name(queue.take()).as_c_str(), c"a");
        queue.push(subdirectories(&[c"c", c"d"]));
        for expected in [c"c", c"d", c"b"] {
            assert!(queue.has_task());
            assert_eq!(name(queue.take()).as_c_str(), expected);
        }
        assert!(queue.take().is_none() && !queue.has_task());
        assert_eq!(queue.names_size, 0);
    }

    #[test]
    fn a_directory_without_subdirectories_is_not_queued() {
        assert!(PendingSubdirectories::new(&directory(), NameStack::default()).is_none());
    }

    #[test]
    fn a_large_directory_comes_first_until_many_names_are_queued() {
        let mut queue = Queue::default();
        queue.push(subdirectories(&[c"a"]));
        queue.push_directory(directory());
        assert!(matches!(queue.take(), Some(Task::ReadDirectory(_))));
        end_reading(&mut queue);

        let long = CString::new([b'x'; 255]).expect("a name");
        let many = vec![long.as_c_str(); MAX_QUEUED_NAMES / 256 + 1];
        queue.push(subdirectories(&many));
        queue.push_directory(directory());
        assert_eq!(name(queue.take()), long);
        for _ in 1..MAX_UNREAD_DIRECTORIES {
            queue.push_directory(directory());
        }
        assert!(
            matches!(queue.take(), Some(Task::ReadDirectory(_))),
            "too many directories are open"
        );
        assert_eq!(name(queue.take()), long);
    }

    #[test]
    fn one_large_directory_is_read_at_a_time() {
        let mut queue = Queue::default();
        queue.push_directory(directory());
        queue.push_directory(directory());
        assert!(matches!(queue.take(), Some(Task::ReadDirectory(_))));
        assert!(!queue.has_task() && queue.take().is_none());
        queue.push(subdirectories(&[c"a"]));
        assert_eq!(name(queue.take()).as_c_str(), c"a");
        end_reading(&mut queue);
        assert!(matches!(queue.take(), Some(Task::ReadDirectory(_))));
        end_reading(&mut queue);
        assert!(queue.take().is_none());
    }

    #[test]
    fn no_subdirectory_is_entered_while_many_others_are_unread() {
        let mut queue = Queue::default();
        for _ in 0..=MAX_UNREAD_DIRECTORIES {
            queue.push_directory(directory());
        }
        queue.push(subdirectories(&[c"a"]));
        assert!(matches!(queue.take(), Some(Task::ReadDirectory(_))));
        assert!(!queue.has_task(), "it could be one more large directory");
        end_reading(&mut queue);
        assert!(matches!(queue.take(), Some(Task::ReadDirectory(_))));
        assert_eq!(name(queue.take()).as_c_str(), c"a");
    }

    #[test]
    fn entries_of_a_large_directory_come_before_everything_else() {
        let root = tempfile::tempdir().expect("a temporary directory");
        File::create(root.path().join("file")).expect("a file");
        let (mut entries, mut buffer) = (EntryBatch::default(), ListingBuffer::new());
        let listed = File::open(root.path()).expect("the directory opens");
        entries
            .read(listed.as_fd(), &mut buffer)
            .expect("the directory is read");
        let mut queue = Queue::default();
        queue.push_directory(directory());
        queue.push(subdirectories(&[c"a"]));
        queue.push_entries(directory(), entries);
        let Some(Task::HandleEntries(_, chunk)) = queue.take() else {
            panic!("there are entries");
        };
        assert_eq!(chunk.non_directories().collect::<Vec<_>>(), [c"file"]);
        assert!(matches!(queue.take(), Some(Task::ReadDirectory(_))));
    }

    #[test]
    fn only_the_innermost_parents_stay_open() {
        let mut queue = Queue::default();
        for _ in 0..MAX_OPEN_PARENTS + 3 {
            queue.push(subdirectories(&[c"a", c"b"]));
            assert!(queue.open_parents() <= MAX_OPEN_PARENTS);
        }
        for _ in 0..2 * MAX_OPEN_PARENTS {
            name(queue.take());
        }
        let Some(Task::Reopen(pending)) = queue.take() else {
            panic!("it was closed");
        };
        queue.push(pending.reopened(File::open("/").expect("the directory opens").into()));
        assert_eq!(name(queue.take()).as_c_str(), c"a");
        assert_eq!(name(queue.take()).as_c_str(), c"b");
        assert!(matches!(queue.take(), Some(Task::Reopen(_))));
    }
}
