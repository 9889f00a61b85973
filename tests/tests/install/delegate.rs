//! The check of the delegate's kind: `install` runs the delegate before it installs a handler.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use runcrust_tests::node::utf8;
use runcrust_tests::{Delegate, Node, Run, on_each_delegate};

use crate::scene::{Scene, run, tree};

/// Changes a node, and the delegate's file on it.
type Change<'a> = &'a dyn Fn(&Scene, &Path);

const CONFIGURED: &str = "delegate = \"/usr/bin/oci-runtime\"\n";

/// Returns a node with a shell, and a delegate at `/usr/bin/oci-runtime` that runs this script.
fn node(script: &str) -> Scene {
    let scene = Scene::new();
    fs::create_dir_all(scene.at("bin")).unwrap();
    fs::copy("/bin/busybox", scene.at("bin/sh")).unwrap();
    scene.write(
        "usr/bin/oci-runtime",
        &format!("#!/bin/sh\n{script}\n"),
        0o755,
    );
    scene
}

fn configure(scene: &Scene, text: &str) {
    scene.write("etc/runcrust/config.toml", text, 0o644);
}

fn install(scene: &Scene) -> Run {
    scene.installed("install podman")
}

/// Nothing is written, and the line in the hint is enough to install.
#[test]
fn a_delegate_whose_kind_differs_is_refused_with_a_hint() {
    for (answer, kind) in [
        ("crun version 1.21", "crun"),
        ("youki version: 0.7.0", "youki"),
    ] {
        let scene = node(&format!("echo '{answer}'"));
        let refused = |call: &str, words: [&str; 3]| {
            let before = tree(&scene.root());
            let refused = scene.installed(call).failure();
            refused.assert_contains(&words);
            assert_eq!(tree(&scene.root()), before);
        };
        let says = format!("/usr/bin/oci-runtime says that it is {kind} ");
        let line = format!("delegate_kind = \"{kind}\"");

        // `/usr/sbin/runc` is the first of the paths that are searched for a delegate.
        fs::remove_file(scene.at("usr/sbin/runc")).unwrap();
        symlink("/usr/bin/oci-runtime", scene.at("usr/sbin/runc")).unwrap();
        let both = format!(
            "; hint: set delegate = \"/usr/sbin/runc\" and {line} in /etc/runcrust/runcrust.toml on \
             the node"
        );
        for call in [
            "install podman",
            "install containerd",
            "install crio --dry-run",
        ] {
            let by = "by its file name (links resolved) it is treated as runc";
            refused(call, ["/usr/sbin/runc says that it is", by, &both]);
        }

        let one = format!("; hint: set {line} in /etc/runcrust/config.toml");
        configure(&scene, CONFIGURED);
        refused("install docker", [&says, "by its file name", &one]);
        configure(&scene, &format!("{CONFIGURED}delegate_kind = \"runc\"\n"));
        refused("install docker", [&says, "by `delegate_kind`", &one]);

        configure(&scene, &format!("{CONFIGURED}{line}\n"));
        let installed = install(&scene).success();
        assert!(!installed.stdout.contains("oci-runtime"), "{installed}");
        let text = scene.read("etc/containers/containers.conf.d/runcrust.conf");
        // The features in podman's configuration are those of the configured kind.
        let is_crun = text.contains("runtime_supports_nocgroup");
        assert_eq!(is_crun, kind == "crun", "{text}");
    }
}

#[test]
fn a_delegate_that_cannot_be_run_is_installed_with_a_note() {
    let mut foreign = fs::read(Delegate::Runc.program()).unwrap();
    // `e_machine` in the ELF header: IBM S/390.
    foreign[18..20].copy_from_slice(&22_u16.to_le_bytes());
    let cases: [(&str, Change<'_>, &str); 5] = [
        (
            "echo hello",
            &|_, _| {},
            "is treated as runc, which can't be checked from here: --version: prints \"hello\"",
        ),
        (
            "echo kata-runtime version 3",
            &|_, _| {},
            "says that it is kata-runtime 3, which isn't tested with runcrust",
        ),
        (
            "",
            &|_, file| fs::write(file, &foreign).unwrap(),
            "Exec format error",
        ),
        (
            "echo crun version 1.21",
            &|scene, _| fs::remove_file(scene.at("bin/sh")).unwrap(),
            "is treated as runc, which can't be checked from here: --version: ",
        ),
        // A program that others can change is not run as root.
        (
            "echo > /asked; echo crun version 1.21",
            &|scene, _| {
                let file = "usr/bin/oci-runtime";
                scene.write(file, &scene.read(file), 0o777);
            },
            "is treated as runc, which wasn't checked by running it: /usr/bin/oci-runtime can be written",
        ),
    ];
    for (script, change, words) in cases {
        let scene = node(script);
        configure(&scene, CONFIGURED);
        change(&scene, &scene.at("usr/bin/oci-runtime"));
        let installed = install(&scene).success();
        let mut lines = installed.stdout.lines();
        let note = lines.find(|line| line.starts_with("note: ") && line.contains("oci-runtime"));
        assert!(note.is_some_and(|note| note.contains(words)), "{installed}");
        assert!(!scene.at("asked").exists());
    }
}

on_each_delegate! {
    /// The test uses a real delegate on a node of its own. By the file name, runcrust would take it for the other kind.
    fn a_renamed_delegate_installs_once_its_kind_is_configured(delegate: Delegate) {
        let node = Node::root_only(delegate, "");
        let handler = node.handler();
        let program = node.dir().join(match delegate {
            Delegate::Runc => "crun",
            Delegate::Crun => "oci-runtime",
        });
        fs::copy(delegate.program(), &program).unwrap();
        handler.set_delegate(&program);
        let file = node.dir().join("containers.conf");
        let install = || run(handler.path(), &["install", "podman", "--config", utf8(&file)]);
        let refused = install().failure();
        let line = format!("delegate_kind = \"{delegate}\"");
        refused.assert_contains(&[&*line, utf8(&program), utf8(&handler.configuration())]);
        assert!(!file.exists());

        handler.reconfigure(&line);
        handler.set_delegate(&program);
        let installed = install().success();
        assert!(!installed.stdout.contains(utf8(&program)), "{installed}");
        let text = fs::read_to_string(&file).unwrap();
        let is_crun = text.contains("runtime_supports_nocgroup");
        assert_eq!(is_crun, delegate == Delegate::Crun, "{text}");
    }
}
