//! The files that `install` and `uninstall` change.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::process::Command;

use runcrust_tests::node::utf8;
use runcrust_tests::{Delegate, Node, Run, TestDir, xattr};
use serde_json::Value;

use crate::scene::{Scene, tree};

const V2: &str = "version = 2\n\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\n  runtime_type = \"io.containerd.runc.v2\"\n";
const CONFIG: &str = "etc/containerd/config.toml";

#[test]
fn each_engine_has_its_file_and_format() {
    let scene = Scene::new();
    for (engine, path, words) in [
        (
            "containerd",
            CONFIG,
            "BinaryName = \"/usr/local/bin/runcrust\"",
        ),
        (
            "crio",
            "etc/crio/crio.conf.d/99-runcrust.conf",
            "[crio.runtime.runtimes.crust]",
        ),
        (
            "podman",
            "etc/containers/containers.conf.d/runcrust.conf",
            "crust = [\"/usr/local/bin/runcrust\"]",
        ),
        (
            "docker",
            "etc/docker/daemon.json",
            "\"path\": \"/usr/local/bin/runcrust\"",
        ),
    ] {
        let installed = scene.installed(&format!("install {engine}")).success();
        let text = scene.read(path);
        assert!(text.contains(words), "{text}");
        assert!(
            installed.stdout.contains(&format!("+++ /{path}")),
            "{installed}"
        );
        let mode = fs::metadata(scene.at(path)).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o644, "{path}");
        let second = scene.installed(&format!("install {engine}")).success();
        assert!(second.stdout.contains("nothing to change"), "{second}");
        assert_eq!(scene.read(path), text);
        if engine == "docker" {
            let parsed: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(
                parsed["runtimes"]["crust"]["path"],
                "/usr/local/bin/runcrust"
            );
        }
        let _ = scene.call(&format!("uninstall {engine}")).success();
        let left = fs::read_to_string(scene.at(path)).ok();
        assert_eq!(
            left.as_deref(),
            (engine == "docker").then_some("{}\n"),
            "{engine}"
        );
        let second = scene.call(&format!("uninstall {engine}")).success();
        assert_eq!(second.stdout, "nothing to remove\n");
    }
}

#[test]
fn several_handlers_of_other_names_can_be_installed() {
    let scene = Scene::new();
    scene.write(CONFIG, V2, 0o644);
    let _ = scene.installed("install containerd").success();
    let one = scene.read(CONFIG);
    let _ = scene
        .installed("install containerd --handler crust-2 --systemd-cgroup true")
        .success();
    let both = scene.read(CONFIG);
    assert!(
        both.contains("runtimes.crust]") && both.contains("runtimes.crust-2]"),
        "{both}"
    );
    assert!(both.contains("SystemdCgroup = true"), "{both}");
    let _ = scene
        .call("uninstall containerd --handler crust-2")
        .success();
    assert_eq!(scene.read(CONFIG), one);
    for name in ["Crust", "a.b", "a b", "-a", "a-", ""] {
        let name = format!("--handler={name}");
        let root = scene.root();
        let words = [
            "install",
            "containerd",
            &name,
            "--root",
            root.to_str().unwrap(),
        ];
        let refused = crate::scene::run(&runcrust_tests::binary("runcrust"), &words).failure();
        assert!(
            !refused.stderr.is_empty() && scene.read(CONFIG) == one,
            "{refused}"
        );
    }
}

#[test]
fn a_dry_run_shows_the_changes_without_making_them() {
    let scene = Scene::new();
    scene.write(CONFIG, V2, 0o644);
    let before = tree(&scene.root());
    for engine in ["containerd", "crio", "podman", "docker"] {
        let shown = scene
            .installed(&format!("install {engine} --dry-run"))
            .success();
        assert!(shown.stdout.contains("+++ /etc/"), "{shown}");
    }
    let shown = scene
        .call("install containerd --copy-to /opt/bin --dry-run")
        .success();
    assert!(
        shown.stdout.contains("/opt/bin/runcrust: would be copied"),
        "{shown}"
    );
    assert_eq!(tree(&scene.root()), before);
    let _ = scene.installed("install containerd").success();
    let before = tree(&scene.root());
    let shown = scene.call("uninstall containerd --dry-run").success();
    assert!(shown.stdout.contains("-[plugins."), "{shown}");
    assert_eq!(tree(&scene.root()), before);
}

