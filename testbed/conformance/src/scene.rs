//! What a requirement is checked with: a directory, volumes, pods and their containers.

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

pub(crate) use self::cli::{Cli, answer, is_error};
pub(crate) use self::container::Container;
pub(crate) use self::entry::Entry;
pub(crate) use self::pod::Pod;
pub(crate) use self::volume::Volume;
use crate::suite::Suite;

/// The scene of one requirement, which shares nothing with another's. To be declared first, so that it is dropped last.
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

    /// Makes a device with an ext4 that has a mark on it.
    pub(crate) fn volume(&self) -> Volume {
        Volume::new(&self.dir, "ext4")
    }

    pub(crate) fn volume_of(&self, fstype: &'static str) -> Volume {
        Volume::new(&self.dir, fstype)
    }

    /// Makes a pod of which there is only kubelet's directory yet.
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

    /// Asserts that the runtime refuses the bundle's container and leaves nothing of it. Returns what it says.
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

    /// Waits for a condition, no longer than the suite's limit.
    #[track_caller]
    pub(crate) fn wait(&self, what: &str, condition: impl FnMut() -> bool) {
        let limit = self.suite.limit;
        assert!(
            holds_within(limit, condition),
            "{what} not within {limit:?}"
        );
    }
}

/// Returns the files below a path, or the path if it isn't a directory. Nothing if there is none.
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

/// Asserts that something is as it has to be.
#[track_caller]
pub(crate) fn expect<T: PartialEq + std::fmt::Debug>(what: &str, seen: &T, wanted: &T) {
    assert!(seen == wanted, "{what}: {seen:?}, expected {wanted:?}");
}

/// The machine's crust directory and kubelet directory. Those that were missing are removed at the end, unless
/// something was put there meanwhile.
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

/// Makes a directory with its parents. Returns the guards of those that were missing, to be dropped in their order.
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
