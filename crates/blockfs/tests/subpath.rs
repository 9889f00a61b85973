//! Tests of subPaths on real trees. They need root.
#![allow(
    clippy::disallowed_methods,
    reason = "tests run programs and prepare files by path"
)]

mod support;

use std::ffi::OsStr;
use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, lchown, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crust_blockfs::filesystem::{MountRequest, mount_detached};
use crust_blockfs::options;
use crust_blockfs::subpath::{
    MissingPolicy, MountPointType, ResolvedSubpath, SubpathError, resolve,
};
use rustix::fs::{
    CWD, FileType, Mode, OFlags, RenameFlags, ResolveFlags, fcntl_getfl, fstat, mknodat, openat2,
};
use rustix::io::Errno;
use support::{Image, TestMount, Tree, group_and_mode, in_mount_namespace, set_mode};

fn try_resolve(
    tree: &Tree,
    subpath: impl AsRef<Path>,
    missing: MissingPolicy,
) -> Result<ResolvedSubpath, SubpathError> {
    resolve(tree.open().as_fd(), subpath.as_ref(), missing)
}

/// Checks that resolving fails, and returns the message of the error. It must not contain the path of the volume.
fn expect_error(tree: &Tree, subpath: &str, missing: MissingPolicy) -> String {
    let error = try_resolve(tree, subpath, missing).expect_err(subpath);
    let (message, details) = (error.to_string(), format!("{error:?}"));
    let host = tree.root().to_str().expect("a plain path");
    assert!(
        !message.contains(host) && !details.contains(host),
        "{details}"
    );
    assert!(
        message.starts_with(&format!("subPath {subpath:?}: ")),
        "{message}"
    );
    message
}

/// Returns true if a resolved subPath is the file or directory at a path.
fn is_same_file(resolved: &ResolvedSubpath, path: &Path) -> bool {
    let (stat, expected) = (fstat(&resolved.fd), fs::symlink_metadata(path));
    let (stat, expected) = (stat.expect("fstat"), expected.expect("the entry"));
    (stat.st_dev, stat.st_ino) == (expected.dev(), expected.ino())
}

#[test]
fn directories_and_files_are_found_as_path_descriptors() {
    let tree = Tree::new();
    let directory = tree.directory("a", 0o755);
    let file = tree.file("a/file", 0o644);
    for (subpath, path, kind) in [
        ("", tree.root(), MountPointType::Directory),
        (".", tree.root(), MountPointType::Directory),
        ("a", &directory, MountPointType::Directory),
        ("a/", &directory, MountPointType::Directory),
        ("./a//.", &directory, MountPointType::Directory),
        ("a/file", &file, MountPointType::File),
    ] {
        let resolved = try_resolve(&tree, subpath, MissingPolicy::Refuse).expect(subpath);
        assert_eq!(resolved.kind, kind, "{subpath}");
        assert!(is_same_file(&resolved, path), "{subpath}");
        let flags = fcntl_getfl(&resolved.fd).expect("its flags");
        assert!(flags.contains(OFlags::PATH), "{flags:?}");
    }
}

#[test]
fn names_may_be_any_bytes() {
    let tree = Tree::new();
    let name = OsStr::from_bytes(b"new\nline \xff");
    let made = try_resolve(&tree, name, MissingPolicy::Create).expect("the directory is created");
    assert!(is_same_file(&made, &tree.root().join(name)));
}

#[test]
fn relative_links_inside_the_volume_are_followed() {
    let tree = Tree::new();
    let directory = tree.directory("a", 0o755);
    let file = tree.file("a/file", 0o644);
    tree.directory("b", 0o755);
    for (link, target) in [
        ("to-a", "a"),
        ("to-file", "a/file"),
        ("b/up", "../a"),
        ("b/up2", "up"),
    ] {
        symlink(target, tree.root().join(link)).expect("a link");
    }
    for (subpath, path, kind) in [
        ("to-a", directory.as_path(), MountPointType::Directory),
        ("to-a/file", &file, MountPointType::File),
        ("to-file", &file, MountPointType::File),
        ("b/up", &directory, MountPointType::Directory),
        ("b/up2/file", &file, MountPointType::File),
    ] {
        let resolved = try_resolve(&tree, subpath, MissingPolicy::Refuse).expect(subpath);
        assert_eq!(resolved.kind, kind, "{subpath}");
        assert!(is_same_file(&resolved, path), "{subpath}");
    }
    let made = try_resolve(&tree, "b/up/new/deep", MissingPolicy::Create)
        .expect("the directory is created");
    assert!(is_same_file(&made, &directory.join("new/deep")));
}

