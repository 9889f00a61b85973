use std::os::unix::fs::{PermissionsExt, chown, symlink};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::*;

fn directory() -> (tempfile::TempDir, Directory) {
    let temporary = tempfile::tempdir().unwrap();
    let directory = Directory::create(&temporary.path().join("crust")).unwrap();
    (temporary, directory)
}

#[test]
fn files_are_private_to_root_and_replaced_atomically() {
    let (_guard, directory) = directory();
    assert_eq!(directory.read("a").unwrap(), None);
    directory.write("a", b"one").unwrap();
    directory.write("a", b"two").unwrap();
    assert_eq!(directory.read("a").unwrap().unwrap(), b"two");
    let mode = directory
        .path()
        .join("a")
        .metadata()
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let mode = directory.path().metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    assert_eq!(
        directory.names().unwrap(),
        ["a"],
        "no temporary file is left"
    );
}

#[test]
fn files_that_others_could_have_changed_are_refused() {
    let (_guard, directory) = directory();
    let path = directory.path().to_owned();
    let file = |name: &str| path.join(name);
    directory.write("good", b"{}").unwrap();
    symlink("good", file("link")).unwrap();
    directory.write("foreign", b"{}").unwrap();
    chown(file("foreign"), Some(1000), None).unwrap();
    directory.write("open", b"{}").unwrap();
    std::fs::set_permissions(file("open"), PermissionsExt::from_mode(0o620)).unwrap();
    directory.write("big", &vec![b' '; 64 * 1024 + 1]).unwrap();
    directory.write("largest", &vec![b' '; 64 * 1024]).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, file("fifo"), Mode::RUSR).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(file("socket")).unwrap();
    std::fs::create_dir(file("directory")).unwrap();
    for (name, reason) in [
        ("link", "is a symbolic link"),
        ("foreign", "isn't owned by root"),
        ("open", "can be written by others"),
        ("big", "is larger than 64 KiB"),
        ("fifo", "isn't a regular file"),
        ("socket", "isn't a regular file"),
        ("directory", "isn't a regular file"),
    ] {
        let error = directory.read(name).unwrap_err().to_string();
        assert!(
            error.contains(reason) && error.contains(name),
            "{name}: {error}"
        );
    }
    assert!(directory.read("largest").is_ok());
    symlink("directory", file("linked-directory")).unwrap();
    let error = directory
        .open_directory("linked-directory")
        .unwrap_err()
        .to_string();
    assert!(error.contains("is a link or not a directory"), "{error}");
    std::fs::set_permissions(file("directory"), PermissionsExt::from_mode(0o770)).unwrap();
    let error = directory
        .open_directory("directory")
        .unwrap_err()
        .to_string();
    assert!(error.contains("can be written by others"), "{error}");
}

/// Other users who can change a parent can make the path lead to another directory that root owns.
#[test]
fn a_directory_below_one_that_others_can_change_is_refused() {
    let temporary = tempfile::tempdir().unwrap();
    let at = |name: &str| temporary.path().join(name);
    let mode = |name: &str, mode| {
        std::fs::set_permissions(at(name), PermissionsExt::from_mode(mode)).unwrap();
    };
    Directory::create(&at("a/b/crust")).unwrap();
    let error = || Directory::open(&at("a/b/crust")).unwrap_err().to_string();
    mode("a", 0o777);
    assert!(
        error().contains("/a can be written by others than root"),
        "{}",
        error()
    );
    mode("a", 0o775);
    assert!(
        error().contains("/a can be written by others than root"),
        "{}",
        error()
    );
    // With the sticky bit, others can't rename root's files.
    mode("a", 0o1777);
    assert!(Directory::open(&at("a/b/crust")).unwrap().is_some());
    chown(at("a/b"), Some(1000), None).unwrap();
    assert!(error().contains("/a/b isn't owned by root"), "{}", error());
    chown(at("a/b"), Some(0), None).unwrap();

    symlink("a/b", at("link")).unwrap();
    assert!(Directory::open(&at("link/crust")).unwrap().is_some());
    std::os::unix::fs::lchown(at("link"), Some(1000), None).unwrap();
    let error = Directory::open(&at("link/crust")).unwrap_err().to_string();
    assert!(error.contains("/link isn't owned by root"), "{error}");
    symlink("crust", at("a/b/last")).unwrap();
    let error = Directory::open(&at("a/b/last")).unwrap_err().to_string();
    assert!(
        error.contains("last is a link or not a directory"),
        "{error}"
    );
    assert!(Directory::open(&at("none/crust")).unwrap().is_none());
}

