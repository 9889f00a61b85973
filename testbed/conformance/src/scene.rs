//! The scene in which a requirement is checked: a directory, volumes, pods and their containers.

mod cli;
mod container;
mod entry;
mod pod;
mod volume;

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use runcrust_tests::cleanup::Cleanup;
use runcrust_tests::{Bundle, TestDir, holds_within};

pub(crate) use self::cli::{Cli, assert_error, json_output};
pub(crate) use self::container::Container;
pub(crate) use self::entry::Entry;
pub(crate) use self::pod::Pod;
pub(crate) use self::volume::Volume;
use crate::suite::Suite;

/// The scene of one requirement. It shares nothing with the scenes of others. Declare it first, so that it is dropped
/// last.
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

    /// Creates a device with an ext4 that has a marker file.
    pub(crate) fn volume(&self) -> Volume {
        Volume::new(&self.dir, "ext4")
    }

    pub(crate) fn volume_with_fstype(&self, fstype: &'static str) -> Volume {
        Volume::new(&self.dir, fstype)
    }

    /// Creates a pod that has nothing but kubelet's directory.
    pub(crate) fn pod(&self) -> Pod<'_> {
        Pod::new(self)
    }

    /// Returns the bundle of a container without a pod.
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

    /// Asserts that the runtime refuses to create the bundle's container, and that the container does not exist then.
    /// Returns standard error.
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
            panic!("create failed, but state reports the container: {state}");
        }
        run.stderr
    }

    /// Waits until a condition holds, at most for the suite's timeout.
    #[track_caller]
    pub(crate) fn wait(&self, what: &str, condition: impl FnMut() -> bool) {
        let timeout = self.suite.timeout;
        assert!(
            holds_within(timeout, condition),
            "no {what} within {timeout:?}"
        );
    }
}

/// Returns all files below a directory, or the path itself if it is another kind of file. Empty if nothing exists.
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

/// Asserts that a value is the expected one.
#[track_caller]
pub(crate) fn expect<T: PartialEq + std::fmt::Debug>(what: &str, seen: &T, expected: &T) {
    assert!(seen == expected, "{what}: {seen:?}, expected {expected:?}");
}

/// The machine's crust directory and kubelet directory. If they were missing they are removed at the end, unless they
/// contain something by then.
#[derive(Debug)]
#[must_use]
pub(crate) struct SharedDirectories {
    _made: Vec<Cleanup>,
}

impl SharedDirectories {
    pub(crate) fn prepare(suite: &Suite) -> Self {
        let kubelet = suite.kubelet_dir.join("pods");
        let mut made = make(&suite.crust_root, 0o700);
        made.extend(make(&kubelet, 0o755));
        Self { _made: made }
    }
}

/// Creates a directory and its parents. Returns guards that remove the created ones, deepest first.
fn make(directory: &Path, mode: u32) -> Vec<Cleanup> {
    let ancestors = directory.ancestors().map(Path::to_owned);
    let missing: Vec<PathBuf> = ancestors.take_while(|at| !at.exists()).collect();
    let mut guards = Vec::new();
    for at in missing.into_iter().rev() {
        let mode = if at == directory { mode } else { 0o755 };
        DirBuilder::new()
            .mode(mode)
            .recursive(true)
            .create(&at)
            .unwrap_or_else(|error| panic!("mkdir {}: {error}", at.display()));
        guards.push(Cleanup::register(move || {
            let _ = fs::remove_dir(&at);
            Vec::new()
        }));
    }
    guards.reverse();
    guards
}
