//! The queue of a walk's tasks. Pure.

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::batch::{Batch, Names};
use super::directory::{Directory, Open};

/// So many of the innermost directories whose subdirectories wait are kept open. Those above are
/// found again by their names.
const OPEN_DIRECTORIES: usize = 24;
/// So many bytes of names may wait before large directories do.
const NAMES: usize = 4 << 20;
/// But no more large directories than these, which all stay open.
const LISTINGS: usize = 8;

/// Depth first, so that little waits: of each directory on the way down the subdirectories that
/// haven't had their turn.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// A large directory's entries, except for its subdirectories.
    run: Option<Run>,
    /// Whether the next run is being read. There is one run at a time, which bounds the memory.
    reading: bool,
    /// Large directories, as far as they haven't been read.
    listings: Vec<Open>,
    /// The innermost last.
    waiting: Vec<Waiting>,
    /// Those in `waiting`, in bytes.
    names: usize,
}

#[derive(Debug)]
struct Run {
    directory: Open,
    entries: Batch,
}

/// Subdirectories that wait. There is at least one.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) directory: Arc<Directory>,
    /// A descriptor of that directory; `None` while the walk is deep below it.
    descriptor: Option<Arc<OwnedFd>>,
    names: Names,
}

#[derive(Debug)]
pub(super) enum Task {
    /// A part of a large directory's entries.
    Part(Open, Batch),
    /// To be read on and put back by [`Queue::push_run`].
    Read(Open),
    /// A subdirectory.
    Descend(Open, CString),
    /// To be put back with its directory open.
    OpenAgain(Waiting),
}

/// The place of the next task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum From {
    Run,
    Listings,
    Waiting,
}

impl Waiting {
    /// `None` where there is nothing that waits.
    pub(super) fn new(parent: &Open, names: Names) -> Option<Self> {
        (!names.is_empty()).then(|| Self {
            directory: Arc::clone(&parent.directory),
            descriptor: Some(Arc::clone(&parent.descriptor)),
            names,
        })
    }

    pub(super) fn opened(self, descriptor: OwnedFd) -> Self {
        Self {
            descriptor: Some(Arc::new(descriptor)),
            ..self
        }
    }
}

impl Queue {
    pub(super) fn push_listing(&mut self, directory: Open) {
        self.listings.push(directory);
    }

    pub(super) fn push(&mut self, waiting: Waiting) {
        self.names += waiting.names.size();
        self.waiting.push(waiting);
        if let Some(above) = self.waiting.len().checked_sub(OPEN_DIRECTORIES + 1) {
            self.waiting[above].descriptor = None;
        }
    }

    /// Adds the entries that [`Task::Read`] has read from a large directory.
    pub(super) fn push_run(&mut self, directory: Open, entries: Batch) {
        self.reading = false;
        if !entries.is_taken() {
            self.run = Some(Run { directory, entries });
        }
    }

    /// Whether [`Queue::take`] would find something.
    pub(super) fn has_task(&self) -> bool {
        self.next().is_some()
    }

    pub(super) fn take(&mut self) -> Option<Task> {
        match self.next()? {
            From::Run => self.take_part(),
            From::Listings => {
                let directory = self.listings.pop()?;
                self.reading = true;
                Some(Task::Read(directory))
            }
            From::Waiting => self.take_waiting(),
        }
    }

    /// A large directory is ended before others are begun, so that few stay open, until too many
    /// names of subdirectories wait.
    fn next(&self) -> Option<From> {
        let full = self.listings.len() >= LISTINGS;
        let listings = full || self.waiting.is_empty() || self.names < NAMES;
        if self.run.is_some() {
            Some(From::Run)
        } else if listings && !self.reading && !self.listings.is_empty() {
            Some(From::Listings)
        } else if !full && !self.waiting.is_empty() {
            Some(From::Waiting)
        } else {
            None
        }
    }

    fn take_part(&mut self) -> Option<Task> {
        let run = self.run.as_mut()?;
        let task = Task::Part(run.directory.clone(), run.entries.part()?);
        if run.entries.is_taken() {
            self.run = None;
        }
        Some(task)
    }

    fn take_waiting(&mut self) -> Option<Task> {
        let mut waiting = self.waiting.pop()?;
        self.names -= waiting.names.size();
        let Some(descriptor) = waiting.descriptor.clone() else {
            return Some(Task::OpenAgain(waiting));
        };
        let name = waiting.names.pop()?;
        let directory = Arc::clone(&waiting.directory);
        if !waiting.names.is_empty() {
            self.names += waiting.names.size();
            self.waiting.push(waiting);
        }
        let parent = Open {
            directory,
            descriptor,
        };
        Some(Task::Descend(parent, name))
    }

