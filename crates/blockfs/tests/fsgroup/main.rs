//! fsGroup on real trees. Needs root.
#![allow(
    clippy::disallowed_methods,
    reason = "tests run tools and set their scenes by path"
)]

mod hostile;
mod inodes;
mod large;
mod subvolumes;
#[path = "../support/mod.rs"]
mod support;

use std::ffi::OsStr;
use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, lchown, symlink};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crust_blockfs::Deadline;
use crust_blockfs::filesystem::{MountRequest, mount_detached};
use crust_blockfs::fsgroup::FsGroupChangePolicy;
use crust_blockfs::fsgroup::{EntryCounts, FsGroupError, FsGroupOutcome, FsGroupRequest, apply};
use crust_blockfs::options;
use rustix::fs::{CWD, FileType, Mode, OFlags, makedev, mknodat, openat};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::{Image, Mounted, Tree, group_and_mode, in_own_mount_namespace, run, set_mode};

const GROUP: u32 = 2000;

fn order(group: u32, policy: FsGroupChangePolicy) -> FsGroupRequest<'static> {
    FsGroupRequest {
        group,
        policy,
        device: None,
        in_use: false,
    }
}

fn try_apply(root: impl AsFd, group: u32) -> Result<FsGroupOutcome, FsGroupError> {
    let order = order(group, FsGroupChangePolicy::Always);
    apply(root.as_fd(), &order, Deadline::never(), &mut |_| {})
}

fn applied(root: impl AsFd, group: u32) -> EntryCounts {
    match try_apply(root, group).expect("fsGroup is applied") {
        FsGroupOutcome::Applied(progress) => progress.counts,
        outcome => panic!("the policy is Always: {outcome}"),
    }
}

fn on_root_mismatch(tree: &Tree) -> FsGroupOutcome {
    let order = order(GROUP, FsGroupChangePolicy::OnRootMismatch);
    let result = apply(tree.open(), &order, Deadline::never(), &mut |_| {});
    result.expect("fsGroup is applied")
}

#[test]
fn every_kind_of_entry_gets_the_group_and_its_bits() {
    let tree = Tree::new();
    let directory = tree.directory("directory", 0o700);
    let file = tree.file("directory/file", 0o600);
    let (fifo, device, socket) = (
        tree.root().join("fifo"),
        tree.root().join("device"),
        tree.root().join("socket"),
    );
    mknodat(CWD, &fifo, FileType::Fifo, Mode::from(0o600), 0).expect("a named pipe");
    // No driver has this number: opening it would be ENXIO.
    let number = makedev(4000, 1);
    mknodat(
        CWD,
        &device,
        FileType::CharacterDevice,
        Mode::from(0o600),
        number,
    )
    .expect("a device");
    drop(std::os::unix::net::UnixListener::bind(&socket).expect("a socket"));
    set_mode(&socket, 0o755);
    set_mode(tree.root(), 0o700);

    let counts = applied(tree.open(), GROUP);

    assert_eq!((counts.entries, counts.changed), (6, 6));
    assert_eq!(group_and_mode(tree.root()), (GROUP, 0o2770));
    assert_eq!(group_and_mode(&directory), (GROUP, 0o2770));
    assert_eq!(group_and_mode(&file), (GROUP, 0o660));
    assert_eq!(group_and_mode(&fifo), (GROUP, 0o660));
    assert_eq!(group_and_mode(&device), (GROUP, 0o660));
    assert_eq!(group_and_mode(&socket), (GROUP, 0o775));
}

#[test]
fn symbolic_links_get_the_group_but_not_their_targets() {
    let tree = Tree::new();
    let outside = Tree::new();
    let file = outside.file("file", 0o600);
    let directory = outside.directory("directory", 0o700);
    let inner = outside.file("directory/inner", 0o600);
    // The link in /proc leads to our own directory too: never to anything of the host's.
    let held = fs::File::open(&directory).expect("it opens");
    let magic = format!("/proc/{}/fd/{}", std::process::id(), held.as_raw_fd());
    for (name, target) in [
        ("to-file", file.as_path()),
        ("to-directory", &directory),
        ("to-nothing", Path::new("/there/is/none")),
        ("to-itself", Path::new("to-itself")),
        ("to-proc", Path::new(&magic)),
    ] {
        symlink(target, tree.root().join(name)).expect("a link");
    }
    let before = fs::symlink_metadata(&file).expect("the file").ctime_nsec();

    let counts = applied(tree.open(), GROUP);

    assert_eq!((counts.entries, counts.changed), (6, 6));
    assert_eq!(group_and_mode(&tree.root().join("to-file")), (GROUP, 0o777));
    assert_eq!(
        group_and_mode(&tree.root().join("to-directory")),
        (GROUP, 0o777)
    );
    assert_eq!(
        group_and_mode(&tree.root().join("to-itself")),
        (GROUP, 0o777)
    );
    assert_eq!(group_and_mode(&file), (0, 0o600));
    assert_eq!(group_and_mode(&directory), (0, 0o700));
    assert_eq!(group_and_mode(&inner), (0, 0o600));
    assert_eq!(
        fs::symlink_metadata(&file).expect("the file").ctime_nsec(),
        before
    );
}

