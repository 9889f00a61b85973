//! What is to be done next. Pure.

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::directory::{Directory, Open};
use super::names::Names;

/// So many of the innermost directories whose subdirectories wait are kept open. Those above are
/// found again by their names.
const OPEN_DIRECTORIES: usize = 24;
/// So many bytes of names may wait before listings do.
const NAMES: usize = 4 << 20;
/// But no more listings than these, which all stay open.
const LISTINGS: usize = 8;

/// Depth first, so that little waits: of each directory on the way down the subdirectories that
/// haven't had their turn.
#[derive(Debug, Default)]
pub(super) struct Queue {
    listings: Vec<Open>,
    /// The innermost last.
    waiting: Vec<Waiting>,
    /// Those in `waiting`, in bytes.
    names: usize,
}

/// Subdirectories that wait. There is at least one.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) directory: Arc<Directory>,
    /// Of that directory; `None` while the walk is deep below it.
    descriptor: Option<Arc<OwnedFd>>,
    names: Names,
}

#[derive(Debug)]
pub(super) enum Task {
    /// Going on with the listing of a directory.
    List(Open),
    /// A subdirectory.
    Descend(Open, CString),
    /// To be put back with its directory open.
    OpenAgain(Waiting),
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

    pub(super) fn is_empty(&self) -> bool {
        self.listings.is_empty() && self.waiting.is_empty()
    }

    pub(super) fn take(&mut self) -> Option<Task> {
        if self.lists_first()
            && let Some(directory) = self.listings.pop()
        {
            return Some(Task::List(directory));
        }
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

    /// A listing is ended before its subdirectories are entered, so that few stay open, until too
    /// many names wait.
    fn lists_first(&self) -> bool {
        self.waiting.is_empty() || self.names < NAMES || self.listings.len() >= LISTINGS
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

    use super::*;

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

    #[test]
    fn the_innermost_comes_first_and_of_one_directory_the_first_name() {
        let mut queue = Queue::default();
        queue.push(waiting(&[c"a", c"b"]));
        assert_eq!(name(queue.take()).as_c_str(), c"a");
        queue.push(waiting(&[c"c", c"d"]));
        for expected in [c"c", c"d", c"b"] {
            assert!(!queue.is_empty());
            assert_eq!(name(queue.take()).as_c_str(), expected);
        }
        assert!(queue.take().is_none() && queue.is_empty());
        assert_eq!(queue.names, 0);
    }

    #[test]
    fn a_directory_without_subdirectories_has_none_that_wait() {
        assert!(Waiting::new(&directory(), Names::default()).is_none());
    }

    #[test]
    fn a_listing_goes_on_first_until_too_many_names_wait() {
        let mut queue = Queue::default();
        queue.push(waiting(&[c"a"]));
        queue.push_listing(directory());
        assert!(matches!(queue.take(), Some(Task::List(_))));

        let long = CString::new([b'x'; 255]).expect("a name");
        let many = vec![long.as_c_str(); NAMES / 256];
        queue.push(waiting(&many));
        queue.push_listing(directory());
        assert_eq!(name(queue.take()), long);
        for _ in 1..LISTINGS {
            queue.push_listing(directory());
        }
        queue.push(waiting(&[&long]));
        assert!(
            matches!(queue.take(), Some(Task::List(_))),
            "too many are open"
        );
        assert_eq!(name(queue.take()), long);
    }

    #[test]
    fn without_anything_that_waits_listings_go_on() {
        let mut queue = Queue::default();
        queue.push_listing(directory());
        assert!(!queue.is_empty());
        assert!(matches!(queue.take(), Some(Task::List(_))));
        assert!(queue.take().is_none());
    }

    #[test]
    fn only_the_innermost_stay_open_and_the_others_are_opened_again() {
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
