//! Trees that change during the walk, and trees that no file system driver would make.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{lchown, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crust_blockfs::Deadline;
use crust_blockfs::filesystem::{MountRequest, mount_detached};
use crust_blockfs::fsgroup::FsGroupChangePolicy;
use crust_blockfs::fsgroup::{FsGroupError, FsGroupOutcome, FsGroupRequest, apply};
use crust_blockfs::options;
use rustix::fs::{CWD, RenameFlags};

use crate::support::{Image, Tree, edit_ext4, group_and_mode, set_mode};
use crate::{GROUP, apply_and_count, fsgroup_request, try_apply};

/// Does `work` while another thread keeps exchanging two names.
fn while_exchanged<T>(one: &Path, other: &Path, work: impl FnOnce() -> T) -> T {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let exchange = RenameFlags::EXCHANGE;
                rustix::fs::renameat_with(CWD, one, CWD, other, exchange).expect("an exchange");
            }
        });
        let result = work();
        stop.store(true, Ordering::Relaxed);
        result
    })
}

/// Walks a tree many times. The walk may fail because entries keep changing, but not for another reason.
fn walk_repeatedly(tree: &Tree) {
    for n in 0..2000_u32 {
        if let Err(error) = try_apply(tree.open(), GROUP + n % 2) {
            assert!(
                matches!(error, FsGroupError::KeepsChanging { .. }),
                "{error}"
            );
        }
    }
}

/// The attack on a walk by path: a directory is replaced by a link out of the volume during the walk.
#[test]
fn an_entry_that_becomes_a_link_is_not_followed() {
    let (tree, outside) = (Tree::new(), Tree::new());
    let victim = outside.file("file", 0o600);
    let entry = tree.directory("a", 0o755);
    tree.file("a/file", 0o644);
    let link = tree.root().join("b");
    symlink(outside.root(), &link).expect("a link");
    while_exchanged(&entry, &link, || walk_repeatedly(&tree));
    assert_eq!(group_and_mode(&victim), (0, 0o600));
    assert_eq!(group_and_mode(outside.root()).0, 0);
}

/// An attack on a walk that reads a mode by name and then sets the mode by name: in between, the name is given to
/// another file. One of the two files is a user's setuid program, the other file belongs to root.
#[test]
fn the_mode_of_a_setuid_file_is_not_set_on_another_file() {
    let tree = Tree::new();
    let (program, roots) = (tree.file("program", 0o4755), tree.file("roots", 0o644));
    lchown(&program, Some(1000), Some(1000)).expect("its owner");
    set_mode(&program, 0o4755);
    let names = ["a", "b"].map(|name| tree.root().join(name));
    fs::hard_link(&program, &names[0]).expect("a second name");
    fs::hard_link(&roots, &names[1]).expect("a second name");
    while_exchanged(&names[0], &names[1], || walk_repeatedly(&tree));
    assert_eq!(group_and_mode(&roots).1, 0o664);
    assert_eq!(group_and_mode(&program).1, 0o4775);
}

/// Mounts an ext4 that a script of debugfs(8) has changed, and walks it. The walk must fail before it has listed
/// `max_listed` entries. Returns the estimated number of distinct entries.
fn assert_walk_fails(image: &Image, script: &str, max_listed: u64) -> u64 {
    edit_ext4(&image.path(), script);
    let loop_device = image.attach();
    let volume = mount_detached(&MountRequest {
        device: &loop_device.facts(),
        fstype: "ext4",
        options: &options::parse::<&str>(&[]).expect("no options"),
        exclusive: true,
    })
    .expect("the volume is mounted");
    let error = try_apply(&volume, GROUP).expect_err("the walk is stopped");
    let FsGroupError::RepeatedEntries { listed, distinct } = error else {
        panic!("{error}");
    };
    assert!(listed < max_listed, "{listed} {distinct}");
    distinct
}