#[test]
fn a_link_out_of_the_volume_is_refused() {
    let (tree, outside) = (Tree::new(), Tree::new());
    let inside = tree.directory("inside", 0o755);
    // All of these links lead to directories of this test, including the magic link in /proc.
    let open = outside.open();
    let magic = format!("/proc/{}/fd/{}", std::process::id(), open.as_raw_fd());
    let outer = outside
        .root()
        .parent()
        .and_then(Path::file_name)
        .expect("a name");
    let relative = Path::new("../..").join(outer).join("volume");
    for (link, target) in [
        ("absolute", outside.root()),
        ("absolute-inside", &inside),
        ("relative", &relative),
        ("parent", Path::new("..")),
        ("climbing", Path::new("inside/../../volume/inside")),
        ("magic", Path::new(&magic)),
    ] {
        symlink(target, tree.root().join(link)).expect("a link");
        assert!(
            tree.root().join(link).is_dir(),
            "{link} leads to a directory"
        );
    }
    for link in [
        "absolute",
        "absolute-inside",
        "relative",
        "parent",
        "climbing",
        "magic",
    ] {
        for subpath in [link.to_owned(), format!("{link}/new")] {
            for missing in [MissingPolicy::Refuse, MissingPolicy::Create] {
                let message = expect_error(&tree, &subpath, missing);
                assert!(message.contains("leads out of the volume"), "{message}");
            }
        }
    }
    assert_eq!(fs::read_dir(outside.root()).expect("a listing").count(), 0);
}

#[test]
fn a_loop_of_links_is_refused() {
    let tree = Tree::new();
    symlink("b", tree.root().join("a")).expect("a link");
    symlink("a", tree.root().join("b")).expect("a link");
    for missing in [MissingPolicy::Refuse, MissingPolicy::Create] {
        assert!(expect_error(&tree, "a/x", missing).contains("too many symbolic links"));
    }
}

#[test]
fn a_dangling_link_is_refused_and_its_target_is_not_made() {
    let tree = Tree::new();
    symlink("nowhere", tree.root().join("link")).expect("a link");
    for subpath in ["link", "link/below"] {
        let message = expect_error(&tree, subpath, MissingPolicy::Create);
        assert!(
            message.contains("a link to something that doesn't exist"),
            "{message}"
        );
        assert!(expect_error(&tree, subpath, MissingPolicy::Refuse).contains("ENOENT"));
    }
    assert!(!tree.root().join("nowhere").exists());
}

#[test]
fn directories_are_made_with_the_roots_mode_despite_the_umask() {
    let status = || fs::read_to_string("/proc/self/status").expect("our own status");
    let umask = || {
        status()
            .lines()
            .find(|line| line.starts_with("Umask:"))
            .map(str::to_owned)
    };
    let previous = umask();
    for (mode, expected) in [
        (0o2770, 0o2770),
        (0o777, 0o777),
        (0o3775, 0o2775),
        (0o700, 0o700),
    ] {
        let tree = Tree::new();
        lchown(tree.root(), None, Some(2000)).expect("the root's group");
        set_mode(tree.root(), mode);
        let old = tree.directory("old", 0o711);
        set_mode(&old, 0o711);
        let made = try_resolve(&tree, "old/a/b/c", MissingPolicy::Create)
            .expect("the directory is created");
        assert_eq!(made.kind, MountPointType::Directory);
        assert!(is_same_file(&made, &old.join("a/b/c")));
        for new in ["old/a", "old/a/b", "old/a/b/c"] {
            assert_eq!(
                group_and_mode(&tree.root().join(new)).1,
                expected,
                "{new} for {mode:o}"
            );
        }
        assert_eq!(
            group_and_mode(&old).1,
            0o711,
            "an existing directory is not changed"
        );
        let existing =
            try_resolve(&tree, "old/a/b/c", MissingPolicy::Create).expect("the directory exists");
        assert!(is_same_file(&existing, &old.join("a/b/c")));
    }
    assert_eq!(umask(), previous, "the umask is restored");
}

