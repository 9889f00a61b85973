//! What is there after pods have ended: nothing of theirs.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use runcrust_tests::node::utf8;
use runcrust_tests::{cgroup, holds_within, host, process};

use super::site::{PATIENCE, Site};
use crate::census::{below, field, left_on, loops};

/// What a driver's allocator keeps after the first pods is less: some hundred KiB for each thread that has worked at
/// the same time as others. `make soak PODS=1000` finds what is less than that of a hundred.
const GROWTH: u64 = 12 << 10;

/// All that is to run by then, once each.
const DAEMONS: [&str; 4] = ["containerd", "crust-csi", "crust_ops", "crustlet"];

/// What the driver had after the first pods, in KiB.
pub(super) type First = OnceLock<u64>;

impl Site {
    /// Nothing is left of pods that have all ended; what the daemons have, in a line.
    ///
    /// # Panics
    ///
    /// When something is.
    #[track_caller]
    pub(super) fn take_census(&self) -> String {
        let bed = &self.bed;
        bed.assert_nothing_left(&[]);
        let own = bed.node.dir().path();
        assert_eq!(loops(own), Vec::<PathBuf>::new());
        let mut left = Vec::new();
        let is_gone = holds_within(PATIENCE, || {
            left = self.left();
            left.is_empty()
        });
        assert!(is_gone, "{left:?}");
        let mut running = Vec::new();
        let are_alone = holds_within(PATIENCE, || {
            running = self.processes();
            running == DAEMONS
        });
        assert!(are_alone, "{running:?}");
        let driver = field(&format!("/proc/{}/status", bed.csi.pid()), "RssAnon:");
        let first = *self.first.get_or_init(|| driver);
        assert!(
            driver <= first + GROWTH,
            "crust-csi grows: {first} KiB, {driver} KiB"
        );
        format!("nothing is left; crust-csi has {driver} KiB")
    }

    /// Mounts, files, directories and control groups of pods and volumes.
    fn left(&self) -> Vec<PathBuf> {
        let bed = &self.bed;
        let dir = bed.node.dir();
        let mut left = host::mounts_below(dir.path());
        left.extend(left_on(bed.node.handler()));
        left.extend(bed.csi.leftovers());
        let root = bed.crustlet.root();
        for directory in [
            dir.join("logs"),
            root.join("pods"),
            root.join("plugins/kubernetes.io/csi")
                .join(runcrust_tests::csi::DRIVER),
            root.join("crustlet/claims"),
        ] {
            below(&directory, &mut left);
        }
        let classes = bed.crustlet.manifest("classes");
        let mut manifests = Vec::new();
        below(classes.parent().unwrap_or(&classes), &mut manifests);
        manifests.retain(|file| *file != classes);
        left.extend(manifests);
        for group in cgroup::directories(bed.containerd.cgroup()) {
            left.extend(subdirectories(&group));
        }
        left
    }

    /// The programs that were given a path of this testbed, by their names.
    fn processes(&self) -> Vec<String> {
        let own = utf8(self.bed.node.dir().path());
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
