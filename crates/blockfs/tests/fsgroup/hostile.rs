//! Trees that change under the walk, or that no file system would make.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crust_blockfs::Deadline;
use crust_blockfs::filesystem::{MountRequest, mount_detached};
use crust_blockfs::fsgroup::FsGroupChangePolicy;
use crust_blockfs::fsgroup::{FsGroupError, FsGroupOutcome, FsGroupRequest, apply};
use crust_blockfs::options;
use rustix::fs::{CWD, RenameFlags};

use crate::support::{Image, Tree, group_and_mode, run, set_mode};
use crate::{GROUP, applied, order, try_apply};

/// Does `work` while two names change places all the time.
fn while_swapped<T>(one: &Path, other: &Path, work: impl FnOnce() -> T) -> T {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let exchange = RenameFlags::EXCHANGE;
                rustix::fs::renameat_with(CWD, one, CWD, other, exchange).expect("a swap");
            }
        });
        let result = work();
        stop.store(true, Ordering::Relaxed);
        result
    })
}

/// Losing the race is allowed, as an error; winning it is not.
fn walk_again_and_again(tree: &Tree) {
    for n in 0..2000_u32 {
        if let Err(error) = try_apply(tree.open(), GROUP + n % 2) {
            assert!(
                matches!(error, FsGroupError::KeepsChanging { .. }),
                "{error}"
            );
        }
    }
}

/// The attack on a walk by path: a directory becomes a link out of the volume under its feet.
#[test]
fn an_entry_swapped_for_a_link_out_leads_nowhere() {
    let (tree, outside) = (Tree::new(), Tree::new());
    let victim = outside.file("file", 0o600);
    let entry = tree.directory("a", 0o755);
    tree.file("a/file", 0o644);
    let link = tree.root().join("b");
    symlink(outside.root(), &link).expect("a link");
    while_swapped(&entry, &link, || walk_again_and_again(&tree));
    assert_eq!(group_and_mode(&victim), (0, 0o600));
    assert_eq!(group_and_mode(outside.root()).0, 0);
}

/// The attack on a mode that is read by one name and set by the same: by then it is another file's.
/// One of them is its owner's setuid program, the other root's file.
#[test]
fn a_hard_link_to_a_setuid_file_gives_its_mode_to_no_other() {
    let tree = Tree::new();
    let (program, roots) = (tree.file("program", 0o4755), tree.file("roots", 0o644));
    lchown(&program, Some(1000), Some(1000)).expect("its owner");
    set_mode(&program, 0o4755);
    let names = ["a", "b"].map(|name| tree.root().join(name));
    fs::hard_link(&program, &names[0]).expect("a second name");
    fs::hard_link(&roots, &names[1]).expect("a second name");
    while_swapped(&names[0], &names[1], || walk_again_and_again(&tree));
    assert_eq!(group_and_mode(&roots).1, 0o664);
    assert_eq!(group_and_mode(&program).1, 0o4775);
}

/// Mounts an ext4 in which debugfs(8) has run a script, and walks it, which must end early.
fn ends_with_a_sentence(image: &Image, script: &str, most: u64) -> u64 {
    let commands = image.directory().join("commands");
    fs::write(&commands, script).expect("a script");
    run(Command::new("debugfs")
        .arg("-wf")
        .arg(commands)
        .arg(image.path()));
    let on = image.attach();
    let volume = mount_detached(&MountRequest {
        device: &on.facts(),
        fstype: "ext4",
        options: &options::parse::<&str>(&[]).expect("no options"),
        exclusive: true,
    })
    .expect("it is mounted");
    let error = try_apply(&volume, GROUP).expect_err("it is stopped");
    let FsGroupError::RepeatedEntries { listed, distinct } = error else {
        panic!("{error}");
    };
    assert!(listed < most, "{listed} {distinct}");
    distinct
}

/// A device's maker can give each directory two names: thirty levels are a thousand million of them.
#[test]
fn directories_of_two_names_each_end_with_a_sentence() {
    const LEVELS: usize = 30;
    let script = (0..LEVELS).map(|depth| {
        let parent = "/d".repeat(depth);
        format!("mkdir {parent}/d\nlink {parent}/d {parent}/e\n")
    });
    let script = script.collect::<Vec<_>>().concat();
    let distinct = ends_with_a_sentence(&Image::ext4(&[]), &script, 100_000);
    assert!(distinct <= 2 * LEVELS as u64 + 8, "{distinct}");
}

