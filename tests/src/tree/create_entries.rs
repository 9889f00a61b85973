//! Creates trees with millions of entries quickly.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nix::sys::stat::{Mode, SFlag, mknod};

/// Creates directories that are named by number, with `names` entries in each, which are numbered too. The first
/// `files` entries are empty files, and the others are further hard links to them. Everything belongs to root, with
/// mode 0644 for files and 0755 for directories.
///
/// Inodes take time, when they are created and again at unmount. Hard links are quick to create, and a walk visits
/// every name.
pub fn create_entries(root: &Path, directories: usize, names: usize, files: usize) {
    let mode = Mode::from_bits_truncate(0o644);
    for directory in 0..directories {
        let directory = root.join(directory.to_string());
        fs::create_dir(&directory).expect("mkdir");
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).expect("chmod");
        let at = |number: usize| directory.join(number.to_string());
        for number in 0..names.min(files) {
            // mknod is one system call instead of two, open and close.
            mknod(&at(number), SFlag::S_IFREG, mode, 0).expect("mknod");
        }
        for number in files..names {
            fs::hard_link(at(number % files), at(number)).expect("link");
        }
    }
}
