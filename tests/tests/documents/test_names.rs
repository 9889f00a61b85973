//! The names of tests are as short as CONTRIBUTING.md requires.

use std::fs;
use std::path::{Path, PathBuf};

/// A test's name has fewer characters.
const LIMIT: usize = 60;

/// Returns the Rust files below a directory, without hidden directories and those that cargo builds in.
fn rust_files(directory: &Path) -> Vec<PathBuf> {
    if directory.join("CACHEDIR.TAG").exists() {
        return Vec::new();
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let path = entry.path();
        let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        if entry.file_type().unwrap().is_dir() {
            if !is_hidden {
                files.extend(rust_files(&path));
            }
        } else if path.extension().is_some_and(|it| it == "rs") {
            files.push(path);
        }
    }
    files
}

/// Returns the name of the function that a line defines.
fn function(line: &str) -> Option<&str> {
    let (before, after) = line.split_once("fn ")?;
    let is_definition = before
        .split_whitespace()
        .all(|word| matches!(word, "async" | "const" | "unsafe") || word.starts_with("pub"));
    let end = after
        .find(|character: char| !character.is_alphanumeric() && character != '_')
        .unwrap_or(after.len());
    is_definition.then_some(&after[..end])
}

/// All functions are checked, because the tests that a macro makes have no attribute.
#[test]
fn the_names_of_tests_have_fewer_than_60_characters() {
    let workspace = Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").unwrap()).join("..");
    let files = rust_files(&workspace);
    let (mut count, mut too_long) = (0, Vec::new());
    for file in &files {
        let text = fs::read_to_string(file).unwrap();
        for name in text.lines().filter_map(function) {
            count += 1;
            if name.len() >= LIMIT {
                let file = file.strip_prefix(&workspace).unwrap().display();
                too_long.push(format!("{file}: {name}"));
            }
        }
    }
    assert!(
        count > 1000,
        "{count} functions in {} files below {}",
        files.len(),
        workspace.display()
    );
    assert!(
        too_long.is_empty(),
        "CONTRIBUTING.md allows fewer than {LIMIT} characters: {too_long:#?}"
    );
}