#[test]
fn a_hard_link_is_changed_once_and_counted_twice() {
    let tree = Tree::new();
    let file = tree.file("file", 0o600);
    fs::hard_link(&file, tree.root().join("link")).expect("a second name");
    let counts = applied(tree.open(), GROUP);
    assert_eq!((counts.entries, counts.changed), (3, 2));
    assert_eq!(group_and_mode(&file), (GROUP, 0o660));
}

#[test]
fn setuid_setgid_and_sticky_survive_the_change_of_group() {
    let tree = Tree::new();
    let program = tree.file("program", 0o4711);
    let both = tree.file("both", 0o6755);
    // Nothing to add to its mode, and the chown takes setuid away all the same.
    let right = tree.file("right", 0o4770);
    let shared = tree.directory("shared", 0o1777);
    applied(tree.open(), GROUP);
    assert_eq!(group_and_mode(&program), (GROUP, 0o4771));
    assert_eq!(group_and_mode(&both), (GROUP, 0o6775));
    assert_eq!(group_and_mode(&right), (GROUP, 0o4770));
    assert_eq!(group_and_mode(&shared), (GROUP, 0o3777));
}

#[test]
fn what_is_right_already_is_not_written_to() {
    let tree = Tree::new();
    tree.directory("directory", 0o755);
    tree.file("directory/file", 0o644);
    symlink("file", tree.root().join("directory/link")).expect("a link");
    applied(tree.open(), GROUP);
    let names = ["", "directory", "directory/file", "directory/link"];
    let stamps = || {
        names.map(|name| {
            let path = tree.root().join(name);
            // Not "…/": that would follow.
            let entry = fs::symlink_metadata(path.components().as_path()).expect("the entry");
            (
                entry.ctime(),
                entry.ctime_nsec(),
                entry.atime(),
                entry.atime_nsec(),
            )
        })
    };
    let before = stamps();
    let counts = applied(tree.open(), GROUP);
    assert_eq!((counts.entries, counts.changed), (4, 0));
    assert_eq!(stamps(), before);
}

#[test]
fn on_root_mismatch_looks_at_the_root_only_when_it_matches() {
    let tree = Tree::new();
    let file = tree.file("file", 0o600);
    lchown(tree.root(), None, Some(GROUP)).expect("the root's group");
    set_mode(tree.root(), 0o2775);
    assert_eq!(on_root_mismatch(&tree), FsGroupOutcome::RootMatches);
    assert_eq!(group_and_mode(&file), (0, 0o600));

    for mode in [0o775, 0o2750] {
        lchown(&file, None, Some(0)).expect("the file's group");
        set_mode(tree.root(), mode);
        assert!(
            matches!(on_root_mismatch(&tree), FsGroupOutcome::Applied(_)),
            "root with {mode:o}"
        );
        assert_eq!(group_and_mode(&file).0, GROUP);
    }
}

#[test]
fn group_0_is_applied_like_any_other() {
    let tree = Tree::new();
    let file = tree.file("file", 0o600);
    lchown(&file, None, Some(1234)).expect("another group");
    applied(tree.open(), 0);
    assert_eq!(group_and_mode(&file), (0, 0o660));
    assert_eq!(group_and_mode(tree.root()).0, 0);
}

#[test]
fn names_may_be_any_bytes() {
    let tree = Tree::new();
    let long = [b'x'; 255];
    for name in [
        &b"new\nline"[..],
        b"\xff\xfe",
        b" ",
        b"-rf",
        b"*",
        b"...",
        &long,
        b"\\040",
    ] {
        let directory = tree.root().join(OsStr::from_bytes(name));
        fs::create_dir(&directory).expect("a directory");
        fs::write(directory.join(OsStr::from_bytes(name)), "").expect("a file");
    }
    let counts = applied(tree.open(), GROUP);
    assert_eq!((counts.entries, counts.changed), (17, 17));
}

