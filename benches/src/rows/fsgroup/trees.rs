//! What is in a volume.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;

use runcrust_tests::tree::create_entries;

/// Files of a directory, where there is nothing odd about it.
const FILES: usize = 100;

/// So many files, a hundred in a directory.
pub(super) fn ordinary(root: &Path, files: usize) {
    create_entries(root, files / FILES, FILES, FILES);
}

/// Its name, and what makes it.
type Shape = (&'static str, fn(&Path));

/// What a walk may be bad at.
pub(super) const SHAPES: [Shape; 4] = [
    ("one directory of 500k files", flat),
    ("1,000 levels", deep),
    ("100k hard links", hard_links),
    ("100k symbolic links", symbolic_links),
];

fn flat(root: &Path) {
    create_entries(root, 1, 500_000, 500_000);
}

/// Of each level a few files, and directories beside the one that leads on.
fn deep(root: &Path) {
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

fn hard_links(root: &Path) {
    create_entries(root, 100, 1000, 10);
}

fn symbolic_links(root: &Path) {
    for directory in 0..100 {
        let directory = root.join(directory.to_string());
        fs::create_dir(&directory).expect("mkdir");
        for name in 0..1000 {
            symlink("to/nothing", directory.join(name.to_string())).expect("a link");
        }
    }
}

/// What a walk may need much memory for.
pub(super) const LARGE: [Shape; 2] = [
    ("five million names", five_million),
    ("100k directories in one, of long names", long_names),
];

/// Most of them names of few files, which a walk knows nothing of: half in one directory, half in
/// directories of their own size.
fn five_million(root: &Path) {
    create_entries(root, 1, 2_500_000, 100);
    let small = root.join("small");
    fs::create_dir(&small).expect("mkdir");
    create_entries(&small, 2_500_000 / FILES, FILES, 1);
}

/// A walk has to come back to each of them.
fn long_names(root: &Path) {
    for number in 0..100_000 {
        fs::create_dir(root.join(format!("{number:0>255}"))).expect("mkdir");
    }
}