#[test]
fn a_changed_file_keeps_mode_owner_and_attributes() {
    let scene = Scene::new();
    scene.write(CONFIG, V2, 0o640);
    let file = scene.at(CONFIG);
    chown(&file, Some(0), Some(77)).unwrap();
    xattr::write_file(&file, V2.as_bytes(), "user.operator", "kept");
    let before = fs::metadata(&file).unwrap();
    let _ = scene.installed("install containerd").success();
    let after = fs::metadata(&file).unwrap();
    assert_ne!(after.ino(), before.ino(), "the file was not replaced");
    assert_eq!(
        (after.mode(), after.uid(), after.gid()),
        (before.mode(), before.uid(), before.gid())
    );
    assert_eq!(xattr::read(&file)["user.operator"], "kept");
    let names = fs::read_dir(file.parent().unwrap()).unwrap().count();
    assert_eq!(names, 1, "a temporary file is left");
}

/// A container has the node's root at `/host`. There an absolute link would lead to the container's own files.
#[test]
fn absolute_links_lead_below_the_nodes_root() {
    let scene = Scene::new();
    scene.write("srv/containerd.toml", V2, 0o644);
    fs::create_dir_all(scene.at("etc/containerd")).unwrap();
    symlink("/srv/containerd.toml", scene.at(CONFIG)).unwrap();
    symlink("/srv/drop-ins", scene.at("etc/crio")).unwrap();
    let _ = scene.installed("install containerd").success();
    assert!(fs::symlink_metadata(scene.at(CONFIG)).unwrap().is_symlink());
    assert!(
        scene
            .read("srv/containerd.toml")
            .contains("runtimes.crust]")
    );
    let _ = scene.installed("install crio").success();
    assert!(
        scene
            .at("srv/drop-ins/crio.conf.d/99-runcrust.conf")
            .exists()
    );
}

#[test]
fn imports_are_resolved_below_the_nodes_root() {
    let scene = Scene::new();
    scene.write(
        CONFIG,
        "version = 2\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n",
        0o644,
    );
    let main = scene.read(CONFIG);
    let _ = scene.installed("install containerd").success();
    assert!(
        scene
            .read("etc/containerd/conf.d/runcrust.toml")
            .contains("runtimes.crust]")
    );
    assert_eq!(scene.read(CONFIG), main);
    let _ = scene.call("uninstall containerd").success();
    assert!(!scene.at("etc/containerd/conf.d/runcrust.toml").exists());
}

#[test]
fn a_file_that_cannot_be_edited_is_refused_with_its_line() {
    let scene = Scene::new();
    for (text, words) in [
        ("version = 2\n[plugins\n", "/etc/containerd/config.toml:2: "),
        ("disabled_plugins = [\"cri\"]\n", "`version = 2`"),
        (
            "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.crust]\nruntime_type = \"io.containerd.kata.v2\"\n",
            "--handler",
        ),
    ] {
        scene.write(CONFIG, text, 0o644);
        let refused = scene.installed("install containerd").failure();
        assert_eq!(refused.status.code(), Some(1));
        assert!(
            refused.stderr.contains(words) && refused.stdout.is_empty(),
            "{refused}"
        );
        assert_eq!(refused.stderr.lines().count(), 1, "{refused}");
        assert_eq!(scene.read(CONFIG), text);
    }
    scene.write(CONFIG, V2, 0o644);
    chown(scene.at(CONFIG), Some(1000), None).unwrap();
    let refused = scene.installed("install containerd").failure();
    assert!(refused.stderr.contains("isn't owned by root"), "{refused}");
    chown(scene.at(CONFIG), Some(0), None).unwrap();
    fs::set_permissions(scene.at(CONFIG), fs::Permissions::from_mode(0o666)).unwrap();
    let refused = scene.installed("install containerd").failure();
    let words = "runcrust: /etc/containerd/config.toml can be written by others than root";
    assert!(refused.stderr.starts_with(words), "{refused}");
    assert_eq!(scene.read(CONFIG), V2);
}

