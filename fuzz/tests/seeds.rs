//! Runs every target with its seeds. An input that fuzzing found becomes a regression test when it is added to the
//! seeds.

#![allow(clippy::disallowed_methods, reason = "the seeds are trusted")]

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// Returns the package's directory. It is read at run time, because in the guest it is not where it was built.
fn package() -> PathBuf {
    let package = env::var_os("CARGO_MANIFEST_DIR");
    package.expect("cargo's directory of the package").into()
}

fn seeds_directory() -> PathBuf {
    package().join("seeds")
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("a directory of seeds");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    let mut names: Vec<String> = names
        .map(|name| name.into_string().expect("a plain name"))
        .collect();
    names.sort();
    names
}

fn run_seeds(name: &str, target: fn(&[u8])) {
    let directory = seeds_directory().join(name);
    let names = names(&directory);
    assert!(names.len() >= 8, "{name} has {} seeds", names.len());
    for seed in names {
        let path = directory.join(seed);
        let bytes = fs::read(&path).expect("a seed");
        let result = std::panic::catch_unwind(|| target(&bytes));
        assert!(
            result.is_ok(),
            "the target panicked, see above: {}",
            path.display()
        );
    }
}

/// Defines a test for each target, and the list of their names.
macro_rules! targets {
    ($($name:ident),+ $(,)?) => {
        const TESTED: &[&str] = &[$(stringify!($name)),+];

        $(
            #[test]
            fn $name() {
                run_seeds(stringify!($name), runcrust_fuzz::$name);
            }
        )+
    };
}

targets!(
    answer,
    argv,
    config,
    generated_config,
    handler_json,
    handler_toml,
    mount_info,
    mountinfo,
    options,
    superblock,
    target_path,
);

/// A target without seeds, without a test or without a program would never run there.
#[test]
fn every_target_has_seeds_a_test_and_a_program() {
    assert_eq!(names(&seeds_directory()), TESTED);
    let programs = package().join("fuzz_targets");
    let programs = names(&programs);
    let programs = programs.iter().filter_map(|it| it.strip_suffix(".rs"));
    assert_eq!(programs.collect::<Vec<_>>(), TESTED);
}
