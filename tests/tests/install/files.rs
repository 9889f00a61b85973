//! What becomes of the files themselves.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};

use runcrust_tests::xattr;
use serde_json::Value;

use crate::scene::{Scene, tree};

const V2: &str = "version = 2\n\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\n  runtime_type = \"io.containerd.runc.v2\"\n";
const CONFIG: &str = "etc/containerd/config.toml";

#[test]
fn each_engine_has_its_usual_place_and_its_own_form() {
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
        let again = scene.installed(&format!("install {engine}")).success();
        assert!(again.stdout.contains("nothing to change"), "{again}");
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
        let again = scene.call(&format!("uninstall {engine}")).success();
        assert_eq!(again.stdout, "nothing to remove\n");
    }
}

#[test]
fn a_handler_can_have_another_name_and_there_can_be_several() {
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
fn a_dry_run_shows_the_difference_and_changes_nothing() {
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
fn mode_owner_and_attributes_of_a_file_stay() {
    let scene = Scene::new();
    scene.write(CONFIG, V2, 0o640);
    let file = scene.at(CONFIG);
    chown(&file, Some(0), Some(77)).unwrap();
    xattr::write_file(&file, V2.as_bytes(), "user.operator", "kept");
    let before = fs::metadata(&file).unwrap();
    let _ = scene.installed("install containerd").success();
    let after = fs::metadata(&file).unwrap();
    assert_ne!(after.ino(), before.ino(), "replaced, not rewritten");
    assert_eq!(
        (after.mode(), after.uid(), after.gid()),
        (before.mode(), before.uid(), before.gid())
    );
    assert_eq!(xattr::read(&file)["user.operator"], "kept");
    let names = fs::read_dir(file.parent().unwrap()).unwrap().count();
    assert_eq!(names, 1, "no temporary file stays");
}

/// A container that has the node at `/host` would find its own files behind an absolute link.
#[test]
fn links_lead_to_the_nodes_own_files() {
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
fn imports_are_looked_for_on_the_node() {
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
fn what_cannot_be_edited_is_left_alone_and_told_with_its_line() {
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
    assert!(refused.stderr.contains("isn't root's alone"), "{refused}");
    chown(scene.at(CONFIG), Some(0), None).unwrap();
    fs::set_permissions(scene.at(CONFIG), fs::Permissions::from_mode(0o666)).unwrap();
    let refused = scene.installed("install containerd").failure();
    assert!(refused.stderr.contains("isn't root's alone"), "{refused}");
    assert_eq!(scene.read(CONFIG), V2);
}

#[test]
fn mistakes_on_the_command_line_are_told_apart() {
    let scene = Scene::new();
    for line in [
        "install",
        "install kubelet",
        "uninstall containerd --copy-to /x",
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
        "runc's --root isn't install's: {refused}"
    );
    for word in ["install", "uninstall"] {
        let help =
            crate::scene::run(&runcrust_tests::binary("runcrust"), &[word, "--help"]).success();
        assert!(help.stdout.contains("--handler <NAME>"), "{help}");
    }
}