#[test]
fn a_missing_subpath_is_not_made_with_refuse() {
    let tree = Tree::new();
    assert!(expect_error(&tree, "a/b", MissingPolicy::Refuse).contains("ENOENT"));
    assert_eq!(fs::read_dir(tree.root()).expect("a listing").count(), 0);
}

#[test]
fn a_path_below_a_file_is_refused() {
    let tree = Tree::new();
    tree.file("file", 0o644);
    for missing in [MissingPolicy::Refuse, MissingPolicy::Create] {
        assert!(expect_error(&tree, "file/x", missing).contains("ENOTDIR"));
    }
}

#[test]
fn special_files_are_resolved_without_being_opened() {
    let tree = Tree::new();
    let root = tree.root();
    // Opening the named pipe would wait for a writer forever.
    mknodat(CWD, root.join("fifo"), FileType::Fifo, Mode::from(0o600), 0).expect("a named pipe");
    for (name, kind) in [
        ("char", FileType::CharacterDevice),
        ("block", FileType::BlockDevice),
    ] {
        let number = rustix::fs::makedev(4000, 1);
        mknodat(CWD, root.join(name), kind, Mode::from(0o600), number).expect("a device");
    }
    drop(std::os::unix::net::UnixListener::bind(root.join("socket")).expect("a socket"));
    for (name, kind) in [
        ("fifo", FileType::Fifo),
        ("char", FileType::CharacterDevice),
        ("block", FileType::BlockDevice),
        ("socket", FileType::Socket),
    ] {
        for missing in [MissingPolicy::Refuse, MissingPolicy::Create] {
            let resolved = resolve(tree.open(), Path::new(name), missing).expect(name);
            assert_eq!(resolved.kind, MountPointType::File, "{name}");
            let stat = fstat(&resolved.fd).expect("the descriptor is valid");
            assert_eq!(FileType::from_raw_mode(stat.st_mode), kind, "{name}");
            let flags = fcntl_getfl(&resolved.fd).expect("the descriptor is valid");
            assert!(flags.contains(OFlags::PATH), "{name} was opened");
        }
        assert!(
            expect_error(&tree, &format!("{name}/x"), MissingPolicy::Create).contains("ENOTDIR")
        );
    }
}

#[test]
fn another_mount_in_the_volume_is_not_entered() {
    in_mount_namespace("another_mount_in_the_volume_is_not_entered", || {
        let tree = Tree::new();
        let other = tree.directory("other", 0o755);
        let mounted = TestMount::tmpfs(&other);
        let message = expect_error(&tree, "other/x", MissingPolicy::Create);
        assert!(message.contains("leads out of the volume"), "{message}");
        assert_eq!(fs::read_dir(&other).expect("a listing").count(), 0);
        drop(mounted);
    });
}

#[test]
fn subpaths_are_made_in_a_writable_detached_volume() {
    let image = Image::ext4(&[]);
    let loop_device = image.attach();
    for (option, expected) in [
        ("rw", None),
        ("ro", Some("EROFS: doesn't exist, and the volume")),
    ] {
        let volume = mount_detached(&MountRequest {
            device: &loop_device.facts(),
            fstype: "ext4",
            options: &options::parse(&[option]).expect("the option is valid"),
            exclusive: true,
        })
        .expect("the volume is mounted");
        let missing = Path::new(option).join("new");
        let result = resolve(volume.as_fd(), &missing, MissingPolicy::Create);
        match expected {
            None => assert_eq!(
                result.expect("the directory is created").kind,
                MountPointType::Directory
            ),
            Some(words) => {
                let message = result.expect_err("the volume is read-only").to_string();
                assert!(message.contains(words), "{message}");
                let existing = resolve(volume.as_fd(), Path::new("rw/new"), MissingPolicy::Create);
                assert_eq!(
                    existing.expect("the directory exists").kind,
                    MountPointType::Directory
                );
            }
        }
        drop(volume);
        support::wait_until_free(&loop_device.device());
    }
}

