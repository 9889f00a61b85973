//! Copying the handler's programs to the node, and checking them.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use runcrust_tests::node::utf8;
use runcrust_tests::{Run, TestDir, binary};

use crate::scene::Scene;

#[test]
fn programs_are_copied_once_and_the_handler_runs_the_copy() {
    let scene = Scene::without_runcrust();
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
    let second = scene
        .call("install containerd --copy-to /opt/crust/bin")
        .success();
    assert!(
        second
            .stdout
            .contains("/opt/crust/bin/runcrust: already there"),
        "{second}"
    );
    assert!(second.stdout.contains("nothing to change"), "{second}");
    assert_eq!(["runcrust", "crust-mount-hook"].map(inode), before);
}

/// A create may be running the old program.
#[test]
fn an_older_program_is_replaced_but_not_overwritten() {
    let scene = Scene::without_runcrust();
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

/// The file name selects the configuration, so links must not be resolved.
#[test]
fn the_handler_runs_the_program_by_the_name_it_was_called_by() {
    let dir = TestDir::root_only();
    let directory = dir.subdir("bin");
    for program in ["runcrust", "crust-mount-hook"] {
        fs::copy(binary(program), directory.join(program)).unwrap();
    }
    let link = directory.join("runcrust-other");
    symlink("runcrust", &link).unwrap();
    let file = dir.join("containers.conf");
    for called in ["runcrust-other", "./runcrust-other", utf8(&link)] {
        let mut command = Command::new(called);
        command
            .env_clear()
            .env("PATH", &directory)
            .current_dir(&directory);
        command.args(["install", "podman", "--config", utf8(&file)]);
        let _ = Run::capture(&mut command).success();
        let text = fs::read_to_string(&file).unwrap();
        assert!(
            text.contains(&format!("crust = [{link:?}]")),
            "{called}: {text}"
        );
        fs::remove_file(&file).unwrap();
    }
}

/// A shell would find another program of this name in `PATH`.
#[test]
fn the_called_program_is_found_without_the_environment() {
    let dir = TestDir::root_only();
    let (directory, other) = (dir.subdir("bin"), dir.subdir("other"));
    for program in ["runcrust", "crust-mount-hook"] {
        fs::copy(binary(program), directory.join(program)).unwrap();
        fs::hard_link(directory.join(program), other.join(program)).unwrap();
    }
    let (program, file) = (directory.join("runcrust"), dir.join("containers.conf"));
    let mut command = Command::new(&program);
    command.arg0("runcrust").env_clear().env("PATH", &other);
    command.args(["install", "podman", "--config", utf8(&file)]);
    let _ = Run::capture(&mut command).success();
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains(&format!("crust = [{program:?}]")), "{text}");
}

