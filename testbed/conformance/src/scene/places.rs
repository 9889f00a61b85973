//! The directories that are the machine's, not a requirement's.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use runcrust_tests::cleanup::Cleanup;

use crate::options::Suite;

/// The crust directory and kubelet's are there; those that weren't go again, where nobody else has
/// put anything there meanwhile.
#[derive(Debug)]
#[must_use]
pub(crate) struct Places {
    _made: Vec<Cleanup>,
}

impl Places {
    pub(crate) fn prepare(suite: &Suite) -> Self {
        let kubelet = suite.kubelet_dir.join("pods");
        let mut made = make(&suite.crust_root, 0o700);
        made.extend(make(&kubelet, 0o755));
        Self { _made: made }
    }
}

/// A directory with its parents; the guards of those that were missing, to be dropped in their order.
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