/// Deeper than there are descriptors, and than a path may be long: both ways back by `..`.
#[test]
fn five_thousand_levels_need_no_five_thousand_descriptors() {
    const LEVELS: u64 = 5_000;
    let limit = getrlimit(Resource::Nofile);
    let lowered = Rlimit {
        current: Some(1024),
        ..limit
    };
    setrlimit(Resource::Nofile, lowered).expect("the limit is lowered");

    let tree = Tree::new();
    let step = |from: &dyn AsFd, name: &str| {
        rustix::fs::mkdirat(from.as_fd(), name, Mode::from(0o755)).expect("a directory");
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        openat(from.as_fd(), name, flags, Mode::empty()).expect("it opens")
    };
    let mut inner = step(&tree.open(), "down");
    for level in 1..LEVELS {
        // A branch here and there: the walk comes back to a directory it no longer holds.
        if level % 100 == 0 {
            drop(step(&inner, "aside"));
        }
        inner = step(&inner, "down");
    }
    let create = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    let innermost = openat(&inner, "file", create, Mode::from(0o600)).expect("a file");

    let counts = applied(tree.open(), GROUP);

    assert_eq!(counts.entries, LEVELS + LEVELS / 100 - 1 + 2);
    assert_eq!(counts.changed, counts.entries);
    let stat = rustix::fs::fstat(&innermost).expect("the innermost file");
    assert_eq!((stat.st_gid, stat.st_mode & 0o7777), (GROUP, 0o660));
    assert_eq!(applied(tree.open(), GROUP).changed, 0);
}

#[test]
fn an_expired_deadline_leaves_the_root_for_a_second_call() {
    let tree = Tree::new();
    let file = tree.file("file", 0o600);
    let order = order(GROUP, FsGroupChangePolicy::OnRootMismatch);
    let expired = Deadline::after(Duration::ZERO);
    let result = apply(tree.open(), &order, expired, &mut |_| {});
    let error = result.expect_err("the deadline has passed");
    assert!(
        matches!(error, FsGroupError::Stopped { group: GROUP, .. }),
        "{error}"
    );
    assert_eq!(group_and_mode(tree.root()).0, 0);
    assert!(matches!(
        on_root_mismatch(&tree),
        FsGroupOutcome::Applied(_)
    ));
    assert_eq!(group_and_mode(&file), (GROUP, 0o660));
    assert_eq!(on_root_mismatch(&tree), FsGroupOutcome::RootMatches);
}

#[test]
fn an_immutable_file_is_passed_over_and_counted() {
    let tree = Tree::new();
    let frozen = tree.file("frozen", 0o600);
    let other = tree.file("other", 0o600);
    run(Command::new("chattr").arg("+i").arg(&frozen));
    let result = try_apply(tree.open(), GROUP);
    run(Command::new("chattr").arg("-i").arg(&frozen));
    let FsGroupOutcome::Applied(progress) = result.expect("fsGroup is applied") else {
        panic!("the policy is Always");
    };
    assert_eq!((progress.counts.immutable, progress.counts.changed), (1, 2));
    assert_eq!(group_and_mode(&frozen), (0, 0o600));
    assert_eq!(group_and_mode(&other), (GROUP, 0o660));
}

#[test]
fn other_mounts_below_the_root_are_left_alone() {
    in_own_mount_namespace("other_mounts_below_the_root_are_left_alone", || {
        let (tree, elsewhere) = (Tree::new(), Tree::new());
        let other = tree.directory("other", 0o700);
        let covered = tree.file("covered", 0o600);
        let right = tree.file("covered-by-what-is-right", 0o600);
        let plain = tree.file("plain", 0o600);
        let file = elsewhere.file("file", 0o600);
        let right_file = elsewhere.file("right", 0o660);
        lchown(&right_file, None, Some(GROUP)).expect("its group");
        let mounted = (
            Mounted::tmpfs(&other),
            Mounted::bind(&file, &covered),
            Mounted::bind(&right_file, &right),
        );
        let before = group_and_mode(&other);

        let counts = applied(tree.open(), GROUP);

        assert_eq!(
            (counts.other_mounts, counts.entries, counts.changed),
            (3, 2, 2)
        );
        assert_eq!(group_and_mode(&other), before);
        assert_eq!(group_and_mode(&file), (0, 0o600));
        assert_eq!(group_and_mode(&plain), (GROUP, 0o660));
        drop(mounted);
        assert_eq!(group_and_mode(&covered), (0, 0o600));
    });
}

#[test]
fn only_a_writable_detached_mount_takes_the_group() {
    let image = Image::ext4(&[]);
    let on = image.attach();
    let mount = |list: &[&str]| {
        mount_detached(&MountRequest {
            device: &on.facts(),
            fstype: "ext4",
            options: &options::parse(list).expect("the options are valid"),
            exclusive: true,
        })
        .expect("it is mounted")
    };
    let volume = mount(&["rw"]);
    // The root and lost+found.
    assert_eq!(applied(&volume, GROUP).changed, 2);
    drop(volume);
    support::wait_until_free(&on.device());
    let outcome = try_apply(mount(&["ro"]), GROUP + 1).expect("kubelet leaves it alone too");
    assert_eq!(outcome, FsGroupOutcome::ReadOnly);
}
