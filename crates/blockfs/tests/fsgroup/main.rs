//! Tests of fsGroup on real trees. They need root.
#![allow(
    clippy::disallowed_methods,
    reason = "tests run programs and prepare files by path"
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
use support::{Image, TestMount, Tree, group_and_mode, in_mount_namespace, run, set_mode};

const GROUP: u32 = 2000;

fn fsgroup_request(group: u32, policy: FsGroupChangePolicy) -> FsGroupRequest<'static> {
    FsGroupRequest {
        group,
        policy,
        device: None,
        in_use: false,
    }
}

fn try_apply(root: impl AsFd, group: u32) -> Result<FsGroupOutcome, FsGroupError> {
    let request = fsgroup_request(group, FsGroupChangePolicy::Always);
    apply(root.as_fd(), &request, Deadline::never(), &mut |_| {})
}

fn apply_and_count(root: impl AsFd, group: u32) -> EntryCounts {
    match try_apply(root, group).expect("fsGroup is applied") {
        FsGroupOutcome::Applied(progress) => progress.counts,
        outcome => panic!("the policy is Always: {outcome}"),
    }
}

fn apply_on_root_mismatch(tree: &Tree) -> FsGroupOutcome {
    let request = fsgroup_request(GROUP, FsGroupChangePolicy::OnRootMismatch);
    let result = apply(tree.open(), &request, Deadline::never(), &mut |_| {});
    result.expect("fsGroup is applied")
}

#[test]
fn entries_of_all_types_get_the_group_and_their_bits() {
    let tree = Tree::new();
    let directory = tree.directory("directory", 0o700);
    let file = tree.file("directory/file", 0o600);
    let (fifo, device, socket) = (
        tree.root().join("fifo"),
        tree.root().join("device"),
        tree.root().join("socket"),
    );
    mknodat(CWD, &fifo, FileType::Fifo, Mode::from(0o600), 0).expect("a named pipe");
    // No driver has this number. Opening the device would fail with ENXIO.
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

    let counts = apply_and_count(tree.open(), GROUP);

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
    // The magic link in /proc leads to a directory of this test too, not to one of the host.
    let open = fs::File::open(&directory).expect("the directory opens");
    let magic = format!("/proc/{}/fd/{}", std::process::id(), open.as_raw_fd());
    for (name, target) in [
        ("to-file", file.as_path()),
        ("to-directory", &directory),
        ("to-nothing", Path::new("/no/such/file")),
        ("to-itself", Path::new("to-itself")),
        ("to-proc", Path::new(&magic)),
    ] {
        symlink(target, tree.root().join(name)).expect("a link");
    }
    let before = fs::symlink_metadata(&file).expect("the file").ctime_nsec();

    let counts = apply_and_count(tree.open(), GROUP);

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
    let counts = apply_and_count(tree.open(), GROUP);
    assert_eq!((counts.entries, counts.changed), (3, 2));
    assert_eq!(group_and_mode(&file), (GROUP, 0o660));
}

#[test]
fn setuid_setgid_and_sticky_survive_the_change_of_group() {
    let tree = Tree::new();
    let program = tree.file("program", 0o4711);
    let both = tree.file("both", 0o6755);
    // The mode of this file needs no further bits, but the chown clears setuid.
    let complete = tree.file("complete", 0o4770);
    let shared = tree.directory("shared", 0o1777);
    apply_and_count(tree.open(), GROUP);
    assert_eq!(group_and_mode(&program), (GROUP, 0o4771));
    assert_eq!(group_and_mode(&both), (GROUP, 0o6775));
    assert_eq!(group_and_mode(&complete), (GROUP, 0o4770));
    assert_eq!(group_and_mode(&shared), (GROUP, 0o3777));
}