/// Users who can write to the directory could change what a daemon that runs as root reads.
#[test]
fn a_configuration_directory_writable_by_others_is_refused() {
    let scene = Scene::new();
    for (engine, directory) in [("containerd", "etc/containerd"), ("docker", "etc")] {
        scene.write("etc/containerd/x", "", 0o644);
        fs::set_permissions(scene.at(directory), fs::Permissions::from_mode(0o777)).unwrap();
        let refused = scene.installed(&format!("install {engine}")).failure();
        let words = format!("/{directory} can be written by others than root");
        assert!(refused.stderr.contains(&words), "{refused}");
        fs::set_permissions(scene.at(directory), fs::Permissions::from_mode(0o755)).unwrap();
    }
    assert!(!scene.at(CONFIG).exists());
}

#[test]
fn a_configuration_path_is_relative_to_caller_or_node_root() {
    let dir = TestDir::root_only();
    let (here, node) = (dir.subdir("here"), Node::root_only(Delegate::Runc, ""));
    let mut command = Command::new(node.handler().path());
    command.args(["install", "containerd", "--config", "config.toml"]);
    let _ = Run::capture(command.current_dir(&here)).success();
    let text = fs::read_to_string(here.join("config.toml")).unwrap();
    assert!(text.contains("runtimes.crust]"), "{text}");

    let scene = Scene::new();
    let refused = scene
        .installed("install containerd --config config.toml")
        .failure();
    assert!(
        refused.stderr.contains("isn't an absolute path; hint: "),
        "{refused}"
    );
    assert!(!scene.at("config.toml").exists());
}

#[test]
fn of_two_files_both_or_none_are_changed() {
    let scene = Scene::new();
    let first = format!("imports = [\"/etc/more/1.toml\"]\n{V2}");
    let crust = "[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.crust]\n\
                 runtime_type = \"io.containerd.runc.v2\"\noptions.BinaryName = \"/usr/local/bin/runcrust\"\n";
    scene.write(CONFIG, &format!("{first}{crust}"), 0o644);
    scene.write("etc/more/1.toml", &format!("{V2}{crust}"), 0o644);
    let before = tree(&scene.at("etc"));
    let more = scene.at("etc/more");
    mount(&["--bind", utf8(&more), utf8(&more)]);
    mount(&["-o", "remount,bind,ro", utf8(&more)]);
    let refused = scene.call("uninstall containerd").failure();
    assert!(
        refused.stderr.contains("Read-only file system"),
        "{refused}"
    );
    assert_eq!(tree(&scene.at("etc")), before);
    let _ = Run::capture(Command::new("umount").arg(&more)).success();
    let _ = scene.call("uninstall containerd").success();
    assert_eq!(scene.read(CONFIG), first);
    assert_eq!(scene.read("etc/more/1.toml"), V2);
}

fn mount(arguments: &[&str]) {
    let _ = Run::capture(Command::new("mount").args(arguments)).success();
}

#[test]
fn a_bind_mounted_file_is_refused_with_a_hint() {
    let scene = Scene::new();
    scene.write(CONFIG, V2, 0o644);
    let file = scene.at(CONFIG);
    mount(&["--bind", utf8(&file), utf8(&file)]);
    let refused = scene.installed("install containerd").failure();
    assert!(refused.stderr.contains("is a mount point"), "{refused}");
    assert!(refused.stderr.contains("hint: "), "{refused}");
    let _ = Run::capture(Command::new("umount").arg(&file)).success();
    assert_eq!(scene.read(CONFIG), V2);
    assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1);
}