#[test]
fn a_program_missing_on_the_node_is_refused() {
    let scene = Scene::without_runcrust();
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

/// A user who can change the program can become root on the node.
#[test]
fn a_program_writable_by_others_is_refused() {
    let scene = Scene::new();
    let (program, home) = (scene.at("home/u/runcrust"), scene.at("home/u"));
    scene.write("home/u/runcrust", "#!/bin/sh\n", 0o755);
    scene.write("home/u/crust-mount-hook", "#!/bin/sh\n", 0o755);
    let install = || scene.call("install containerd --program /home/u/runcrust");
    let set =
        |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    set(&program, 0o777);
    let refused = install().failure();
    assert!(
        refused.stderr.contains("/home/u/runcrust can be written"),
        "{refused}"
    );
    set(&program, 0o755);
    chown(&home, Some(1000), None).unwrap();
    let refused = install().failure();
    assert!(
        refused.stderr.contains("/home/u isn't owned by root"),
        "{refused}"
    );
    chown(&home, Some(0), None).unwrap();
    let _ = install().success();

    fs::create_dir(scene.at("tmp")).unwrap();
    set(&scene.at("tmp"), 0o1777);
    for directory in ["/tmp", "/tmp/bin"] {
        let refused = scene
            .call(&format!("install containerd --copy-to {directory}"))
            .failure();
        assert!(
            refused.stderr.contains("/tmp can be written by others"),
            "{refused}"
        );
    }
    assert_eq!(fs::read_dir(scene.at("tmp")).unwrap().count(), 0);
}

/// Without the hook or the delegate, every create with the handler would fail.
#[test]
fn a_missing_hook_or_delegate_is_refused() {
    let scene = Scene::new();
    let install = |line: &str| scene.installed(&format!("install containerd {line}"));
    fs::rename(scene.at("usr/local/bin/crust-mount-hook"), scene.at("hook")).unwrap();
    let refused = install("").failure();
    assert!(
        refused
            .stderr
            .contains("/usr/local/bin/crust-mount-hook isn't a program"),
        "{refused}"
    );
    scene.write("etc/runcrust/config.toml", "hook = \"/hook\"\n", 0o644);
    let _ = install("--dry-run").success();

    fs::create_dir_all(scene.at("var/lib/k3s")).unwrap();
    fs::rename(scene.at("usr/sbin/runc"), scene.at("var/lib/k3s/runc")).unwrap();
    let refused = install("").failure();
    let words = "none of /usr/sbin/runc, /usr/bin/runc, /usr/local/sbin/runc, /usr/bin/crun is";
    assert!(refused.stderr.contains(words), "{refused}");
    assert!(
        refused
            .stderr
            .contains("set `delegate` to the path of runc or crun, in /etc/runcrust/runcrust.toml"),
        "{refused}"
    );
    let copy = scene
        .call("install containerd --copy-to /opt/bin")
        .failure();
    assert!(copy.stderr.contains(words), "{copy}");
    assert!(!scene.at("opt").exists() && !scene.at("etc/containerd").exists());

    let text = "hook = \"/hook\"\ndelegate = \"/var/lib/k3s/runc\"\n";
    scene.write("etc/runcrust/runcrust.toml", text, 0o644);
    let _ = install("").success();
    scene.write("etc/runcrust/runcrust.toml", "no_such_key = 1\n", 0o644);
    let refused = install("").failure();
    assert!(refused.stderr.contains("no_such_key"), "{refused}");
}

/// Following the link would overwrite a file that belongs to dpkg, and put the hook into another directory.
#[test]
fn a_link_with_a_programs_name_is_replaced() {
    let scene = Scene::without_runcrust();
    scene.write("usr/bin/runcrust", "dpkg's", 0o755);
    fs::create_dir_all(scene.at("usr/local/bin")).unwrap();
    let link = scene.at("usr/local/bin/runcrust");
    symlink("/usr/bin/runcrust", &link).unwrap();
    let _ = scene
        .call("install containerd --copy-to /usr/local/bin")
        .success();
    assert!(fs::symlink_metadata(&link).unwrap().is_file());
    assert!(scene.at("usr/local/bin/crust-mount-hook").exists());
    assert_eq!(scene.read("usr/bin/runcrust"), "dpkg's");
}

#[test]
fn invalid_arguments_and_files_are_refused_before_the_copy() {
    let scene = Scene::without_runcrust();
    let refused = scene
        .call("install containerd --copy-to usr/local/bin")
        .failure();
    assert!(
        refused
            .stderr
            .contains("--copy-to usr/local/bin: isn't an absolute path"),
        "{refused}"
    );
    scene.write(
        "etc/containerd/config.toml",
        "version = 2\n[plugins\n",
        0o644,
    );
    let refused = scene
        .call("install containerd --copy-to /usr/local/bin")
        .failure();
    assert!(refused.stderr.contains("config.toml:2: "), "{refused}");
    assert!(!scene.at("usr/local").exists());
    fs::create_dir_all(scene.at("usr/local/bin/runcrust")).unwrap();
    let refused = scene
        .call("install containerd --copy-to /usr/local/bin")
        .failure();
    assert!(
        refused.stderr.contains("runcrust is a directory; hint: "),
        "{refused}"
    );
    assert!(!scene.at("usr/local/bin/crust-mount-hook").exists());
}

/// The temporary files look as if a killed process had left them.
#[test]
fn temporary_files_of_a_killed_copy_are_removed() {
    let scene = Scene::without_runcrust();
    for left in [
        ".crust-mount-hook.4711.0.runcrust",
        ".runcrust.12.3.runcrust",
    ] {
        scene.write(&format!("opt/bin/{left}"), "half", 0o600);
    }
    scene.write("etc/containerd/.config.toml.5.0.runcrust", "half", 0o600);
    let _ = scene
        .call("install containerd --copy-to /opt/bin")
        .success();
    for (directory, count) in [("opt/bin", 2), ("etc/containerd", 1)] {
        assert_eq!(fs::read_dir(scene.at(directory)).unwrap().count(), count);
    }
}
