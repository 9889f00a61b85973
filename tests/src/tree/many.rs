//! A tree of very many entries, made fast.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nix::sys::stat::{Mode, SFlag, mknod};

/// Makes so many directories, named by their number, with so many empty files in each: one call a
/// file, where open and close would be two. All are root's, files 0644 and directories 0755.
pub fn many(root: &Path, directories: usize, files: usize) {
    let mode = Mode::from_bits_truncate(0o644);
    for directory in 0..directories {
        let directory = root.join(directory.to_string());
        fs::create_dir(&directory).expect("mkdir");
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).expect("chmod");
        let mut file = directory.join("0");
        for number in 0..files {
            file.set_file_name(number.to_string());
            mknod(&file, SFlag::S_IFREG, mode, 0)
                .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        }
    }
}
