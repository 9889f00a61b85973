//! fsGroup, which runcrust applies as root to files that a container controls.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::time::Duration;

use runcrust_tests::container::end;
use runcrust_tests::fault_injection::create_traced_delayed;
use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::tree::{OutsideFiles, create_entries};
use runcrust_tests::volume::with_mounted;
use runcrust_tests::{Node, POD, Pod, on_each_delegate};

use super::{OTHER_POD, path_in_container, swap, while_repeated};

const NAMES: usize = 100_000;
/// The names are hard links to two files, so that the walk depends on the names. ext4 allows 65,000 links to a file.
const FILES: usize = 2;
const LINKS: usize = 3_000;

/// Makes links in a cycle, to each other, out of the volume, and to nothing.
fn links(root: &Path, outside: &Path) {
    let at = |number: usize| root.join(format!("link-{number}"));
    for number in 0..LINKS {
        let target = match number % 5 {
            0 => at(number).file_name().unwrap().into(),
            1 => at(number + 1).file_name().unwrap().into(),
            2 => at(number - 1).file_name().unwrap().into(),
            3 => outside.join("directory"),
            _ => Path::new("../../../../../../..").join(outside.strip_prefix("/").unwrap()),
        };
        symlink(target, at(number)).unwrap();
    }
    symlink(".", root.join("0/here")).unwrap();
    symlink("../..", root.join("0/above")).unwrap();
}

/// Returns the files below a directory that lack the group.
fn files_without_group(root: &Path, group: u32) -> Vec<String> {
    let mut without = Vec::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let info = fs::symlink_metadata(&path).unwrap();
            if info.gid() != group {
                without.push(path.display().to_string());
            }
            if info.is_dir() {
                directories.push(path);
            }
        }
    }
    without
}

/// The number of times that the walk has to meet the link in place of a directory that it has listed.
const RACES: usize = 2;
/// The delay of the walk after each listing.
const LISTING: Duration = Duration::from_millis(30);

on_each_delegate! {
    fn a_walk_survives_100_000_names_and_hostile_links(delegate: Delegate) {
        let node = Node::new(delegate);
        let outside = OutsideFiles::new(node.dir());
        let device = node.ext4();
        with_mounted(device.path(), |root| {
            create_entries(root, 1, NAMES, FILES);
            links(root, &node.dir().join("outside"));
        });
        let pod = Pod::new(&node, POD, &device, &["--fs-group", "2000"]);
        let app = pod.app();
        assert_eq!(app.sh("ls /data/0 | wc -l"), (NAMES + 2).to_string());
        pod.end([app]);
        device.wait_until_free(WAIT_TIMEOUT);
        let without = with_mounted(device.path(), |root| files_without_group(root, 2000));
        assert_eq!(without, <[String; 0]>::default());
        outside.assert_unchanged();
    }

    /// The walk for the second pod goes through files that the first pod's containers change at the same time.
    fn a_walk_does_not_follow_a_directory_swapped_for_a_link(delegate: Delegate) {
        let node = Node::new(delegate);
        let outside = OutsideFiles::new(node.dir());
        let device = node.ext4();
        with_mounted(device.path(), |root| {
            create_entries(root, 2, 20, 20);
            fs::create_dir(root.join("one")).unwrap();
            fs::write(root.join("one/file"), "").unwrap();
            fs::create_dir(root.join("one/directory")).unwrap();
            symlink(node.dir().join("outside"), root.join("other")).unwrap();
        });
        let first = Pod::new(&node, POD, &device, &[]);
        let holder = first.app();
        let [one, other] = ["one", "other"].map(|name| path_in_container(&holder, "/data").join(name));
        let mut raced = 0;
        while_repeated(|| swap(&one, &other), || {
            for group in 2000..2060 {
                let group: &str = &u32::to_string(&group);
                let target = node.stage(OTHER_POD, "pv-1", &device, &["--fs-group", group]);
                let sandbox = node.container(&node.sandbox_bundle(OTHER_POD).write());
                // The delay makes the swap hit the time between a listing and the open that follows it, on any machine.
                let calls = create_traced_delayed(&sandbox, "openat2", "getdents64", LISTING);
                let _ = sandbox.start().success();
                let met = |line: &&str| {
                    let entered = ["\"one\"", "\"other\""].iter().any(|name| line.contains(name));
                    // ENOTDIR, ELOOP
                    entered && line.contains("O_DIRECTORY") && line.contains(" = -1 E")
                };
                raced += calls.lines().filter(met).count();
                let app = node.app(&sandbox, &target, "/data");
                let seen = app.sh("stat -c %g /data /data/0/0 /data/1/19");
                assert_eq!(seen, [group; 3].join("\n"));
                end([app, sandbox]);
                let _ = node.unstage(&target).success();
                if raced >= RACES {
                    break;
                }
            }
        });
        assert!(raced >= RACES, "the walk met the link only {raced} times");
        end([holder]);
        outside.assert_unchanged();
    }
}
