//! The two walks over one volume, in turns.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use runcrust_tests::tree::{Policy, set_volume_ownership};
use runcrust_tests::{Run, binary};

use super::volume::Volume;
use super::{Case, Starts};

pub(super) struct Walks {
    volume: Volume,
    /// Of the last walk.
    group: u32,
}

/// What a walk of ours came to.
pub(super) struct Ours {
    pub(super) nanoseconds: f64,
    /// The most memory it had.
    pub(super) kilobytes: f64,
}

impl Walks {
    /// Over a volume whose entries have no group of a walk yet.
    pub(super) fn of(volume: Volume) -> Self {
        let mut walks = Self {
            volume,
            group: 2000,
        };
        // So that the first case may be any.
        walks.walk_ours(false);
        walks
    }

    /// In nanoseconds.
    pub(super) fn kubelets(&mut self, case: &Case) -> f64 {
        self.prepare(case);
        let start = Instant::now();
        set_volume_ownership(self.volume.root(), self.group, Policy::Always);
        start.elapsed().as_nanos() as f64
    }

    pub(super) fn ours(&mut self, case: &Case) -> Ours {
        self.prepare(case);
        self.walk_ours(case.tables)
    }

    fn walk_ours(&mut self, tables: bool) -> Ours {
        let mut walk = Command::new(binary("fsgroup-walk"));
        walk.arg(self.group.to_string()).arg(self.volume.root());
        if tables {
            walk.arg(self.volume.device());
        }
        let run = Run::of(&mut walk).success();
        let numbers = run.stdout.split_whitespace();
        let numbers: Vec<f64> = numbers.map(|it| it.parse().expect("a number")).collect();
        Ours {
            nanoseconds: numbers[0],
            kilobytes: numbers[1],
        }
    }

    fn prepare(&mut self, case: &Case) {
        if case.starts == Starts::Made {
            as_made(self.volume.root());
        }
        if case.starts != Starts::Right {
            self.group += 1;
        }
        self.volume.sync();
        if case.cold {
            self.volume.cool();
        } else {
            look(self.volume.root());
        }
    }
}

/// Gives everything the modes that it had at first.
fn as_made(directory: &Path) {
    fs::set_permissions(directory, Permissions::from_mode(0o755)).expect("chmod");
    for entry in fs::read_dir(directory).expect("a directory") {
        let entry = entry.expect("an entry");
        let kind = entry.file_type().expect("its kind");
        if kind.is_dir() {
            as_made(&entry.path());
        } else if kind.is_file() {
            fs::set_permissions(entry.path(), Permissions::from_mode(0o644)).expect("chmod");
        }
    }
}

/// Has everything in memory.
fn look(directory: &Path) {
    for entry in fs::read_dir(directory).expect("a directory") {
        let entry = entry.expect("an entry");
        if entry.metadata().expect("an entry").is_dir() {
            look(&entry.path());
        }
    }
}
