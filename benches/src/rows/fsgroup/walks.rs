//! kubelet's walk and runcrust's over one volume, in turns.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use runcrust_tests::tree::{Policy, set_volume_ownership};
use runcrust_tests::{Run, binary};

use super::volume::Volume;
use super::{Case, InitialState};

pub(super) struct Walks {
    volume: Volume,
    /// The group of the last walk.
    group: u32,
}

/// The result of runcrust's walk.
pub(super) struct WalkResult {
    pub(super) nanoseconds: f64,
    /// The peak memory.
    pub(super) kilobytes: f64,
}

impl Walks {
    /// Prepares a volume whose entries don't have the group of a walk yet.
    pub(super) fn new(volume: Volume) -> Self {
        let mut walks = Self {
            volume,
            group: 2000,
        };
        // After this walk, any case may be the first.
        walks.run_walk(false);
        walks
    }

    /// Runs kubelet's walk and returns the time in nanoseconds.
    pub(super) fn walk_as_kubelet(&mut self, case: &Case) -> f64 {
        self.prepare(case);
        let start = Instant::now();
        set_volume_ownership(self.volume.root(), self.group, Policy::Always);
        start.elapsed().as_nanos() as f64
    }

    pub(super) fn walk(&mut self, case: &Case) -> WalkResult {
        self.prepare(case);
        self.run_walk(case.tables)
    }

    fn run_walk(&mut self, tables: bool) -> WalkResult {
        let mut walk = Command::new(binary("fsgroup-walk"));
        walk.arg(self.group.to_string()).arg(self.volume.root());
        if tables {
            walk.arg(self.volume.device());
        }
        let run = Run::capture(&mut walk).success();
        let numbers = run.stdout.split_whitespace();
        let numbers: Vec<f64> = numbers.map(|it| it.parse().expect("a number")).collect();
        WalkResult {
            nanoseconds: numbers[0],
            kilobytes: numbers[1],
        }
    }

    fn prepare(&mut self, case: &Case) {
        if case.initial == InitialState::Created {
            reset_modes(self.volume.root());
        }
        if case.initial != InitialState::Right {
            self.group += 1;
        }
        self.volume.sync();
        if case.cold {
            self.volume.drop_caches();
        } else {
            warm_cache(self.volume.root());
        }
    }
}

/// Resets the modes of all entries to those that they were created with.
fn reset_modes(directory: &Path) {
    fs::set_permissions(directory, Permissions::from_mode(0o755)).expect("chmod");
    for entry in fs::read_dir(directory).expect("a directory") {
        let entry = entry.expect("an entry");
        let kind = entry.file_type().expect("a file type");
        if kind.is_dir() {
            reset_modes(&entry.path());
        } else if kind.is_file() {
            fs::set_permissions(entry.path(), Permissions::from_mode(0o644)).expect("chmod");
        }
    }
}

/// Reads all metadata into the cache.
fn warm_cache(directory: &Path) {
    for entry in fs::read_dir(directory).expect("a directory") {
        let entry = entry.expect("an entry");
        if entry.metadata().expect("an entry").is_dir() {
            warm_cache(&entry.path());
        }
    }
}