    #[cfg(test)]
    fn open(&self) -> usize {
        let waiting = self.waiting.iter();
        waiting.filter(|it| it.descriptor.is_some()).count()
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;
    use crate::fsgroup::batch::Buffer;

    fn directory() -> Open {
        Open {
            directory: Arc::new(Directory::root((0, 0, 0))),
            descriptor: Arc::new(File::open("/").expect("it opens").into()),
        }
    }

    fn waiting(names: &[&CStr]) -> Waiting {
        let names = Names::first_to_last(names.iter().copied());
        Waiting::new(&directory(), names).expect("there are names")
    }

    fn name(task: Option<Task>) -> CString {
        match task {
            Some(Task::Descend(_, name)) => name,
            other => panic!("{other:?}"),
        }
    }

    /// Ends the reading of a directory after [`Task::Read`].
    fn end_reading(queue: &mut Queue) {
        queue.push_run(directory(), Batch::default());
    }

    #[test]
    fn the_queue_is_innermost_first_then_in_order_of_names() {
        let mut queue = Queue::default();
        queue.push(waiting(&[c"a", c"b"]));
        assert_eq!(name(queue.take()).as_c_str(), c"a");
        queue.push(waiting(&[c"c", c"d"]));
        for expected in [c"c", c"d", c"b"] {
            assert!(queue.has_task());
            assert_eq!(name(queue.take()).as_c_str(), expected);
        }
        assert!(queue.take().is_none() && !queue.has_task());
        assert_eq!(queue.names, 0);
    }

    #[test]
    fn a_directory_without_subdirectories_has_none_that_wait() {
        assert!(Waiting::new(&directory(), Names::default()).is_none());
    }

    #[test]
    fn a_large_directory_goes_on_first_until_too_many_names_wait() {
        let mut queue = Queue::default();
        queue.push(waiting(&[c"a"]));
        queue.push_listing(directory());
        assert!(matches!(queue.take(), Some(Task::Read(_))));
        end_reading(&mut queue);

        let long = CString::new([b'x'; 255]).expect("a name");
        let many = vec![long.as_c_str(); NAMES / 256 + 1];
        queue.push(waiting(&many));
        queue.push_listing(directory());
        assert_eq!(name(queue.take()), long);
        for _ in 1..LISTINGS {
            queue.push_listing(directory());
        }
        assert!(
            matches!(queue.take(), Some(Task::Read(_))),
            "too many are open"
        );
        assert_eq!(name(queue.take()), long);
    }

    #[test]
    fn one_large_directory_is_read_at_a_time() {
        let mut queue = Queue::default();
        queue.push_listing(directory());
        queue.push_listing(directory());
        assert!(matches!(queue.take(), Some(Task::Read(_))));
        assert!(!queue.has_task() && queue.take().is_none());
        queue.push(waiting(&[c"a"]));
        assert_eq!(name(queue.take()).as_c_str(), c"a");
        end_reading(&mut queue);
        assert!(matches!(queue.take(), Some(Task::Read(_))));
        end_reading(&mut queue);
        assert!(queue.take().is_none());
    }

    #[test]
    fn a_thread_with_too_many_large_directories_waits() {
        let mut queue = Queue::default();
        for _ in 0..=LISTINGS {
            queue.push_listing(directory());
        }
        queue.push(waiting(&[c"a"]));
        assert!(matches!(queue.take(), Some(Task::Read(_))));
        assert!(!queue.has_task(), "it could be one more");
        end_reading(&mut queue);
        assert!(matches!(queue.take(), Some(Task::Read(_))));
        assert_eq!(name(queue.take()).as_c_str(), c"a");
    }

    #[test]
    fn the_entries_of_a_large_directory_come_before_all_else() {
        let root = tempfile::tempdir().expect("a temporary directory");
        File::create(root.path().join("file")).expect("a file");
        let (mut entries, mut buffer) = (Batch::default(), Buffer::new());
        let listed = File::open(root.path()).expect("it opens");
        entries
            .read(listed.as_fd(), &mut buffer)
            .expect("it is read");
        let mut queue = Queue::default();
        queue.push_listing(directory());
        queue.push(waiting(&[c"a"]));
        queue.push_run(directory(), entries);
        let Some(Task::Part(_, part)) = queue.take() else {
            panic!("there is one");
        };
        assert_eq!(part.others().collect::<Vec<_>>(), [c"file"]);
        assert!(matches!(queue.take(), Some(Task::Read(_))));
    }

    #[test]
    fn only_innermost_directories_stay_open() {
        let mut queue = Queue::default();
        for _ in 0..OPEN_DIRECTORIES + 3 {
            queue.push(waiting(&[c"a", c"b"]));
            assert!(queue.open() <= OPEN_DIRECTORIES);
        }
        for _ in 0..2 * OPEN_DIRECTORIES {
            name(queue.take());
        }
        let Some(Task::OpenAgain(waiting)) = queue.take() else {
            panic!("it was closed");
        };
        queue.push(waiting.opened(File::open("/").expect("it opens").into()));
        assert_eq!(name(queue.take()).as_c_str(), c"a");
        assert_eq!(name(queue.take()).as_c_str(), c"b");
        assert!(matches!(queue.take(), Some(Task::OpenAgain(_))));
    }
}
