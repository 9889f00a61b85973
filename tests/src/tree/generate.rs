//! Generates a tree with every kind of entry that a walk may treat wrongly.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, lchown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::unistd::mkfifo;

use super::Snapshot;
use crate::random::Random;
use crate::{Run, TestDir};

const MODES: [u32; 18] = [
    0, 0o777, 0o7777, 0o600, 0o640, 0o644, 0o660, 0o664, 0o755, 0o770, 0o2770, 0o2775, 0o1777,
    0o4755, 0o2755, 0o6711, 0o2644, 0o4000,
];
const OWNERS: [u32; 4] = [0, 1000, 65534, 2_000_000_000];
/// The depth of the tree. It is above the number of directories that a walk keeps open.
const DEPTH: usize = 80;
/// The number of entries in a wide directory. They don't fit into one buffer of a listing.
const WIDTH: usize = 150;

/// Files outside of the volume that links in the volume point to.
#[derive(Debug)]
pub struct OutsideFiles {
    directory: PathBuf,
    before: Snapshot,
    host: Vec<(PathBuf, Permissions, u32, u32)>,
}

impl OutsideFiles {
    /// Creates a directory with files, and records the state of some files of the host.
    pub fn new(dir: &TestDir) -> Self {
        let directory = dir.subdir("outside");
        fs::create_dir(directory.join("directory")).expect("mkdir");
        for file in ["file", "directory/file"] {
            let path = directory.join(file);
            fs::write(&path, "not the volume's").expect("write");
            fs::set_permissions(&path, Permissions::from_mode(0o4600)).expect("chmod");
        }
        let host = ["/etc", "/etc/passwd", "/etc/shadow", "/etc/group", "/"];
        Self {
            before: Snapshot::take(&directory),
            directory,
            host: host.map(|path| of_the_host(Path::new(path))).into(),
        }
    }

    /// Checks that nothing outside of the volume has changed.
    #[track_caller]
    pub fn assert_unchanged(&self) {
        Snapshot::take(&self.directory).assert_is(&self.before);
        for before in &self.host {
            assert_eq!(of_the_host(&before.0), *before, "a link was followed");
        }
    }
}

