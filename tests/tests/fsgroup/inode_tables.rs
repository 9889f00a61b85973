//! A pod starts without a walk if the inode tables show that all files are right.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use runcrust_tests::container::end;
use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::tree::create_entries;
use runcrust_tests::volume::with_mounted;
use runcrust_tests::{Node, POD, host, on_each_delegate};

use crate::scene::{ALWAYS, GROUP, OTHER_POD};

const DIRECTORIES: usize = 20;
const FILES: usize = 50;
const THIRD_POD: &str = "77777777-8888-7777-6666-555555555555";

/// Returns the outcome in the last line of the log about fsGroup.
fn outcome(node: &Node) -> String {
    let log = node.log();
    let mut lines = log
        .lines()
        .filter(|line| line.contains("fsGroup was applied"));
    let last = lines.next_back().expect("a line");
    last.split_once("outcome=")
        .expect("an outcome")
        .1
        .to_owned()
}

on_each_delegate! {
    fn a_walk_by_inode_tables_changes_only_the_wrong_file(delegate: Delegate) {
        for (fstype, own) in [("ext4", 2), ("xfs", 1)] {
            let node = Node::logging(delegate);
            let device = node.formatted(fstype);
            with_mounted(device.path(), |root| create_entries(root, DIRECTORIES, FILES, FILES));
            let start = |pod| {
                let target = node.stage(pod, "pv-1", &device, &ALWAYS);
                let sandbox = node.sandbox(pod);
                let app = node.app(&sandbox, &target, "/data");
                let file = app.sh("stat -c '%g %a' /data/7/7");
                end([app, sandbox]);
                device.wait_until_free(WAIT_TIMEOUT);
                let _ = node.unstage(&target).success();
                (outcome(&node), file)
            };
            // `own` counts the root, and in an ext4 also lost+found.
            let entries = DIRECTORIES * (1 + FILES) + own;
            let right = format!("{GROUP} 664");

            let (outcome, file) = start(POD);
            let walked = format!("{entries} entries checked, {entries} changed, in ");
            assert!(outcome.starts_with(&walked), "{fstype}: {outcome}");
            assert_eq!(file, right);

            let (outcome, file) = start(OTHER_POD);
            let expected = if fstype == "xfs" && host::kernel() < (6, 6) {
                // The inode tables of an xfs are not read before Linux 6.6.
                format!("{entries} entries checked, 0 changed, in ")
            } else {
                format!("all {entries} inodes already have the group and mode, in ")
            };
            assert!(outcome.starts_with(&expected), "{fstype}: {outcome}");
            assert_eq!(file, right);

            with_mounted(device.path(), |root| {
                let mode = Permissions::from_mode(0o600);
                fs::set_permissions(root.join("7/7"), mode).expect("chmod");
            });
            let (outcome, file) = start(THIRD_POD);
            let walked = format!("{entries} entries checked, 1 changed, in ");
            assert!(outcome.starts_with(&walked), "{fstype}: {outcome}");
            assert_eq!(file, format!("{GROUP} 660"));
        }
    }
}
