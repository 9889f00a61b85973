//! Checks that nothing is left after all pods have ended.

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::{Handler, holds_within, host, process, process_name, wait_until};

use crate::node::SoakNode;

/// Allowed growth of the daemon in KiB. After the first batch the daemon's allocator keeps less memory than this. In
/// `make soak` a leak of a hundred bytes for each call exceeds the limit.
const GROWTH: u64 = 4 << 10;

/// The resources of the daemon.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DaemonResources {
    kibibytes: u64,
    descriptors: usize,
}

/// The resources after a batch of pods. Its display is one line.
pub(crate) struct ResourceReport {
    soak_node: &'static str,
    memory: DaemonResources,
    slab: u64,
}

impl fmt::Display for ResourceReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DaemonResources {
            kibibytes,
            descriptors,
        } = self.memory;
        write!(
            formatter,
            "{}: nothing is left; crust_ops has {kibibytes} KiB and {descriptors} descriptors; the \
             kernel's slabs have {} MiB",
            self.soak_node,
            self.slab >> 10
        )
    }
}

impl SoakNode {
    /// Asserts that nothing is left of the pods, and that the daemon doesn't grow.
    ///
    /// # Panics
    ///
    /// If something is left.
    #[track_caller]
    pub(crate) fn assert_no_leftovers(&self) -> ResourceReport {
        let own = self.node.dir().path();
        assert_eq!(host::mounts_below(own), Vec::<PathBuf>::new());
        let description = "the last processes to end";
        wait_until(description, WAIT_TIMEOUT, || self.processes().is_empty());
        assert_eq!(cgroups(), Vec::<PathBuf>::new());
        let loop_device_files = loop_device_files(own);
        let mut files = loop_device_files.clone();
        files.dedup();
        assert_eq!(loop_device_files, files, "one loop device for each file");
        // The daemon removes incomplete files and entries soon.
        let mut left = Vec::new();
        let is_empty = holds_within(WAIT_TIMEOUT, || {
            left = leftovers_of(self.node.handler());
            left.is_empty()
        });
        assert!(is_empty, "{left:?}");
        let memory = self.memory();
        let first = self.first_memory(memory);
        let allowed = first.kibibytes + GROWTH;
        assert!(
            memory.kibibytes <= allowed,
            "the daemon grows: {first:?}, {memory:?}"
        );
        wait_until("the daemon to close its connections", WAIT_TIMEOUT, || {
            // The daemon closes old connections when it is called.
            let _ = self
                .ops
                .stats(&self.node.handler().target_path("nobody", "pv"));
            self.memory().descriptors <= first.descriptors
        });
        ResourceReport {
            soak_node: self.node.handler().delegate().name(),
            memory,
            slab: field("/proc/meminfo", "Slab:"),
        }
    }

    /// Returns the processes with a path of this node in their command lines, except for the daemon.
    fn processes(&self) -> Vec<i32> {
        let own = utf8(self.node.dir().path());
        let mut pids = process::with_command_line(|line| line.contains(own));
        pids.retain(|pid| *pid != self.ops.pid());
        pids
    }

    fn memory(&self) -> DaemonResources {
        let process = format!("/proc/{}", self.ops.pid());
        DaemonResources {
            kibibytes: field(&format!("{process}/status"), "RssAnon:"),
            descriptors: process::descriptors(self.ops.pid()),
        }
    }
}

/// Returns files and directories of volumes and their users, including the locks of volumes.
pub(crate) fn leftovers_of(handler: &Handler) -> Vec<PathBuf> {
    let mut left = Vec::new();
    collect_paths_below(&handler.crust_root(), &mut left);
    let state = handler.state_dir();
    collect_paths_below(&state, &mut left);
    // The top-level directories of the state directory, and the locks of devices and of the whole node, are permanent.
    left.retain(|path| path.parent() != Some(&state));
    left.retain(|path| !is_lasting_lock(path));
    left
}

/// Returns the files below a directory that loop devices are on, including unlinked ones.
pub(crate) fn loop_device_files(directory: &Path) -> Vec<PathBuf> {
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

/// Appends all paths below a directory to `found`.
pub(crate) fn collect_paths_below(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        found.push(path.clone());
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            collect_paths_below(&path, found);
        }
    }
}

/// Returns the cgroups of this process's containers in all hierarchies.
fn cgroups() -> Vec<PathBuf> {
    let own = format!("-{}-", process_name());
    let mut found = Vec::new();
    collect_paths_below(Path::new("/sys/fs/cgroup"), &mut found);
    let is_own = |path: &PathBuf| {
        path.file_name()
            .is_some_and(|name| name.to_string_lossy().contains(&own))
    };
    found.retain(is_own);
    found
}

/// Returns the number in the line of a kernel's file that starts with `key`.
pub(crate) fn field(file: &str, key: &str) -> u64 {
    let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{file}: {error}"));
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.unwrap_or_else(|| panic!("no {key} in {file}"))
}
