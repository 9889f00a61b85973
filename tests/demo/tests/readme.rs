//! The README shows what the demo prints.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

use runcrust_harness::transcript::{matches_shortened, normalize};
use runcrust_harness::{Run, package_binary};

#[test]
fn the_transcript_in_the_readme_is_that_of_the_demo() {
    // At run time, because in the guest the sources are not where the tests were built.
    let package = env::var_os("CARGO_MANIFEST_DIR").expect("cargo's directory of the package");
    let program = package_binary("demo", env!("CARGO_BIN_EXE_demo"));
    let file = Path::new(&package).join("../../README.md");
    let readme = fs::read_to_string(&file).expect("README.md");
    let shown = readme.split_once("\n    1. ");
    let (_, shown) = shown.expect("README.md has a transcript");
    let shown = format!("    1. {shown}");
    let shown: Vec<String> = shown
        .lines()
        .take_while(|line| line.starts_with("    "))
        .map(normalize)
        .collect();
    assert!(shown.len() > 10, "{shown:?}");
    let demo = Run::capture(&mut Command::new(program)).success();
    let mut printed = demo.stdout.lines().map(normalize);
    for line in shown {
        assert!(
            printed.any(|printed| matches_shortened(&line, &printed)),
            "the demo does not print this line, or not in this place: {line}\n{demo}"
        );
    }
}