/// Returns only what a walk would change, because packages may be installed at the same time.
fn of_the_host(path: &Path) -> (PathBuf, Permissions, u32, u32) {
    let info = fs::metadata(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    let (uid, gid) = (
        std::os::unix::fs::MetadataExt::uid(&info),
        std::os::unix::fs::MetadataExt::gid(&info),
    );
    (path.to_owned(), info.permissions(), uid, gid)
}

/// Fills `root` with several hundred entries, which are the same for the same seed. Some belong to `group` already, so
/// that they need no change for an fsGroup of that number.
///
/// Entries with known names are `setuid` (4755), `setgid-file` (2755), `right` (0660, `group`) and `deep`.
pub fn generate(root: &Path, outside: &OutsideFiles, group: u32, seed: u64) {
    let mut generator = TreeGenerator {
        random: Random::new(seed),
        groups: vec![0, group, group + 1, 65534],
    };
    generator.create_plain(root);
    generator.create_odd_names(root);
    generator.create_special(root);
    generator.create_deep_and_wide(root);
    links(root, outside);
    generator.create_hard_links(root);
    generator.create_named(root, group);
    generator.create_frozen(root);
}

struct TreeGenerator {
    random: Random,
    groups: Vec<u32>,
}

impl TreeGenerator {
    /// Gives an entry a random owner, group and mode.
    fn set_random_owner(&mut self, path: &Path) {
        let (uid, gid) = (*self.random.pick(&OWNERS), *self.random.pick(&self.groups));
        let mode = *self.random.pick(&MODES);
        set(path, uid, gid, mode);
    }

    fn create_file(&mut self, path: &Path) {
        let content = vec![b'x'; self.random.below(2000)];
        fs::write(path, content).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        self.set_random_owner(path);
    }

    fn create_directory(&mut self, path: &Path) {
        fs::create_dir(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        self.set_random_owner(path);
    }

    fn create_plain(&mut self, root: &Path) {
        let mut directories = vec![root.to_owned()];
        for number in 0..200 {
            let parent = self.random.pick(&directories).clone();
            if self.random.once_in(4) {
                let path = parent.join(format!("directory-{number}"));
                self.create_directory(&path);
                directories.push(path);
            } else if self.random.once_in(6) {
                let path = parent.join(format!("link-{number}"));
                let target = self.random.pick(&directories);
                let target = Path::new(".").join(target.strip_prefix(root).expect("below"));
                symlink(target, &path).expect("symlink");
                let (uid, gid) = (*self.random.pick(&OWNERS), *self.random.pick(&self.groups));
                lchown(&path, Some(uid), Some(gid)).expect("lchown");
            } else {
                self.create_file(&parent.join(format!("file-{number}")));
            }
        }
    }

    fn create_odd_names(&mut self, root: &Path) {
        let longest = [b'n'; 255];
        let umlauts = "ü".repeat(127);
        let names: [&[u8]; 18] = [
            b"new\nline",
            b"\xff\xfe",
            b"\x80",
            b"-rf",
            b"--",
            b" ",
            b"...",
            b".hidden",
            b"*",
            b"\\",
            b"\"",
            b"$(id)",
            b"tab\t",
            b"\x01",
            b"trailing ",
            &longest,
            umlauts.as_bytes(),
            "e\u{301}".as_bytes(),
        ];
        let (files, directories) = (root.join("odd files"), root.join("odd directories"));
        self.create_directory(&files);
        self.create_directory(&directories);
        for name in names.map(OsStr::from_bytes) {
            self.create_file(&files.join(name));
            self.create_directory(&directories.join(name));
            self.create_file(&directories.join(name).join(name));
        }
    }

    fn create_special(&mut self, root: &Path) {
        let at = root.join("special");
        self.create_directory(&at);
        let mode = Mode::from_bits_truncate(0o600);
        mkfifo(&at.join("fifo"), mode).expect("mkfifo");
        drop(UnixListener::bind(at.join("socket")).expect("a socket"));
        for (name, kind, number) in [
            ("null", SFlag::S_IFCHR, makedev(1, 3)),
            // No driver has these numbers, so opening the node fails with ENXIO. (xfs accepts no major number above
            // 511.)
            ("no driver", SFlag::S_IFCHR, makedev(400, 1)),
            ("block", SFlag::S_IFBLK, makedev(400, 1)),
        ] {
            mknod(&at.join(name), kind, mode, number).expect("mknod");
        }
        for name in ["fifo", "socket", "null", "no driver", "block"] {
            self.set_random_owner(&at.join(name));
        }
    }

    fn create_deep_and_wide(&mut self, root: &Path) {
        let mut path = root.join("deep");
        self.create_directory(&path);
        for _ in 0..DEPTH {
            path.push("d");
            self.create_directory(&path);
        }
        self.create_file(&path.join("bottom"));
        let wide = root.join("wide");
        self.create_directory(&wide);
        for number in 0..WIDTH {
            self.create_file(&wide.join(format!("{number}")));
        }
    }

    /// Creates several names of one inode in different directories, which are walked one after the other.
    fn create_hard_links(&mut self, root: &Path) {
        let (one, other) = (root.join("hard links"), root.join("more hard links"));
        self.create_directory(&one);
        self.create_directory(&other);
        for (number, mode) in MODES.into_iter().enumerate() {
            let file = one.join(format!("{number}"));
            self.create_file(&file);
            set(&file, 1000, 1000, mode);
            for link in [
                one.join(format!("{number} again")),
                other.join(format!("{number}")),
            ] {
                fs::hard_link(&file, link).expect("link");
            }
        }
        // link(2) does not follow a symbolic link.
        fs::hard_link(root.join("to a file outside"), other.join("link")).expect("link");
        fs::hard_link(root.join("special/fifo"), other.join("fifo")).expect("link");
    }

    fn create_named(&mut self, root: &Path, group: u32) {
        for (name, gid, mode) in [
            ("setuid", 1000, 0o4755),
            ("setgid-file", 1000, 0o2755),
            ("right", group, 0o660),
        ] {
            self.create_file(&root.join(name));
            set(&root.join(name), 1000, gid, mode);
        }
    }

    /// Creates entries whose owner and mode can't be changed, not even by root (chattr(1)).
    fn create_frozen(&mut self, root: &Path) {
        let at = root.join("frozen");
        self.create_directory(&at);
        self.create_file(&at.join("immutable"));
        self.create_directory(&at.join("append only"));
        self.create_file(&at.join("append only/file"));
        for (name, flag) in [("immutable", "+i"), ("append only", "+a")] {
            let path = at.join(name);
            set(&path, 1000, 1000, 0o600);
            let _ = Run::capture(Command::new("chattr").arg(flag).arg(path)).success();
        }
    }
}

fn links(root: &Path, outside: &OutsideFiles) {
    let outside = &outside.directory;
    let up = "../".repeat(20);
    let far = PathBuf::from(format!("{up}{}", outside.display()));
    let long = "x/".repeat(400);
    for (name, target) in [
        ("to a file outside", outside.join("file")),
        ("to a directory outside", outside.join("directory")),
        ("up to a file outside", far.join("file")),
        ("up to a directory outside", far.join("directory")),
        ("passwd", "/etc/passwd".into()),
        ("up to shadow", format!("{up}etc/shadow").into()),
        ("etc", "/etc".into()),
        ("/", "/".into()),
        ("process", "/proc/self/root".into()),
        ("descriptor", "/proc/self/fd/0".into()),
        ("dangling", "nowhere".into()),
        ("dangling outside", outside.join("nowhere")),
        ("self", "self".into()),
        ("one", "other".into()),
        ("other", "one".into()),
        ("here", ".".into()),
        ("above", "..".into()),
        ("inside", "odd files".into()),
        ("long", long.into()),
    ] {
        let name = name.replace('/', "root");
        symlink(&target, root.join(&name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    symlink("../../..", root.join("deep/d/d/loop")).expect("symlink");
    lchown(root.join("passwd"), Some(1000), Some(1000)).expect("lchown");
}

/// Sets the mode after the owner, because chown clears the setuid bit.
fn set(path: &Path, uid: u32, gid: u32, mode: u32) {
    lchown(path, Some(uid), Some(gid)).unwrap_or_else(|error| panic!("lchown {path:?}: {error}"));
    fs::set_permissions(path, Permissions::from_mode(mode))
        .unwrap_or_else(|error| panic!("chmod {path:?}: {error}"));
}
