//! Every seed goes through its target: so does what fuzzing found, once it lies among the seeds.

#![allow(clippy::disallowed_methods, reason = "the seeds are ours")]

use std::fs;
use std::path::{Path, PathBuf};

fn seeds() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds")
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

fn all_hold(name: &str, target: fn(&[u8])) {
    let directory = seeds().join(name);
    let names = names(&directory);
    assert!(names.len() >= 8, "{name} has {} seeds", names.len());
    for seed in names {
        let path = directory.join(seed);
        let bytes = fs::read(&path).expect("a seed");
        let held = std::panic::catch_unwind(|| target(&bytes));
        assert!(held.is_ok(), "above is what {} shows", path.display());
    }
}

/// One test a target, and a list of them.
macro_rules! targets {
    ($($name:ident),+ $(,)?) => {
        const TESTED: &[&str] = &[$(stringify!($name)),+];

        $(
            #[test]
            fn $name() {
                all_hold(stringify!($name), runcrust_fuzz::$name);
            }
        )+
    };
}

targets!(
    answer,
    argv,
    config,
    handler_json,
    handler_toml,
    mount_info,
    mountinfo,
    odd_config,
    options,
    superblock,
    target_path,
);

/// A target that is forgotten in one of the places is never run there.
#[test]
fn every_target_is_in_every_place() {
    assert_eq!(names(&seeds()), TESTED);
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz_targets");
    let programs = names(&programs);
    let programs = programs.iter().filter_map(|it| it.strip_suffix(".rs"));
    assert_eq!(programs.collect::<Vec<_>>(), TESTED);
}
