//! What is there after pods have ended: nothing of theirs.

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::{Handler, holds_within, host, process, process_name, wait_until};

use crate::ground::Ground;

/// A daemon that keeps a hundred bytes of each call exceeds it in `make soak`; what its allocator
/// keeps after the first batch doesn't.
const GROWTH: u64 = 4 << 10;

/// What the daemon has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    kibibytes: u64,
    descriptors: usize,
}

/// What was found, in a line.
pub(crate) struct Census {
    ground: &'static str,
    memory: Memory,
    slab: u64,
}

impl fmt::Display for Census {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Memory {
            kibibytes,
            descriptors,
        } = self.memory;
        write!(
            formatter,
            "{}: nothing is left; crust_ops has {kibibytes} KiB and {descriptors} descriptors; the \
             kernel's slabs have {} MiB",
            self.ground,
            self.slab >> 10
        )
    }
}

impl Ground {
    /// Nothing is left of pods that have all ended.
    ///
    /// # Panics
    ///
    /// When something is.
    #[track_caller]
    pub(crate) fn take_census(&self) -> Census {
        let own = self.node.dir().path();
        assert_eq!(host::mounts_below(own), Vec::<PathBuf>::new());
        let none = "the last processes to end";
        wait_until(none, WAIT_TIMEOUT, || self.processes().is_empty());
        assert_eq!(cgroups(), Vec::<PathBuf>::new());
        let loops = loops(own);
        let mut files = loops.clone();
        files.dedup();
        assert_eq!(loops, files, "a loop device for each file");
        // What was half made the daemon removes, and soon.
        let mut left = Vec::new();
        let is_empty = holds_within(WAIT_TIMEOUT, || {
            left = left_on(self.node.handler());
            left.is_empty()
        });
        assert!(is_empty, "{left:?}");
        let memory = self.memory();
        let first = self.measured(memory);
        let allowed = first.kibibytes + GROWTH;
        assert!(
            memory.kibibytes <= allowed,
            "it grows: {first:?}, {memory:?}"
        );
        wait_until("the daemon to close its connections", WAIT_TIMEOUT, || {
            // It looks after them when it is called.
            let _ = self
                .ops
                .stats(&self.node.handler().target_path("nobody", "pv"));
            self.memory().descriptors <= first.descriptors
        });
        Census {
            ground: self.node.handler().delegate().name(),
            memory,
            slab: field("/proc/meminfo", "Slab:"),
        }
    }

    /// Processes that were given a path of this ground, but the daemon.
    fn processes(&self) -> Vec<i32> {
        let own = utf8(self.node.dir().path());
        let mut pids = process::with_command_line(|line| line.contains(own));
        pids.retain(|pid| *pid != self.ops.pid());
        pids
    }

    fn memory(&self) -> Memory {
        let process = format!("/proc/{}", self.ops.pid());
        Memory {
            kibibytes: field(&format!("{process}/status"), "RssAnon:"),
            descriptors: process::descriptors(self.ops.pid()),
        }
    }
}

/// Files and directories of volumes and their users, which locks of volumes are too.
pub(crate) fn left_on(handler: &Handler) -> Vec<PathBuf> {
    let mut left = Vec::new();
    below(&handler.crust_root(), &mut left);
    let state = handler.state_dir();
    below(&state, &mut left);
    // The state's own directories, and the locks of devices and of the whole node.
    left.retain(|path| path.parent() != Some(&state));
    left.retain(|path| !is_lasting_lock(path));
    left
}

/// The files below a directory that loop devices are on, gone ones too.
pub(crate) fn loops(directory: &Path) -> Vec<PathBuf> {
    let devices = fs::read_dir("/sys/block").expect("sysfs");
    let files = devices.filter_map(|device| {
        let file = device.ok()?.path().join("loop/backing_file");
        Some(PathBuf::from(fs::read_to_string(file).ok()?.trim_end()))
    });
    let mut files: Vec<_> = files.filter(|file| file.starts_with(directory)).collect();
    files.sort();
    files
}

fn is_lasting_lock(path: &Path) -> bool {
    let name = path.file_stem().and_then(OsStr::to_str).unwrap_or_default();
    let of_the_node = ["owners", "attach", "targets"].contains(&name) || name.contains(':');
    of_the_node && path.extension() == Some(OsStr::new("lock"))
}

/// All that is below a directory.
pub(crate) fn below(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        found.push(path.clone());
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            below(&path, found);
        }
    }
}

/// The cgroups of containers of this process's, in any hierarchy.
fn cgroups() -> Vec<PathBuf> {
    let own = format!("-{}-", process_name());
    let mut found = Vec::new();
    below(Path::new("/sys/fs/cgroup"), &mut found);
    let is_own = |path: &PathBuf| {
        path.file_name()
            .is_some_and(|name| name.to_string_lossy().contains(&own))
    };
    found.retain(is_own);
    found
}

/// The number in a line of a file of the kernel's.
pub(crate) fn field(file: &str, key: &str) -> u64 {
    let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{file}: {error}"));
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.unwrap_or_else(|| panic!("no {key} in {file}"))
}