/// openat2(2) fails with EAGAIN if anything on the system is renamed while it resolves a `..`, because it then can't
/// know whether the path stays inside.
#[test]
fn a_lookup_that_is_disturbed_by_renames_is_retried() {
    let (tree, elsewhere) = (Tree::new(), Tree::new());
    let directory = tree.directory("d", 0o755);
    symlink(format!("{}d", "d/../".repeat(5)), tree.root().join("l")).expect("a link");
    let names = ["a", "b"].map(|name| elsewhere.root().join(name));
    elsewhere.file("a", 0o600);
    let stop = AtomicBool::new(false);
    let open_once = || {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        openat2(
            tree.open(),
            "l",
            flags,
            Mode::empty(),
            ResolveFlags::BENEATH,
        )
    };
    let (disturbed, failed) = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                fs::rename(&names[0], &names[1]).expect("the first rename");
                fs::rename(&names[1], &names[0]).expect("the second rename");
            }
        });
        let (mut disturbed, mut failed) = (0, Vec::new());
        // The number of lookups is so large that some of them are disturbed in any case.
        for _ in 0..200_000 {
            match try_resolve(&tree, "l", MissingPolicy::Refuse) {
                Ok(found) if is_same_file(&found, &directory) => {}
                other => failed.push(other),
            }
            disturbed += u32::from(open_once().is_err_and(|errno| errno == Errno::AGAIN));
            if disturbed == 100 {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
        (disturbed, failed)
    });
    assert_eq!(disturbed, 100, "renames didn't disturb the lookups");
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
fn concurrent_calls_return_the_same_new_directory() {
    for round in 0..20 {
        let tree = Tree::new();
        set_mode(tree.root(), 0o2770);
        std::thread::scope(|scope| {
            let attempt = || try_resolve(&tree, "a/b/c/d", MissingPolicy::Create);
            let makers: Vec<_> = (0..4).map(|_| scope.spawn(attempt)).collect();
            for maker in makers {
                let made = maker
                    .join()
                    .expect("no panic")
                    .expect("the directory is created");
                assert!(
                    is_same_file(&made, &tree.root().join("a/b/c/d")),
                    "round {round}"
                );
            }
        });
        assert_eq!(group_and_mode(&tree.root().join("a/b/c/d")).1, 0o2770);
    }
}

/// A component is exchanged with a link out of the volume while it is resolved.
#[test]
fn a_component_that_becomes_a_link_is_not_followed() {
    let (tree, outside) = (Tree::new(), Tree::new());
    outside.directory("there", 0o755);
    tree.directory("a", 0o755);
    let there = tree.directory("a/there", 0o755);
    let inside = fs::metadata(&there).expect("the directory exists").ino();
    let (entry, link) = (tree.root().join("a"), tree.root().join("b"));
    symlink(outside.root(), &link).expect("a link");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let exchange = RenameFlags::EXCHANGE;
                rustix::fs::renameat_with(CWD, &entry, CWD, &link, exchange).expect("an exchange");
            }
        });
        let found: Vec<_> = (0..5000)
            .map(|_| {
                (
                    try_resolve(&tree, "a/there", MissingPolicy::Refuse),
                    try_resolve(&tree, "a/new/x", MissingPolicy::Create),
                )
            })
            .collect();
        stop.store(true, Ordering::Relaxed);
        for (found, _) in found {
            if let Ok(found) = found {
                assert_eq!(fstat(&found.fd).expect("fstat").st_ino, inside);
            }
        }
    });
    assert_eq!(fs::read_dir(outside.root()).expect("a listing").count(), 1);
}
