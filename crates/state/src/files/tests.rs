use std::os::unix::fs::{PermissionsExt, chown, symlink};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::*;

fn directory() -> (tempfile::TempDir, Directory) {
    let temporary = tempfile::tempdir().unwrap();
    let directory = Directory::create(&temporary.path().join("crust")).unwrap();
    (temporary, directory)
}

#[test]
fn files_are_roots_alone_and_replaced_whole() {
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
fn what_root_would_not_have_left_there_is_refused() {
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
    for (name, why) in [
        ("link", "is a symbolic link"),
        ("foreign", "isn't owned by root"),
        ("open", "can be written by others"),
        ("big", "is larger than 64 KiB"),
        ("fifo", "is no regular file"),
        ("socket", "is no regular file"),
        ("directory", "is no regular file"),
    ] {
        let error = directory.read(name).unwrap_err().to_string();
        assert!(
            error.contains(why) && error.contains(name),
            "{name}: {error}"
        );
    }
    assert!(directory.read("largest").is_ok());
    symlink("directory", file("linked-directory")).unwrap();
    let error = directory
        .open_directory("linked-directory")
        .unwrap_err()
        .to_string();
    assert!(error.contains("is a link or no directory"), "{error}");
    std::fs::set_permissions(file("directory"), PermissionsExt::from_mode(0o770)).unwrap();
    let error = directory
        .open_directory("directory")
        .unwrap_err()
        .to_string();
    assert!(error.contains("can be written by others"), "{error}");
}

/// Whoever can change a part of the way can put another directory of root's there.
#[test]
fn a_way_that_others_can_change_is_not_gone() {
    let lab = tempfile::tempdir().unwrap();
    let at = |name: &str| lab.path().join(name);
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
    // They can't rename what is root's there.
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
    assert!(error.contains("last is a link or no directory"), "{error}");
    assert!(Directory::open(&at("none/crust")).unwrap().is_none());
}

/// Umasks of callers that forbid others nothing, and root everything.
#[test]
fn directories_on_the_way_are_made_for_root_alone() {
    for (umask, above) in [(Mode::empty(), 0o755), (Mode::RWXU, 0o055)] {
        let lab = tempfile::tempdir().unwrap();
        let before = rustix::process::umask(umask);
        let made = Directory::create(&lab.path().join("a/b/crust"));
        let inner = made.and_then(|made| made.create_directory("inner").map(drop));
        rustix::process::umask(before);
        inner.unwrap();
        let mode_of = |name: &str| {
            lab.path()
                .join(name)
                .metadata()
                .unwrap()
                .permissions()
                .mode()
        };
        let modes = ["a", "a/b", "a/b/crust", "a/b/crust/inner"].map(|name| mode_of(name) & 0o777);
        assert_eq!(modes, [above, above, 0o700, 0o700]);
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
fn what_is_no_file_is_no_lock() {
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
fn a_directory_comes_and_goes_whole() {
    let (_guard, directory) = directory();
    directory
        .add_directory("entry", &[("a", b"1"), ("b", b"2")])
        .unwrap();
    let entry = directory.open_directory("entry").unwrap().unwrap();
    assert_eq!(entry.read("b").unwrap().unwrap(), b"2");
    let again = directory
        .add_directory("entry", &[("a", b"9")])
        .unwrap_err()
        .to_string();
    assert!(again.contains("renameat2"), "{again}");
    assert_eq!(
        entry.read("a").unwrap().unwrap(),
        b"1",
        "the entry there was kept"
    );
    directory.remove_directory("entry").unwrap();
    directory.remove_directory("entry").unwrap();
    assert_eq!(directory.names().unwrap(), Vec::<String>::new());
}

/// This process may have fewer files than a node has volumes.
pub(crate) fn limit_open_files() {
    let most = getrlimit(Resource::Nofile);
    let current = Some(128);
    setrlimit(Resource::Nofile, Rlimit { current, ..most }).unwrap();
}

#[test]
fn a_record_is_removed_by_what_it_is_then() {
    let (_guard, directory) = directory();
    let remove = |over: &str, other: Option<&str>| {
        directory.remove_if("record", |bytes| {
            // Whoever is killed here has taken nothing away.
            assert_eq!(directory.read("record").unwrap().unwrap(), bytes);
            if let Some(other) = other {
                directory.write("record", other.as_bytes()).unwrap();
            }
            bytes == over.as_bytes()
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
    for (over, newer) in [("old", "newer"), ("newer", "newest")] {
        assert!(!remove(over, Some(newer)).unwrap());
        is(Some(newer));
    }
    assert!(remove("newest", None).unwrap());
    is(None);
    symlink("elsewhere", directory.path().join("record")).unwrap();
    let error = remove("old", None).unwrap_err().to_string();
    assert!(error.contains("is a symbolic link"), "{error}");
    assert_eq!(directory.names().unwrap(), ["record"]);
}
