//! A volume with so many entries that its walk has to tell how far it is.

use runcrust_tests::container::end;
use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::tree::create_entries;
use runcrust_tests::volume::with_mounted;
use runcrust_tests::{Node, StagedVolume, on_each_delegate};

use crate::scene::{GROUP, ON_ROOT_MISMATCH};

const DIRECTORIES: usize = 200;
/// In each of them.
const NAMES: usize = 999;
const FILES: usize = 10;

/// What the log says of fsGroup, in its order.
fn words(node: &Node) -> Vec<String> {
    let log = node.log();
    let lines = log.lines().filter(|line| line.contains("fsGroup"));
    lines.map(str::to_owned).collect()
}

/// How many a line of progress tells of.
fn entries(line: &str) -> u64 {
    let told = line.split_once("progress=").map(|(_, told)| told);
    let number = told.and_then(|told| told.split(' ').next());
    number.and_then(|it| it.parse().ok()).expect("a number")
}

on_each_delegate! {
    fn two_hundred_thousand_entries_are_walked_with_word_of_it(delegate: Delegate) {
        let node = Node::logging(delegate);
        let device = node.ext4();
        with_mounted(device.path(), |root| create_entries(root, DIRECTORIES, NAMES, FILES));
        let volume = StagedVolume::of(node, device, &ON_ROOT_MISMATCH);
        let sandbox = volume.sandbox();
        let log = words(&volume);
        // The two that are due by count, a little later where several threads count; on a slow machine
        // more by time. At the end there are the root and lost+found besides.
        let progress = log
            .iter()
            .filter(|line| line.contains("fsGroup is being applied"));
        let progress: Vec<_> = progress.collect();
        let counts = progress.iter().map(|line| entries(line));
        let counts: Vec<u64> = counts.collect();
        for due in [100_000, 200_000] {
            let soon = due..due + 50_000;
            assert!(counts.iter().any(|it| soon.contains(it)), "{due}: {log:?}");
        }
        assert!(counts.is_sorted(), "{log:?}");
        assert!(
            progress
                .iter()
                .all(|line| line.contains("volume=\"pv-1\" group=2000")),
            "{log:?}"
        );
        let last = log.last().expect("a last word");
        assert!(last.contains("fsGroup was applied"), "{log:?}");
        // Each file once, whatever its names.
        let changed = DIRECTORIES * (1 + FILES) + 2;
        let outcome = format!("outcome=200002 entries checked, {changed} changed, in ");
        assert!(last.contains(&outcome), "{log:?}");

        let app = volume.app(&sandbox);
        let files = "ls /data/199 | wc -l; stat -c '%g %a' /data/0/0 /data/199/998 /data/100";
        let group = format!("{NAMES}\n{GROUP} 664\n{GROUP} 664\n{GROUP} 2775");
        assert_eq!(app.sh(files), group);
        end([app, sandbox]);
        volume.device.wait_until_free(WAIT_TIMEOUT);

        // The next pod finds it done.
        let sandbox = volume.sandbox();
        let last = words(&volume).pop().expect("a last word");
        assert!(last.contains("outcome=the root matches"), "{last}");
        end([sandbox]);
    }
}
