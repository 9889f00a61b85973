//! `gc` keeps items of unknown use, and reports them with the reason.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::process::Command;

use nix::fcntl::{Flock, FlockArg};
use runcrust_tests::container::{end, kill_and_remove_bundles};
use runcrust_tests::gc::{collect, gc};
use runcrust_tests::mounts;
use runcrust_tests::node::utf8;
use runcrust_tests::{Delegate, HungFilesystem, Node, POD, Run, StagedVolume};
use serde_json::{Value, json};

use crate::{assert_collected, kinds, reason_of_finding};

#[test]
fn a_locked_volume_and_an_unreadable_process_are_kept() {
    let (volume, sandbox) = StagedVolume::with_sandbox(Delegate::Runc);
    kill_and_remove_bundles(&[&sandbox]);
    let lock = File::options()
        .write(true)
        .open(volume.lock_file(&volume.target))
        .unwrap();
    let lock = Flock::lock(lock, FlockArg::LockExclusive).expect("the volume's lock");
    let why = reason_of_finding(&volume, "volume");
    assert!(why.contains("lock is held by process"), "{why}");
    drop(lock);
    let record = volume.entry().join("runcrust.json");
    let text = fs::read_to_string(&record).unwrap();
    let mut elsewhere: Value = serde_json::from_str(&text).unwrap();
    elsewhere["users"][0]["process"]["pidNamespace"] = 1.into();
    fs::write(&record, elsewhere.to_string()).unwrap();
    let why = reason_of_finding(&volume, "user");
    assert!(why.contains("is in another pid namespace"), "{why}");
    fs::write(&record, text).unwrap();
    assert_collected(&volume, &["record", "user"]);
}

#[test]
fn unreadable_records_are_kept() {
    let node = Node::new(Delegate::Runc);
    let (one, two) = (node.ext4(), node.ext4());
    let [damaged, gone] =
        [("pv-1", &one), ("pv-2", &two)].map(|(name, device)| node.stage(POD, name, device, &[]));
    fs::write(node.entry(&damaged).join("mountInfo.json"), "{").unwrap();
    let state = node.handler().state_dir();
    for (directory, name) in [
        ("owners", "259:99999.json".to_owned()),
        ("bundles", format!("{}.json", "0".repeat(64))),
        ("sandboxes", "unknown.json".to_owned()),
    ] {
        let directory = state.join(directory);
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join(name), "{").unwrap();
    }
    // The unreadable sandbox may belong to this volume's pod.
    fs::remove_dir(&gone).unwrap();
    let report = collect(&node);
    assert_eq!(report.removed, <[Value; 0]>::default());
    let mut left: Vec<&str> = report
        .left
        .iter()
        .map(|it| it["kind"].as_str().unwrap())
        .collect();
    left.sort_unstable();
    assert_eq!(
        left,
        ["bundle", "entry", "owner", "sandbox", "volume"],
        "{report:?}"
    );
    let finding = |kind: &str| report.left.iter().find(|it| it["kind"] == kind).unwrap();
    for (kind, words) in [
        ("bundle", "EOF"),
        ("entry", "mountInfo.json: isn't JSON"),
        ("owner", "259:99999.json: EOF"),
        ("sandbox", "unknown.json: EOF"),
        ("volume", "its pod may have a sandbox"),
    ] {
        let why = finding(kind)["why"].as_str().unwrap();
        assert!(why.contains(words), "{kind}: {why}");
    }
    fs::remove_file(state.join("sandboxes/unknown.json")).unwrap();
    assert_eq!(gc(&node, &[]).removed.len(), 1);
    assert!(!node.entry(&gone).exists() && node.entry(&damaged).exists());
}

#[test]
fn a_runtime_cli_of_another_runtime_is_kept() {
    let volume = StagedVolume::new(Delegate::Runc);
    let cli = volume.entry().join("runtime-cli");
    fs::write(&cli, "/usr/bin/kata-ctl\n").unwrap();
    let why = reason_of_finding(&volume, "runtime-cli");
    assert!(why.contains("another runtime's"), "{why}");
    fs::write(&cli, format!("{}\n", volume.handler().path().display())).unwrap();
    assert_collected(&volume, &["runtime-cli"]);
    assert!(!cli.exists() && volume.entry().exists());
}

