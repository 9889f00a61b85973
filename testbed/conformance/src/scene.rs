//! What a requirement is looked at with: a directory, volumes, pods and their containers.

mod cli;
mod container;
mod entry;
mod places;
mod pod;
mod volume;

use std::fs;
use std::path::{Path, PathBuf};

use runcrust_tests::{Bundle, TestDir, comes_true};

pub(crate) use self::cli::{Cli, answer, is_error};
pub(crate) use self::container::Container;
pub(crate) use self::entry::Entry;
pub(crate) use self::places::Places;
pub(crate) use self::pod::Pod;
pub(crate) use self::volume::Volume;
use crate::options::Suite;

/// One requirement's own: nothing in it is another's. Declare it first.
#[derive(Debug)]
pub(crate) struct Scene<'s> {
    suite: &'s Suite,
    dir: TestDir,
}

impl<'s> Scene<'s> {
    pub(crate) fn new(suite: &'s Suite) -> Self {
        Self {
            suite,
            dir: TestDir::new(),
        }
    }

    pub(crate) fn suite(&self) -> &'s Suite {
        self.suite
    }

    pub(crate) fn dir(&self) -> &TestDir {
        &self.dir
    }

    /// A device with an ext4 that has a mark on it.
    pub(crate) fn volume(&self) -> Volume {
        Volume::new(&self.dir, "ext4")
    }

    pub(crate) fn volume_of(&self, fstype: &'static str) -> Volume {
        Volume::new(&self.dir, fstype)
    }

    /// A pod of which nothing is there yet but kubelet's directory.
    pub(crate) fn pod(&self) -> Pod<'_> {
        Pod::new(self)
    }

    /// The bundle of a container without a pod.
    pub(crate) fn plain(&self) -> Bundle {
        Bundle::plain(&self.dir)
    }

    /// Creates a bundle's container and starts it.
    #[track_caller]
    pub(crate) fn run(&self, bundle: Bundle) -> Container {
        let container = Container::new(self.suite, &bundle.write());
        container.run();
        container
    }

    /// No container of the bundle's comes to be, and nothing of it; what the runtime says.
    #[track_caller]
    pub(crate) fn refuses(&self, bundle: Bundle) -> String {
        let container = Container::new(self.suite, &bundle.write());
        let run = container.create();
        assert!(
            !run.status.success(),
            "the container was created: {}",
            run.command
        );
        if let Some(state) = container.state() {
            panic!("create failed, and state knows the container: {state}");
        }
        run.stderr
    }

    /// Waits as long as the suite waits for anything.
    #[track_caller]
    pub(crate) fn wait(&self, what: &str, condition: impl FnMut() -> bool) {
        let limit = self.suite.limit;
        assert!(comes_true(limit, condition), "{what} not within {limit:?}");
    }
}

/// The files below a directory, or what isn't a directory itself; none where there is nothing.
pub(crate) fn files_below(at: &Path) -> Vec<PathBuf> {
    match fs::read_dir(at) {
        Ok(entries) => {
            let below = entries.flatten().map(|entry| entry.path());
            below.flat_map(|path| files_below(&path)).collect()
        }
        Err(_) if at.symlink_metadata().is_ok() => vec![at.to_owned()],
        Err(_) => Vec::new(),
    }
}

/// What was seen is what had to be.
#[track_caller]
pub(crate) fn expect<T: PartialEq + std::fmt::Debug>(what: &str, seen: &T, wanted: &T) {
    assert!(seen == wanted, "{what}: {seen:?}, expected {wanted:?}");
}