/// Few directories and many files: one directory with all of them has eighty names.
#[test]
fn a_full_directory_of_many_names_ends_with_a_sentence() {
    const FILES: u64 = 2000;
    const NAMES: u64 = 80;
    let tree = Tree::new();
    tree.directory("d", 0o755);
    for number in 0..FILES {
        tree.file(&format!("d/{number}"), 0o644);
    }
    let root = tree.root().to_str().expect("a path in UTF-8");
    let image = Image::ext4(&["-d", root]);
    let script = (0..NAMES).map(|number| format!("link /d /n{number}\n"));
    let script = script.collect::<Vec<_>>().concat();
    ends_with_a_sentence(&image, &script, NAMES * FILES / 4);
}

/// Hard links, and directories that are all alike, are no sign of anything.
#[test]
fn hard_links_and_tiny_directories_are_walked_to_the_end() {
    const TINY: u64 = 4000;
    const LINKED: u64 = 12;
    const LINKS: u64 = 500;
    let tree = Tree::new();
    let file = tree.file("file", 0o644);
    for number in 0..TINY {
        let directory = tree.directory(&format!("tiny{number}"), 0o755);
        if number % 4 == 0 {
            fs::hard_link(&file, directory.join("file")).expect("a name");
        }
    }
    for number in 0..LINKED {
        let directory = tree.directory(&format!("linked{number}"), 0o755);
        for link in 0..LINKS {
            fs::hard_link(&file, directory.join(link.to_string())).expect("a name");
        }
    }
    let all = 1 + 1 + TINY + TINY / 4 + LINKED * (1 + LINKS);
    assert_eq!(applied(tree.open(), GROUP).entries, all);
}

/// A thousand times a directory, or all from some depth on, is moved to somewhere else in a tree
/// deeper than directories are kept open, while that is walked.
fn while_another_pod_renames(fstype: &str) {
    const TOPS: usize = 40;
    const LEVELS: usize = 40;
    const RENAMES: usize = 1000;
    let image = Image::made(fstype, &[]);
    let on = image.attach();
    let volume = mount_detached(&MountRequest {
        device: &on.facts(),
        fstype,
        options: &options::parse::<&str>(&[]).expect("no options"),
        exclusive: true,
    })
    .expect("it is mounted");
    // For the tools, which are given paths.
    let root = PathBuf::from(format!("/proc/self/fd/{}/.", volume.as_raw_fd()));
    let mut places = Vec::new();
    for top in 0..TOPS {
        let mut directory = root.join(format!("top{top}"));
        for _ in 0..LEVELS {
            for name in ["0", "d", "1"] {
                fs::create_dir_all(directory.join(name)).expect("a directory");
            }
            fs::write(directory.join("file"), "").expect("a file");
            places.push(directory.clone());
            directory.push("d");
        }
    }
    // Each directory, its file and two beside it; the root of each way, and its innermost one.
    let all = 1 + TOPS * (1 + LEVELS * 4);
    let renames = AtomicUsize::new(0);
    let order = FsGroupRequest {
        in_use: true,
        ..order(GROUP, FsGroupChangePolicy::Always)
    };
    let outcome = std::thread::scope(|scope| {
        let renaming = scope.spawn(|| {
            let mut random = fastrand::Rng::with_seed(7);
            // What was moved is no longer where it was made: most tries find something still.
            for number in 0..RENAMES * 100 {
                let [from, to] = [(); 2].map(|()| &places[random.usize(0..places.len())]);
                let name = ["d", "0", "1", "file"][random.usize(0..4)];
                let moved = fs::rename(from.join(name), to.join(format!("moved{number}")));
                let done = renames.fetch_add(usize::from(moved.is_ok()), Ordering::Relaxed);
                if done >= RENAMES {
                    break;
                }
            }
        });
        while renames.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        let outcome = apply(&volume, &order, Deadline::never(), &mut |_| {});
        let meanwhile = renames.load(Ordering::Relaxed);
        renaming.join().expect("it renames");
        assert!(meanwhile > 1, "nothing was renamed meanwhile");
        outcome
    });
    let outcome = outcome.expect("a move is no failure");
    assert!(matches!(outcome, FsGroupOutcome::Applied(_)), "{outcome}");
    let mut looked_at = 0;
    let mut left = vec![root];
    while let Some(entry) = left.pop() {
        looked_at += 1;
        assert_eq!(
            group_and_mode(&entry).0,
            GROUP,
            "{}: {outcome}",
            entry.display()
        );
        if fs::symlink_metadata(&entry).expect("an entry").is_dir() {
            let below = fs::read_dir(&entry).expect("a directory");
            left.extend(below.map(|entry| entry.expect("an entry").path()));
        }
    }
    // mkfs.ext4's lost+found is one more.
    assert!(looked_at >= all, "{looked_at} of {all}");
}

#[test]
fn a_pod_that_renames_all_over_an_ext4_delays_no_other() {
    while_another_pod_renames("ext4");
}

#[test]
fn a_pod_that_renames_all_over_an_xfs_delays_no_other() {
    while_another_pod_renames("xfs");
}
