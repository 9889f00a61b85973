//! Many containers of a pod created at the same time, before the volume is mounted.

use std::cell::Cell;
use std::fs;
use std::process::Command;

use runcrust_tests::fault_injection::traced;
use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::tree::create_entries;
use runcrust_tests::volume::with_mounted;
use runcrust_tests::{Node, POD, on_each_delegate, wait_until};

use super::{create_at_once, end};

const CONTAINERS: usize = 20;

/// The number of directories in the volume, and of files in each.
const DIRECTORIES: usize = 4;
const FILES: usize = 25;

/// The number of files that fsGroup is applied to, including the root and `lost+found`.
const ENTRIES: usize = DIRECTORIES * (1 + FILES) + 2;

on_each_delegate! {
    fn concurrent_creates_share_one_superblock_and_walk(delegate: Delegate) {
        let node = Node::with(delegate, "sandbox = \"always\"");
        let device = node.ext4();
        with_mounted(device.path(), |root| create_entries(root, DIRECTORIES, FILES, FILES));
        let sandbox = node.sandbox(POD);
        let target = node.stage(POD, "pv-1", &device, &["--fs-group", "4242"]);
        assert_eq!(device.mounts_of(sandbox.pid()), <[String; 0]>::default());
        let bundles = [(); CONTAINERS].map(|()| {
            let bundle = node.app_bundle(&sandbox).bind(&target, "/data", &[]);
            let script = format!("touch /data/{}; exec sleep 2147483647", bundle.id());
            bundle.script(&script).write()
        });
        let (traces, number) = (node.dir().subdir("traces"), Cell::new(0));
        let trace = |create: Command| {
            number.set(number.get() + 1);
            traced(&create, "fsopen,fchownat", &traces.join(number.get().to_string()))
        };
        let containers = create_at_once(&node, bundles, trace);

        // Returns, for each create that made matching calls, the number of these calls.
        let calls = |call: &str, word: &str| {
            let traces = fs::read_dir(&traces).unwrap();
            let made = traces.map(|trace| {
                let text = fs::read_to_string(trace.unwrap().path()).unwrap();
                text.lines().filter(|line| line.starts_with(call) && line.contains(word)).count()
            });
            let mut made: Vec<usize> = made.filter(|calls| *calls > 0).collect();
            made.sort_unstable();
            made
        };
        assert_eq!(calls("fsopen(", "\"tmpfs\"").len(), CONTAINERS, "not all creates were traced");
        assert_eq!(calls("fsopen(", "\"ext4\""), [1]);
        // Counts only runcrust's calls, which use a descriptor. runc makes one call of its own, with a path.
        assert_eq!(calls("fchownat(", "AT_EMPTY_PATH"), [ENTRIES]);
        let mounts = device.mounts_of(sandbox.pid());
        assert_eq!(mounts.len(), 1, "{mounts:?}");

        let script = "stat -c '%d %g' /data; ls /data | grep -c app-";
        let seen = containers[0].sh("stat -c '%d' /data");
        let expected = format!("{seen} 4242\n{CONTAINERS}");
        wait_until("all to have written", WAIT_TIMEOUT, || containers[0].sh(script) == expected);
        for container in &containers {
            assert_eq!(container.sh(script), expected, "not the same file system, or files are missing");
        }
        end(containers);
        end([sandbox]);
        node.unstage_all(&[&target]);
    }
}
