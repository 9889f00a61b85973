//! Checks that nothing is left after all pods have ended.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use runcrust_tests::node::utf8;
use runcrust_tests::{cgroup, holds_within, host, process};

use super::node::{AgentNode, TIMEOUT};
use crate::leftovers::{collect_paths_below, field, leftovers_of, loop_device_files};

/// Allowed growth of the driver in KiB. The driver's allocator keeps less memory than this: some hundred KiB for each
/// thread that worked at the same time as others. A leak that stays below this limit with a hundred pods is found with
/// `make soak PODS=1000`.
const GROWTH: u64 = 12 << 10;

/// The processes that have to run, once each.
const DAEMONS: [&str; 4] = ["containerd", "crust-csi", "crust_ops", "crustlet"];

/// The driver's memory after the first pods, in KiB.
pub(super) type FirstMemory = OnceLock<u64>;

impl AgentNode {
    /// Asserts that nothing is left of the pods, and returns a line about the driver's memory.
    ///
    /// # Panics
    ///
    /// If something is left.
    #[track_caller]
    pub(super) fn assert_no_leftovers(&self) -> String {
        let testbed = &self.testbed;
        testbed.assert_nothing_left(&[]);
        let own = testbed.node.dir().path();
        assert_eq!(loop_device_files(own), Vec::<PathBuf>::new());
        let mut leftovers = Vec::new();
        let is_gone = holds_within(TIMEOUT, || {
            leftovers = self.leftovers();
            leftovers.is_empty()
        });
        assert!(is_gone, "{leftovers:?}");
        let mut running = Vec::new();
        let only_daemons = holds_within(TIMEOUT, || {
            running = self.processes();
            running == DAEMONS
        });
        assert!(only_daemons, "{running:?}");
        let driver = field(&format!("/proc/{}/status", testbed.csi.pid()), "RssAnon:");
        let first_memory = *self.first_memory.get_or_init(|| driver);
        assert!(
            driver <= first_memory + GROWTH,
            "crust-csi grows: {first_memory} KiB, {driver} KiB"
        );
        format!("nothing is left; crust-csi has {driver} KiB")
    }

    /// Returns mounts, files, directories and control groups of pods and volumes.
    fn leftovers(&self) -> Vec<PathBuf> {
        let testbed = &self.testbed;
        let dir = testbed.node.dir();
        let mut leftovers = host::mounts_below(dir.path());
        leftovers.extend(leftovers_of(testbed.node.handler()));
        leftovers.extend(testbed.csi.leftovers());
        let root = testbed.crustlet.root();
        for directory in [
            dir.join("logs"),
            root.join("pods"),
            root.join("plugins/kubernetes.io/csi")
                .join(runcrust_tests::csi::DRIVER),
            root.join("crustlet/claims"),
        ] {
            collect_paths_below(&directory, &mut leftovers);
        }
        let classes = testbed.crustlet.manifest("classes");
        let mut manifests = Vec::new();
        collect_paths_below(classes.parent().unwrap_or(&classes), &mut manifests);
        manifests.retain(|file| *file != classes);
        leftovers.extend(manifests);
        for group in cgroup::directories(testbed.containerd.cgroup()) {
            leftovers.extend(subdirectories(&group));
        }
        leftovers
    }

    /// Returns the names of the processes with a path of this testbed in their command lines.
    fn processes(&self) -> Vec<String> {
        let own = utf8(self.testbed.node.dir().path());
        let pids = process::with_command_line(|line| line.contains(own));
        let names = pids.into_iter().map(|pid| process::status(pid, "Name"));
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }
}

fn subdirectories(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let directories = entries.filter(|it| it.file_type().is_ok_and(|kind| kind.is_dir()));
    directories.map(|it| it.path()).collect()
}