#[test]
fn entries_that_need_no_change_are_not_written_to() {
    let tree = Tree::new();
    tree.directory("directory", 0o755);
    tree.file("directory/file", 0o644);
    symlink("file", tree.root().join("directory/link")).expect("a link");
    apply_and_count(tree.open(), GROUP);
    let names = ["", "directory", "directory/file", "directory/link"];
    let stamps = || {
        names.map(|name| {
            let path = tree.root().join(name);
            // Without a trailing slash, which would make lstat follow a link.
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
    let counts = apply_and_count(tree.open(), GROUP);
    assert_eq!((counts.entries, counts.changed), (4, 0));
    assert_eq!(stamps(), before);
}

#[test]
fn on_root_mismatch_checks_only_the_root_if_that_matches() {
    let tree = Tree::new();
    let file = tree.file("file", 0o600);
    lchown(tree.root(), None, Some(GROUP)).expect("the root's group");
    set_mode(tree.root(), 0o2775);
    assert_eq!(apply_on_root_mismatch(&tree), FsGroupOutcome::RootMatches);
    assert_eq!(group_and_mode(&file), (0, 0o600));

    for mode in [0o775, 0o2750] {
        lchown(&file, None, Some(0)).expect("the file's group");
        set_mode(tree.root(), mode);
        assert!(
            matches!(apply_on_root_mismatch(&tree), FsGroupOutcome::Applied(_)),
            "root with {mode:o}"
        );
        assert_eq!(group_and_mode(&file).0, GROUP);
    }
}

#[test]
fn group_0_is_applied_like_any_other_group() {
    let tree = Tree::new();
    let file = tree.file("file", 0o600);
    lchown(&file, None, Some(1234)).expect("another group");
    apply_and_count(tree.open(), 0);
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
    let counts = apply_and_count(tree.open(), GROUP);
    assert_eq!((counts.entries, counts.changed), (17, 17));
}

/// The tree is deeper than the limit on descriptors, and its paths are longer than `PATH_MAX`.
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
    let make_directory = |from: &dyn AsFd, name: &str| {
        rustix::fs::mkdirat(from.as_fd(), name, Mode::from(0o755)).expect("a directory");
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        openat(from.as_fd(), name, flags, Mode::empty()).expect("the directory opens")
    };
    let mut inner = make_directory(&tree.open(), "down");
    for level in 1..LEVELS {
        // Some branches make the walk return to a directory that it has closed.
        if level % 100 == 0 {
            drop(make_directory(&inner, "aside"));
        }
        inner = make_directory(&inner, "down");
    }
    let create = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    let innermost = openat(&inner, "file", create, Mode::from(0o600)).expect("a file");

    let counts = apply_and_count(tree.open(), GROUP);

    assert_eq!(counts.entries, LEVELS + LEVELS / 100 - 1 + 2);
    assert_eq!(counts.changed, counts.entries);
    let stat = rustix::fs::fstat(&innermost).expect("the innermost file");
    assert_eq!((stat.st_gid, stat.st_mode & 0o7777), (GROUP, 0o660));
    assert_eq!(apply_and_count(tree.open(), GROUP).changed, 0);
}

#[test]
fn the_root_is_not_changed_after_the_deadline() {
    let tree = Tree::new();
    let file = tree.file("file", 0o600);
    let request = fsgroup_request(GROUP, FsGroupChangePolicy::OnRootMismatch);
    let expired = Deadline::after(Duration::ZERO);
    let result = apply(tree.open(), &request, expired, &mut |_| {});
    let error = result.expect_err("the deadline has passed");
    assert!(
        matches!(error, FsGroupError::Stopped { group: GROUP, .. }),
        "{error}"
    );
    assert_eq!(group_and_mode(tree.root()).0, 0);
    assert!(matches!(
        apply_on_root_mismatch(&tree),
        FsGroupOutcome::Applied(_)
    ));
    assert_eq!(group_and_mode(&file), (GROUP, 0o660));
    assert_eq!(apply_on_root_mismatch(&tree), FsGroupOutcome::RootMatches);
}

#[test]
fn an_immutable_file_is_skipped_and_counted() {
    let tree = Tree::new();
    let immutable = tree.file("immutable", 0o600);
    let other = tree.file("other", 0o600);
    run(Command::new("chattr").arg("+i").arg(&immutable));
    let result = try_apply(tree.open(), GROUP);
    run(Command::new("chattr").arg("-i").arg(&immutable));
    let FsGroupOutcome::Applied(progress) = result.expect("fsGroup is applied") else {
        panic!("the policy is Always");
    };
    assert_eq!((progress.counts.immutable, progress.counts.changed), (1, 2));
    assert_eq!(group_and_mode(&immutable), (0, 0o600));
    assert_eq!(group_and_mode(&other), (GROUP, 0o660));
}

#[test]
fn other_mounts_below_the_root_are_not_changed() {
    in_mount_namespace("other_mounts_below_the_root_are_not_changed", || {
        let (tree, elsewhere) = (Tree::new(), Tree::new());
        let other = tree.directory("other", 0o700);
        let covered = tree.file("covered", 0o600);
        let covered_by_match = tree.file("covered-by-a-matching-file", 0o600);
        let plain = tree.file("plain", 0o600);
        let file = elsewhere.file("file", 0o600);
        let matching_file = elsewhere.file("matching", 0o660);
        lchown(&matching_file, None, Some(GROUP)).expect("its group");
        let mounted = (
            TestMount::tmpfs(&other),
            TestMount::bind(&file, &covered),
            TestMount::bind(&matching_file, &covered_by_match),
        );
        let before = group_and_mode(&other);

        let counts = apply_and_count(tree.open(), GROUP);

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
fn fsgroup_is_applied_to_writable_detached_mounts_only() {
    let image = Image::ext4(&[]);
    let loop_device = image.attach();
    let mount = |list: &[&str]| {
        mount_detached(&MountRequest {
            device: &loop_device.facts(),
            fstype: "ext4",
            options: &options::parse(list).expect("the options are valid"),
            exclusive: true,
        })
        .expect("the volume is mounted")
    };
    let volume = mount(&["rw"]);
    // The two entries are the root and lost+found.
    assert_eq!(apply_and_count(&volume, GROUP).changed, 2);
    drop(volume);
    support::wait_until_free(&loop_device.device());
    let outcome =
        try_apply(mount(&["ro"]), GROUP + 1).expect("a read-only mount is skipped, as by kubelet");
    assert_eq!(outcome, FsGroupOutcome::ReadOnly);
}
