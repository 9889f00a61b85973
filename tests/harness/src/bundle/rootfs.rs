//! The root file system of bundles: a static busybox, and the directories that every container has.

use std::fs;
use std::os::unix::fs::{PermissionsExt, lchown, symlink};
use std::path::Path;

/// busybox from Debian's package busybox-static.
pub const BUSYBOX: &str = "/bin/busybox";

/// The commands of busybox that get a link.
pub const APPLETS: [&str; 48] = [
    "awk", "cat", "chgrp", "chmod", "chown", "cmp", "cp", "cut", "date", "dd", "df", "echo", "env",
    "false", "find", "grep", "head", "hostname", "id", "kill", "ln", "ls", "mkdir", "mkfifo",
    "mknod", "mount", "mv", "ps", "pwd", "readlink", "rm", "rmdir", "sed", "sh", "sleep", "sort",
    "stat", "sync", "tail", "test", "touch", "true", "umount", "uniq", "wc", "which", "xargs",
    "hexdump",
];

/// The directories below the root.
pub const DIRECTORIES: [&str; 10] = [
    "bin", "dev", "etc", "proc", "root", "run", "sys", "tmp", "usr", "var",
];

/// Small files and their content.
pub const FILES: [(&str, &str); 2] = [
    ("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n"),
    ("etc/group", "root:x:0:\n"),
];

/// Creates a root file system. Every container has its own, so that none sees files of another.
pub fn make(root: &Path) {
    for directory in DIRECTORIES {
        fs::create_dir_all(root.join(directory)).expect("mkdir in a rootfs");
    }
    fs::set_permissions(root.join("tmp"), fs::Permissions::from_mode(0o1777)).expect("chmod");
    fs::copy(BUSYBOX, root.join("bin/busybox")).expect("a copy of busybox (busybox-static)");
    for applet in APPLETS {
        symlink("busybox", root.join("bin").join(applet)).expect("a link to busybox");
    }
    for (path, content) in FILES {
        fs::write(root.join(path), content).expect("a file in a rootfs");
    }
}

/// Changes the owner of the root and its directories, so that a runtime can create mount points as root of a user
/// namespace.
pub fn chown(root: &Path, user: u32, group: u32) {
    lchown(root, Some(user), Some(group)).expect("chown a rootfs");
    for directory in DIRECTORIES {
        lchown(root.join(directory), Some(user), Some(group)).expect("chown in a rootfs");
    }
}