/// The callers' umasks are an empty one, and one that takes all permissions from root.
#[test]
fn created_directories_have_mode_0700_whatever_the_umask() {
    for (umask, parents) in [(Mode::empty(), 0o755), (Mode::RWXU, 0o055)] {
        let temporary = tempfile::tempdir().unwrap();
        let before = rustix::process::umask(umask);
        let created = Directory::create(&temporary.path().join("a/b/crust"));
        let inner = created.and_then(|created| created.create_directory("inner").map(drop));
        rustix::process::umask(before);
        inner.unwrap();
        let mode_of = |name: &str| {
            temporary
                .path()
                .join(name)
                .metadata()
                .unwrap()
                .permissions()
                .mode()
        };
        let modes = ["a", "a/b", "a/b/crust", "a/b/crust/inner"].map(|name| mode_of(name) & 0o777);
        assert_eq!(modes, [parents, parents, 0o700, 0o700]);
    }
}

#[test]
fn no_name_leads_out_of_a_directory() {
    let (_guard, directory) = directory();
    directory.write("a", b"1").unwrap();
    let inner = directory.create_directory("inner").unwrap();
    for name in ["../a", "/etc/passwd", "../inner/../a"] {
        assert!(inner.read(name).is_err(), "{name}");
        assert!(inner.open_lock(name).is_err(), "{name}");
    }
    for name in ["..", "/", "../inner"] {
        assert!(inner.open_directory(name).is_err(), "{name}");
    }
    assert!(inner.write("../b", b"").is_err());
}

#[test]
fn lock_files_that_others_could_have_changed_are_refused() {
    let (_guard, directory) = directory();
    let file = |name: &str| directory.path().join(name);
    rustix::fs::mkfifoat(rustix::fs::CWD, file("fifo"), Mode::RUSR).unwrap();
    let _ = directory.open_lock("foreign").unwrap();
    chown(file("foreign"), Some(1000), None).unwrap();
    symlink("foreign", file("link")).unwrap();
    for name in ["fifo", "foreign", "link"] {
        assert!(directory.open_lock(name).is_err(), "{name}");
        assert!(directory.find_lock(name).is_err(), "{name}");
    }
    assert!(directory.find_lock("none").unwrap().is_none());
}

#[test]
fn a_directory_is_added_and_removed_with_its_files() {
    let (_guard, directory) = directory();
    directory
        .add_directory("entry", &[("a", b"1"), ("b", b"2")])
        .unwrap();
    let entry = directory.open_directory("entry").unwrap().unwrap();
    assert_eq!(entry.read("b").unwrap().unwrap(), b"2");
    let error = directory
        .add_directory("entry", &[("a", b"9")])
        .unwrap_err()
        .to_string();
    assert!(error.contains("renameat2"), "{error}");
    assert_eq!(
        entry.read("a").unwrap().unwrap(),
        b"1",
        "the existing entry was kept"
    );
    directory.remove_directory("entry").unwrap();
    directory.remove_directory("entry").unwrap();
    assert_eq!(directory.names().unwrap(), Vec::<String>::new());
}

/// Limits this process to fewer open files than a node may have volumes.
pub(crate) fn limit_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let current = Some(128);
    setrlimit(Resource::Nofile, Rlimit { current, ..limit }).unwrap();
}

#[test]
fn a_stale_record_is_removed_unless_it_is_replaced_meanwhile() {
    let (_guard, directory) = directory();
    let remove = |stale: &str, replacement: Option<&str>| {
        directory.remove_if("record", |bytes| {
            // The record still has its name: a process that is killed here has removed nothing.
            assert_eq!(directory.read("record").unwrap().unwrap(), bytes);
            if let Some(replacement) = replacement {
                directory.write("record", replacement.as_bytes()).unwrap();
            }
            bytes == stale.as_bytes()
        })
    };
    let is = |expected: Option<&str>| {
        let bytes = directory.read("record").unwrap();
        assert_eq!(bytes.as_deref(), expected.map(str::as_bytes));
        assert_eq!(directory.names().unwrap().len(), expected.iter().count());
    };
    assert!(remove("old", None).unwrap());
    is(None);
    directory.write("record", b"new").unwrap();
    assert!(!remove("old", None).unwrap());
    is(Some("new"));
    for (stale, newer) in [("old", "newer"), ("newer", "newest")] {
        assert!(!remove(stale, Some(newer)).unwrap());
        is(Some(newer));
    }
    assert!(remove("newest", None).unwrap());
    is(None);
    symlink("elsewhere", directory.path().join("record")).unwrap();
    let error = remove("old", None).unwrap_err().to_string();
    assert!(error.contains("is a symbolic link"), "{error}");
    assert_eq!(directory.names().unwrap(), ["record"]);
}
