//! Trees that are so large that several threads walk them.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::symlink;
use std::path::Path;

use caps::{CapSet, Capability};
use crust_blockfs::fsgroup::FsGroupError;
use crust_blockfs::sys;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::support::{Tree, group_and_mode, in_mount_namespace, set_mode};
use crate::{GROUP, apply_and_count, try_apply};

/// Makes a large directory and many small, nested ones. Returns the number of entries, including the root.
fn fill(root: &Path) -> u64 {
    let mut entries = 1;
    let mut file = |path: &Path, mode: u32| {
        fs::write(path, "").expect("a file");
        set_mode(path, mode);
        entries += 1;
    };
    let large = root.join("large");
    fs::create_dir(&large).expect("a directory");
    for n in 0..3000 {
        file(&large.join(format!("file-{n}")), 0o6711);
    }
    for n in 0..20 {
        for inner in ["", "a", "a/b"] {
            let directory = root.join(format!("small-{n}")).join(inner);
            fs::create_dir(&directory).expect("a directory");
            for n in 0..20 {
                file(&directory.join(format!("file-{n}")), 0o4711);
            }
        }
    }
    for n in 0..1000 {
        let name = format!("name-{n}");
        fs::hard_link(large.join(format!("file-{n}")), root.join(&name)).expect("a second name");
        symlink(name, large.join(format!("link-{n}"))).expect("a link");
        fs::create_dir(large.join(format!("directory-{n}"))).expect("a directory");
    }
    // "large", the small directories, and three entries for each iteration of the last loop.
    entries + 1 + 60 + 3000
}

/// Checks that all entries of a tree, including the root, have the group and the mode.
fn assert_changed(directory: &Path, group: u32) {
    assert_eq!(
        group_and_mode(directory),
        (group, 0o2775),
        "{}",
        directory.display()
    );
    for entry in fs::read_dir(directory).expect("the directory is read") {
        let entry = entry.expect("an entry");
        let kind = entry.file_type().expect("its type");
        if kind.is_dir() {
            assert_changed(&entry.path(), group);
            continue;
        }
        let (entry_group, mode) = group_and_mode(&entry.path());
        let has_mode = kind.is_symlink() || mode == 0o6771 || mode == 0o4771;
        assert!(
            entry_group == group && has_mode,
            "{}: {entry_group}, {mode:o}",
            entry.path().display()
        );
    }
}

#[test]
fn every_entry_of_a_large_tree_is_changed_once() {
    let tree = Tree::new();
    let entries = fill(tree.root());
    for group in [GROUP, GROUP + 1, GROUP, GROUP + 1] {
        let counts = apply_and_count(tree.open(), group);
        // A file with two names is changed once, and needs no change when it is found by the second name.
        assert_eq!((counts.entries, counts.changed), (entries, entries - 1000));
        assert_changed(tree.root(), group);
    }
    assert_eq!(apply_and_count(tree.open(), GROUP + 1).changed, 0);
}

#[test]
fn the_first_failure_ends_the_walk() {
    in_mount_namespace("large::the_first_failure_ends_the_walk", || {
        let tree = Tree::new();
        fill(tree.root());
        // This thread loses the capability, and so do the threads that it starts.
        caps::drop(None, CapSet::Effective, Capability::CAP_CHOWN).expect("capset");
        let error = try_apply(tree.open(), GROUP).expect_err("nothing may be changed");
        let FsGroupError::Call { path, errno, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(*errno, Errno::PERM);
        assert!(!path.as_os_str().is_empty(), "the root is changed last");
    });
}

#[test]
fn the_walk_needs_at_most_a_hundred_descriptors() {
    in_mount_namespace(
        "large::the_walk_needs_at_most_a_hundred_descriptors",
        || {
            let tree = Tree::new();
            // A tree that makes the queue as long as possible, whatever the order, with some large directories.
            let mut directory = tree.root().to_owned();
            let mut entries = 1;
            for level in 0..100 {
                directory.push("down");
                fs::create_dir(&directory).expect("a directory");
                for n in 0..8 {
                    fs::create_dir(directory.with_file_name(n.to_string())).expect("a directory");
                }
                entries += 9;
                if level % 10 == 0 {
                    for n in 0..1200 {
                        fs::write(directory.join(format!("file-{n}")), "").expect("a file");
                    }
                    entries += 1200;
                }
            }
            let root = tree.open();
            let open = fs::read_dir("/proc/self/fd")
                .expect("/proc is readable")
                .count() as u64;
            let limit = getrlimit(Resource::Nofile);
            let lowered = Rlimit {
                current: Some(open + 100),
                ..limit
            };
            setrlimit(Resource::Nofile, lowered).expect("the limit is lowered");
            let counts = try_apply(root.as_fd(), GROUP);
            setrlimit(Resource::Nofile, limit).expect("the limit is restored");
            let outcome = counts.expect("fsGroup is applied").to_string();
            let expected = format!("{entries} entries checked, {entries} changed");
            assert!(outcome.starts_with(&expected), "{outcome}");
        },
    );
}

/// setns(2) fails for a thread that shares its root and working directory with another thread, even with one that is
/// about to end.
#[test]
fn the_caller_can_enter_a_sandbox_after_the_walk() {
    in_mount_namespace(
        "large::the_caller_can_enter_a_sandbox_after_the_walk",
        || {
            let tree = Tree::new();
            for n in 0..20 {
                let directory = tree.directory(&n.to_string(), 0o755);
                for n in 0..50 {
                    fs::write(directory.join(n.to_string()), "").expect("a file");
                }
            }
            // From now on no other thread shares this thread's root.
            sys::unshare_mount_namespace().expect("a new namespace");
            let own = fs::File::open("/proc/thread-self/ns/mnt").expect("the namespace opens");
            for n in 0..200 {
                apply_and_count(tree.open(), GROUP + n % 2);
                let kind = Some(LinkNameSpaceType::Mount);
                move_into_link_name_space(own.as_fd(), kind).expect("the namespace is entered");
            }
        },
    );
}
