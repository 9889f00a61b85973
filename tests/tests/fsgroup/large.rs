//! A walk over a large number of files logs its progress.

use runcrust_tests::container::end;
use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::tree::create_entries;
use runcrust_tests::volume::with_mounted;
use runcrust_tests::{Node, StagedVolume, on_each_delegate};

use crate::scene::{GROUP, ON_ROOT_MISMATCH};

const DIRECTORIES: usize = 200;
/// The number of hard links in each directory, to [`FILES`] files.
const NAMES: usize = 999;
const FILES: usize = 10;

/// Returns the lines of the log about fsGroup.
fn fsgroup_lines(node: &Node) -> Vec<String> {
    let log = node.log();
    let lines = log.lines().filter(|line| line.contains("fsGroup"));
    lines.map(str::to_owned).collect()
}

/// Returns the number of files in a line about the progress.
fn progress(line: &str) -> u64 {
    let progress = line.split_once("progress=").map(|(_, rest)| rest);
    let number = progress.and_then(|rest| rest.split(' ').next());
    number.and_then(|it| it.parse().ok()).expect("a number")
}

on_each_delegate! {
    fn the_walk_of_200_000_files_logs_its_progress(delegate: Delegate) {
        let node = Node::logging(delegate);
        let device = node.ext4();
        with_mounted(device.path(), |root| create_entries(root, DIRECTORIES, NAMES, FILES));
        let volume = StagedVolume::on_device(node, device, &ON_ROOT_MISMATCH);
        let sandbox = volume.sandbox();
        let log = fsgroup_lines(&volume);
        // Two lines are due by number of files; several threads count, so they may come later. On a slow machine there
        // are more lines, by time.
        let lines = log
            .iter()
            .filter(|line| line.contains("fsGroup is being applied"));
        let lines: Vec<_> = lines.collect();
        let counts = lines.iter().map(|line| progress(line));
        let counts: Vec<u64> = counts.collect();
        for due in [100_000, 200_000] {
            let range = due..due + 50_000;
            assert!(counts.iter().any(|it| range.contains(it)), "{due}: {log:?}");
        }
        assert!(counts.is_sorted(), "{log:?}");
        assert!(
            lines
                .iter()
                .all(|line| line.contains("volume=\"pv-1\" group=2000")),
            "{log:?}"
        );
        let last = log.last().expect("a last line");
        assert!(last.contains("fsGroup was applied"), "{log:?}");
        // Each file is changed once, whatever its number of names.
        let changed = DIRECTORIES * (1 + FILES) + 2;
        let outcome = format!("outcome=200002 entries checked, {changed} changed, in ");
        assert!(last.contains(&outcome), "{log:?}");

        let app = volume.app(&sandbox);
        let files = "ls /data/199 | wc -l; stat -c '%g %a' /data/0/0 /data/199/998 /data/100";
        let group = format!("{NAMES}\n{GROUP} 664\n{GROUP} 664\n{GROUP} 2775");
        assert_eq!(app.sh(files), group);
        end([app, sandbox]);
        volume.device.wait_until_free(WAIT_TIMEOUT);

        // The next pod's walk ends at the root.
        let sandbox = volume.sandbox();
        let last = fsgroup_lines(&volume).pop().expect("a last line");
        assert!(last.contains("outcome=the volume's root already has the group and mode"), "{last}");
        end([sandbox]);
    }
}
