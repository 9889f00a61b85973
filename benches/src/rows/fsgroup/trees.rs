//! The contents of volumes.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;

use runcrust_tests::tree::create_entries;

/// The number of files in an ordinary directory.
const FILES: usize = 100;

/// Creates this many files, a hundred in each directory.
pub(super) fn create_ordinary(root: &Path, files: usize) {
    create_entries(root, files / FILES, FILES, FILES);
}

/// The name of a tree, and the function that creates it.
type Shape = (&'static str, fn(&Path));

/// Trees with which a walk may have problems.
pub(super) const SHAPES: [Shape; 4] = [
    ("one directory of 500k files", create_one_directory),
    ("1,000 levels", create_levels),
    ("100k hard links", create_hard_links),
    ("100k symbolic links", create_symbolic_links),
];

fn create_one_directory(root: &Path) {
    create_entries(root, 1, 500_000, 500_000);
}

/// Creates a chain of directories, each with a few files and further directories.
fn create_levels(root: &Path) {
    let mut directory = root.to_owned();
    for _ in 0..1000 {
        directory.push("d");
        fs::create_dir(&directory).expect("mkdir");
        for name in ["1", "2", "3"] {
            File::create(directory.join(name)).expect("a file");
        }
        for name in ["4", "5"] {
            fs::create_dir(directory.join(name)).expect("mkdir");
        }
    }
}

fn create_hard_links(root: &Path) {
    create_entries(root, 100, 1000, 10);
}

fn create_symbolic_links(root: &Path) {
    for directory in 0..100 {
        let directory = root.join(directory.to_string());
        fs::create_dir(&directory).expect("mkdir");
        for name in 0..1000 {
            symlink("to/nothing", directory.join(name.to_string())).expect("a link");
        }
    }
}

/// Trees for which a walk may need much memory.
pub(super) const LARGE: [Shape; 2] = [
    ("five million names", create_five_million_names),
    ("100k directories in one, of long names", create_long_names),
];

/// Creates mostly hard links to few files, because a walk does not know which names belong to one inode. Half of them
/// are in one directory, the others in small directories.
fn create_five_million_names(root: &Path) {
    create_entries(root, 1, 2_500_000, 100);
    let small = root.join("small");
    fs::create_dir(&small).expect("mkdir");
    create_entries(&small, 2_500_000 / FILES, FILES, 1);
}

/// Creates directories that a walk has to remember until it visits them.
fn create_long_names(root: &Path) {
    for number in 0..100_000 {
        fs::create_dir(root.join(format!("{number:0>255}"))).expect("mkdir");
    }
}
