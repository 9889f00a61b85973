//! The programs that the handler needs, brought to the node.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, symlink};
use std::process::Command;

use runcrust_tests::node::utf8;
use runcrust_tests::{Run, binary};

use crate::scene::Scene;

#[test]
fn programs_are_copied_once_and_the_handler_runs_the_copy() {
    let scene = Scene::empty();
    let first = scene
        .call("install containerd --copy-to /opt/crust/bin")
        .success();
    assert!(
        first.stdout.contains("/opt/crust/bin/runcrust: copied"),
        "{first}"
    );
    let config = scene.read("etc/containerd/config.toml");
    assert!(
        config.contains("BinaryName = \"/opt/crust/bin/runcrust\""),
        "{config}"
    );
    let inode = |name: &str| {
        let metadata = fs::metadata(scene.at(&format!("opt/crust/bin/{name}"))).unwrap();
        assert_eq!(metadata.mode() & 0o7777, 0o755);
        metadata.ino()
    };
    let before = ["runcrust", "crust-mount-hook"].map(inode);
    for name in ["runcrust", "crust-mount-hook"] {
        let copy = fs::read(scene.at(&format!("opt/crust/bin/{name}"))).unwrap();
        assert!(copy == fs::read(binary(name)).unwrap(), "{name}");
    }
    let again = scene
        .call("install containerd --copy-to /opt/crust/bin")
        .success();
    assert!(
        again.stdout.contains("/opt/crust/bin/runcrust: is there"),
        "{again}"
    );
    assert!(again.stdout.contains("nothing to change"), "{again}");
    assert_eq!(["runcrust", "crust-mount-hook"].map(inode), before);
}

/// A container's start may be running the old one.
#[test]
fn an_older_program_is_replaced_and_goes_on_where_it_runs() {
    let scene = Scene::empty();
    scene.write("usr/local/bin/runcrust", "old", 0o755);
    let mut open = File::open(scene.at("usr/local/bin/runcrust")).unwrap();
    let _ = scene
        .call("install containerd --copy-to /usr/local/bin")
        .success();
    let mut kept = String::new();
    open.read_to_string(&mut kept).unwrap();
    assert_eq!(kept, "old");
    assert_ne!(
        fs::read(scene.at("usr/local/bin/runcrust")).unwrap(),
        b"old"
    );
}

/// The name selects the configuration, however the program was found.
#[test]
fn the_handler_runs_what_was_called_and_not_what_that_leads_to() {
    let scene = Scene::empty();
    let directory = scene.dir.subdir("bin");
    let link = directory.join("runcrust-other");
    symlink(binary("runcrust"), &link).unwrap();
    let file = scene.dir.join("containers.conf");
    for called in ["runcrust-other", "./runcrust-other", utf8(&link)] {
        let mut command = Command::new(called);
        command
            .env_clear()
            .env("PATH", &directory)
            .current_dir(&directory);
        command.args(["install", "podman", "--config", utf8(&file)]);
        let _ = Run::of(&mut command).success();
        let text = fs::read_to_string(&file).unwrap();
        assert!(
            text.contains(&format!("crust = [{link:?}]")),
            "{called}: {text}"
        );
        fs::remove_file(&file).unwrap();
    }
}

#[test]
fn a_handler_without_a_program_on_the_node_is_refused() {
    let scene = Scene::empty();
    for line in [
        "install containerd",
        "install containerd --program /usr/local/bin/runcrust",
        "install containerd --program usr/local/bin/runcrust",
    ] {
        let refused = scene.call(line).failure();
        assert!(refused.stderr.contains("hint: "), "{refused}");
        assert!(!scene.at("etc").exists());
    }
    scene.write("usr/local/bin/runcrust", "", 0o644);
    let refused = scene
        .call("install crio --program /usr/local/bin/runcrust")
        .failure();
    assert!(
        refused.stderr.contains("isn't a program on the node"),
        "{refused}"
    );
}
