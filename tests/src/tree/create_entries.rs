//! A tree of very many entries, made fast.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nix::sys::stat::{Mode, SFlag, mknod};

/// Makes so many directories, named by their number, with so many `names` in each, numbers too:
/// the first `files` of them are empty files, the others further names of those. All are root's,
/// files 0644 and directories 0755.
///
/// The inodes are what costs, when they are made and again when the file system is unmounted; a
/// walk looks at each name.
pub fn create_entries(root: &Path, directories: usize, names: usize, files: usize) {
    let mode = Mode::from_bits_truncate(0o644);
    for directory in 0..directories {
        let directory = root.join(directory.to_string());
        fs::create_dir(&directory).expect("mkdir");
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).expect("chmod");
        let at = |number: usize| directory.join(number.to_string());
        for number in 0..names.min(files) {
            // One call, where open and close would be two.
            mknod(&at(number), SFlag::S_IFREG, mode, 0).expect("mknod");
        }
        for number in files..names {
            fs::hard_link(at(number % files), at(number)).expect("link");
        }
    }
}