/// A tenant that can write to the device can give each directory two names. Then thirty levels make a thousand million
/// paths.
#[test]
fn the_walk_fails_if_each_directory_has_two_names() {
    const LEVELS: usize = 30;
    let script = (0..LEVELS).map(|depth| {
        let parent = "/d".repeat(depth);
        format!("mkdir {parent}/d\nlink {parent}/d {parent}/e\n")
    });
    let script = script.collect::<Vec<_>>().concat();
    let distinct = assert_walk_fails(&Image::ext4(&[]), &script, 100_000);
    assert!(distinct <= 2 * LEVELS as u64 + 8, "{distinct}");
}

/// One directory with many files has eighty names.
#[test]
fn the_walk_fails_if_a_full_directory_has_many_names() {
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
    assert_walk_fails(&image, &script, NAMES * FILES / 4);
}

/// Hard links of files, and directories with the same contents, aren't repeated listings.
#[test]
fn hard_links_and_small_directories_do_not_make_the_walk_fail() {
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
    assert_eq!(apply_and_count(tree.open(), GROUP).entries, all);
}

/// Walks a tree while another thread moves a thousand files and directories to other places in it. The tree is deeper
/// than the number of directories that a walk keeps open. Afterwards all entries must have the group.
fn assert_walk_survives_renames(fstype: &str) {
    const TOPS: usize = 40;
    const LEVELS: usize = 40;
    const RENAMES: usize = 1000;
    let image = Image::formatted(fstype, &[]);
    let loop_device = image.attach();
    let volume = mount_detached(&MountRequest {
        device: &loop_device.facts(),
        fstype,
        options: &options::parse::<&str>(&[]).expect("no options"),
        exclusive: true,
    })
    .expect("the volume is mounted");
    // A path for functions that don't take a descriptor.
    let root = PathBuf::from(format!("/proc/self/fd/{}/.", volume.as_raw_fd()));
    let mut directories = Vec::new();
    for top in 0..TOPS {
        let mut directory = root.join(format!("top{top}"));
        for _ in 0..LEVELS {
            for name in ["0", "d", "1"] {
                fs::create_dir_all(directory.join(name)).expect("a directory");
            }
            fs::write(directory.join("file"), "").expect("a file");
            directories.push(directory.clone());
            directory.push("d");
        }
    }
    // On each level a directory, its file and two sibling directories; the top directories, and the innermost ones.
    let all = 1 + TOPS * (1 + LEVELS * 4);
    let renames = AtomicUsize::new(0);
    let request = FsGroupRequest {
        in_use: true,
        ..fsgroup_request(GROUP, FsGroupChangePolicy::Always)
    };
    let outcome = std::thread::scope(|scope| {
        let renaming = scope.spawn(|| {
            let mut random = fastrand::Rng::with_seed(7);
            // Some renames fail, because the entry has already been moved away.
            for number in 0..RENAMES * 100 {
                let [from, to] = [(); 2].map(|()| &directories[random.usize(0..directories.len())]);
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
        let outcome = apply(&volume, &request, Deadline::never(), &mut |_| {});
        let meanwhile = renames.load(Ordering::Relaxed);
        renaming.join().expect("the thread renames");
        assert!(meanwhile > 1, "nothing was renamed meanwhile");
        outcome
    });
    let outcome = outcome.expect("moves don't make the walk fail");
    assert!(matches!(outcome, FsGroupOutcome::Applied(_)), "{outcome}");
    let mut checked = 0;
    let mut remaining = vec![root];
    while let Some(entry) = remaining.pop() {
        checked += 1;
        assert_eq!(
            group_and_mode(&entry).0,
            GROUP,
            "{}: {outcome}",
            entry.display()
        );
        if fs::symlink_metadata(&entry).expect("an entry").is_dir() {
            let below = fs::read_dir(&entry).expect("a directory");
            remaining.extend(below.map(|entry| entry.expect("an entry").path()));
        }
    }
    // An ext4 also has lost+found.
    assert!(checked >= all, "{checked} of {all}");
}

#[test]
fn the_walk_of_an_ext4_survives_renames_by_another_pod() {
    assert_walk_survives_renames("ext4");
}

#[test]
fn the_walk_of_an_xfs_survives_renames_by_another_pod() {
    assert_walk_survives_renames("xfs");
}
