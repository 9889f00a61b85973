use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use crust_state::record::Version;
use crust_state::sandbox::SandboxRecord;

use super::*;

/// A node's root directory.
fn lab() -> tempfile::TempDir {
    let root = tempfile::Builder::new().tempdir_in("/run").unwrap();
    fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir_all(root.path().join("etc/runcrust")).unwrap();
    fs::create_dir_all(root.path().join("run")).unwrap();
    root
}

/// A sandbox that lives, by the records in a state directory.
fn live(root: &Path, state_dir: &str, id: &str) {
    let state = StateDirectory::create(&root.join(state_dir)).unwrap();
    let record = SandboxRecord {
        version: Version,
        id: id.to_owned(),
        pod_uid: "pod".to_owned(),
        process: Process::current().unwrap(),
        mount_label: None,
        failures: Vec::new(),
    };
    state.write_sandbox(&record).unwrap();
}

fn in_use(root: &Path) -> Vec<String> {
    match check_unused_by_any(&NodeRoot::new(root)) {
        Ok(()) => Vec::new(),
        Err(HandlerError::InUse(found)) => found,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn users_are_looked_for_by_every_configuration_and_told_once() {
    let lab = lab();
    let write = |name: &str, text: &str| {
        fs::write(lab.path().join("etc/runcrust").join(name), text).unwrap();
    };
    assert_eq!(in_use(lab.path()), Vec::<String>::new());
    live(lab.path(), "run/runcrust", "by-the-defaults");
    live(lab.path(), "run/two", "by-two");
    live(lab.path(), "run/none", "by-nobody");
    live(lab.path(), "run/one", "by-one");
    write("config.toml", "state_dir = \"/run/one\"\n");
    write("runcrust-two.toml", "state_dir = \"/run/two\"\n");
    let same = "state_dir = \"/run/two\"\ncrust_root = \"/run/other\"\n";
    write("runcrust-same.toml", same);
    write("runcrust-none.toml.off", "state_dir = \"/run/none\"\n");
    let sentence = |id: &str| format!("sandbox {id} of pod pod lives");
    let expected = ["by-the-defaults", "by-one", "by-two"].map(sentence);
    assert_eq!(in_use(lab.path()), expected);
}

#[test]
fn a_configuration_that_cannot_be_read_is_named() {
    let lab = lab();
    let file = lab.path().join("etc/runcrust/other.toml");
    fs::write(&file, "no_such_key = 1\n").unwrap();
    let error = check_unused_by_any(&NodeRoot::new(lab.path())).unwrap_err();
    assert!(matches!(error, HandlerError::Records(_)), "{error}");
    let error = error.to_string();
    assert!(error.contains("etc/runcrust/other.toml"), "{error}");
    fs::remove_file(&file).unwrap();
    // Nothing to be read.
    symlink("/nowhere", &file).unwrap();
    assert_eq!(in_use(lab.path()), Vec::<String>::new());
}