#[test]
fn gc_without_a_crust_directory_reports_nothing() {
    let node = Node::new(Delegate::Runc);
    assert_collected(&node, &[]);
    let run = node.handler().crust(&["gc", "--dry-run"]).success();
    assert_eq!(run.stdout, "would remove 0, would leave 0\n");
    assert!(!node.handler().crust_root().exists());
    let run = node.handler().crust(&["gc"]).success();
    assert_eq!(run.stdout, "removed 0, left 0\n");
}

/// Both commands run with a small limit of open files.
#[test]
fn gc_and_list_keep_few_files_open() {
    const TEMPORARY_FILES: usize = 3000;
    const VOLUMES: usize = 300;
    let staged = StagedVolume::new(Delegate::Runc);
    let root = staged.handler().crust_root();
    for number in 0..TEMPORARY_FILES {
        let name = format!(".mountInfo.json.{}.{number:x}.0", u32::MAX);
        fs::write(root.join(name), "{").unwrap();
    }
    for number in 0..VOLUMES {
        let other = staged.node.target(POD, &format!("pv-{}", number + 2));
        let info = fs::read_to_string(staged.entry().join("mountInfo.json")).unwrap();
        let info = info.replace(utf8(&staged.target), utf8(&other));
        let entry = staged.node.entry(&other);
        fs::DirBuilder::new().mode(0o700).create(&entry).unwrap();
        fs::write(entry.join("mountInfo.json"), info).unwrap();
    }
    let limited = |arguments: &[&str]| -> Value {
        let mut command = Command::new("sh");
        let crust = staged.handler().command();
        command.args(["-c", "ulimit -n 64 && exec \"$@\"", "sh"]);
        command.arg(crust.get_program()).args(crust.get_args());
        let run = Run::capture(command.arg("crust").args(arguments).arg("--json")).success();
        serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run}"))
    };
    let report = limited(&["gc"]);
    let removed = report["removed"].as_array().unwrap();
    assert_eq!(removed.len(), TEMPORARY_FILES, "{}", report["left"]);
    assert_eq!(report["left"], json!([]));
    let listed = limited(&["list"]);
    let listed = listed["volumes"].as_array().unwrap();
    assert_eq!(listed.len(), VOLUMES + 1);
    for volume in listed {
        assert_eq!(volume["state"], "staged", "{volume}");
    }
}

#[test]
fn a_state_directory_writable_by_others_is_reported() {
    let (node, device) = Node::with_ext4(Delegate::Runc);
    let _ = node.stage(POD, "pv-1", &device, &[]);
    let bundles = node.handler().state_dir().join("bundles");
    fs::create_dir_all(&bundles).unwrap();
    fs::set_permissions(&bundles, Permissions::from_mode(0o777)).unwrap();
    let why = reason_of_finding(&node, "directory");
    assert!(why.contains("can be written by others"), "{why}");
}

/// A container may have the node's `/run` but not the bundles' directory.
#[test]
fn bundles_invisible_in_this_namespace_are_kept() {
    let (volume, sandbox) = StagedVolume::with_sandbox(Delegate::Runc);
    let app = volume.app(&sandbox);
    let bundles = volume.dir().join("bundles");
    let report = mounts::in_private_namespace(|| {
        mounts::tmpfs(&bundles);
        gc(&volume, &[])
    });
    assert_eq!(report.removed, <[Value; 0]>::default());
    assert_eq!(kinds(&report.left), ["bundle"], "{report:?}");
    let why = report.left[0]["why"].as_str().unwrap();
    assert!(why.contains("that held it are missing"), "{why}");
    end([app, sandbox]);
    fs::remove_dir_all(&bundles).unwrap();
    assert_collected(&volume, &["bundle"]);
}

#[test]
fn bundles_on_a_hanging_file_system_are_kept() {
    let (node, device) = Node::with_ext4(Delegate::Runc);
    node.stage(POD, "pv-1", &device, &[]);
    let sandbox = node.sandbox(POD);
    kill_and_remove_bundles(&[&sandbox]);
    let hung = HungFilesystem::mount(&node.dir().join("bundles"));
    let report = gc(&node, &["--dry-run"]);
    assert_eq!(kinds(&report.left), ["bundle"], "{report:?}");
    let why = report.left[0]["why"].as_str().unwrap();
    assert!(why.contains("doesn't answer"), "{why}");
    drop(hung);
    assert_collected(&node, &["bundle", "record", "sandbox", "user"]);
}