/// Each install reads what the previous one wrote.
#[test]
fn concurrent_installs_lose_no_handler() {
    let scene = Scene::new();
    scene.write(CONFIG, V2, 0o644);
    let names: Vec<String> = (0..8).map(|at| format!("crust-{at}")).collect();
    std::thread::scope(|scope| {
        for name in &names {
            let line = format!("install containerd --handler {name}");
            let _ = scope.spawn(|| scene.installed(&{ line }).success());
        }
    });
    let text = scene.read(CONFIG);
    for name in &names {
        assert!(
            text.contains(&format!("runtimes.{name}]")),
            "{name}: {text}"
        );
    }
    std::thread::scope(|scope| {
        for name in &names {
            let line = format!("uninstall containerd --handler {name}");
            let _ = scope.spawn(|| scene.call(&{ line }).success());
        }
    });
    assert_eq!(scene.read(CONFIG), V2);
}

#[test]
fn cyclic_imports_are_limited() {
    let scene = Scene::new();
    let text = format!("imports = [\"../containerd/config.toml\"]\n{V2}");
    scene.write(CONFIG, &text, 0o644);
    let _ = scene.installed("install containerd").success();
    assert!(scene.read(CONFIG).contains("runtimes.crust]"));
    // Each level doubles the number of paths.
    for link in ["a", "b"] {
        symlink(".", scene.at(&format!("etc/containerd/{link}"))).unwrap();
    }
    let text = format!("imports = [\"a/config.toml\", \"b/config.toml\"]\n{V2}");
    scene.write(CONFIG, &text, 0o644);
    let refused = scene.installed("install containerd").failure();
    assert!(
        refused
            .stderr
            .contains("check whether they import each other"),
        "{refused}"
    );
    assert_eq!(scene.read(CONFIG), text);
}

/// CRI-O and podman also read files that runcrust doesn't write, which can define the same handler. For one of the two
/// engines the last definition counts, for the other one the first definition.
#[test]
fn an_engines_other_files_are_checked() {
    let foreign = [
        (
            "crio",
            "etc/crio/crio.conf",
            "[crio.runtime.runtimes.crust]\nruntime_path = \"/x\"\n",
        ),
        (
            "podman",
            "usr/share/containers/containers.conf",
            "[engine.runtimes]\ncrust = [\"/x\"]\n",
        ),
    ];
    let default = [
        (
            "crio",
            "etc/crio/crio.conf.d/10-x",
            "[crio.runtime]\ndefault_runtime = \"crust\"\n",
        ),
        (
            "podman",
            "etc/containers/containers.conf",
            "[engine]\nruntime = \"crust\"\n",
        ),
    ];
    for ((engine, path, text), (_, default_path, default)) in foreign.into_iter().zip(default) {
        let scene = Scene::new();
        scene.write(path, text, 0o644);
        let refused = scene.installed(&format!("install {engine}")).failure();
        let words = format!("/{path}: handler crust exists and isn't runcrust's");
        assert!(refused.stderr.contains(&words), "{refused}");
        fs::remove_file(scene.at(path)).unwrap();
        let _ = scene.installed(&format!("install {engine}")).success();
        scene.write(default_path, default, 0o644);
        let refused = scene.call(&format!("uninstall {engine}")).failure();
        let words = format!("/{default_path}: handler crust is the default runtime; hint: ");
        assert!(refused.stderr.contains(&words), "{refused}");
        fs::remove_file(scene.at(default_path)).unwrap();
        let _ = scene.call(&format!("uninstall {engine}")).success();
    }
}

#[test]
fn a_handler_is_removed_from_any_file_of_the_engine() {
    for (engine, path, text) in [
        (
            "crio",
            "etc/crio/crio.conf",
            "[crio.runtime.runtimes.crust]\nruntime_path = \"/usr/bin/runcrust\"\n",
        ),
        (
            "podman",
            "etc/containers/containers.conf",
            "[engine.runtimes]\ncrust = [\"/usr/bin/runcrust\"]\n",
        ),
    ] {
        let scene = Scene::new();
        scene.write(path, text, 0o644);
        let _ = scene.installed(&format!("install {engine}")).success();
        assert_eq!(scene.read(path), text);
        let done = scene.call(&format!("uninstall {engine}")).success();
        assert!(done.stdout.contains(&format!("--- /{path}")), "{done}");
        assert!(!scene.read(path).contains("crust"), "{}", scene.read(path));
        let second = scene.call(&format!("uninstall {engine}")).success();
        assert_eq!(second.stdout, "nothing to remove\n");
    }
}

/// The package would restore the file with its next version.
#[test]
fn a_packages_file_is_noted_and_not_edited() {
    let scene = Scene::new();
    let path = "usr/share/containers/containers.conf";
    let text = "[engine.runtimes]\ncrust = [\"/usr/bin/runcrust\"]\n";
    scene.write(path, text, 0o644);
    let done = scene.call("uninstall podman").success();
    let note = format!(
        "note: /{path} still has handler crust: the file belongs to a package and is not changed\n"
    );
    assert_eq!(done.stdout, format!("nothing to remove\n{note}"));
    assert_eq!(scene.read(path), text);
    let _ = scene
        .call(&format!("uninstall podman --config /{path}"))
        .success();
    assert!(!scene.read(path).contains("crust"));
}

#[test]
fn a_version_1_configuration_has_nothing_to_remove() {
    let scene = Scene::new();
    let text = "disabled_plugins = [\"cri\"]\n";
    scene.write(CONFIG, text, 0o644);
    let done = scene.call("uninstall containerd").success();
    assert_eq!(done.stdout, "nothing to remove\n");
    assert_eq!(scene.read(CONFIG), text);
}

#[test]
fn a_missing_engine_is_not_configured() {
    let scene = Scene::empty();
    for program in [
        "usr/local/bin/runcrust",
        "usr/local/bin/crust-mount-hook",
        "usr/bin/runc",
    ] {
        scene.write(program, "", 0o755);
    }
    for (engine, file) in [
        ("containerd", CONFIG),
        ("crio", "etc/crio/crio.conf"),
        ("docker", "etc/docker/daemon.json"),
    ] {
        let refused = scene.installed(&format!("install {engine}")).failure();
        let words = format!("nor {engine}.service on the node; hint: ");
        assert!(refused.stderr.contains(&words), "{refused}");
        assert!(!scene.at("etc").exists());
        let _ = scene
            .installed(&format!("install {engine} --config /srv/{engine}"))
            .success();
        scene.write(file, "", 0o644);
        let _ = scene.installed(&format!("install {engine}")).success();
        fs::remove_dir_all(scene.at("etc")).unwrap();
    }
}

#[test]
fn command_line_mistakes_exit_with_2() {
    let scene = Scene::new();
    for line in [
        "install",
        "install kubelet",
        "install crio --systemd-cgroup true",
        "install podman --systemd-cgroup true",
        "install docker --systemd-cgroup false",
        "install all",
        "uninstall all --handler crust-crun",
        "uninstall all --config /x",
        "uninstall containerd --stay --dry-run",
        "install containerd --systemd-cgroup maybe",
    ] {
        let refused = scene.call(line).failure();
        assert_eq!(refused.status.code(), Some(2), "{refused}");
    }
    let root = scene.root();
    let words = ["--root", root.to_str().unwrap(), "install", "containerd"];
    let refused = crate::scene::run(&runcrust_tests::binary("runcrust"), &words).failure();
    assert_eq!(
        refused.status.code(),
        Some(2),
        "runc's --root is not install's: {refused}"
    );
    for word in ["install", "uninstall"] {
        let help =
            crate::scene::run(&runcrust_tests::binary("runcrust"), &[word, "--help"]).success();
        assert!(help.stdout.contains("--handler <NAME>"), "{help}");
    }
}
