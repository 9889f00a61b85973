//! Invalid requests, node errors that concern every subcommand, and `--help`.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};

use runcrust_tests::node::utf8;
use runcrust_tests::{Delegate, LoopDevice, Node, StagedVolume};

use crate::output::{assert_done, assert_error};

#[test]
fn invalid_arguments_are_named() {
    let (node, device) = Node::with_ext4(Delegate::Runc);
    let (device, image) = (utf8(device.path()), utf8(device.file()));
    let target = node.target("pod-a", "pv-1");
    let (target, parent) = (utf8(&target), format!("{}/../pv-2/mount", target.display()));
    let good = ["--device", device, "--fstype", "ext4"];
    let with = |more: &[&'static str]| -> Vec<String> {
        let all = ["stage", target].into_iter();
        let all = all.chain(good).chain(more.iter().copied());
        all.map(str::to_owned).collect()
    };
    let all = |all: &[&str]| -> Vec<String> { all.iter().map(|&text| text.to_owned()).collect() };
    let cases: Vec<(Vec<String>, &str)> = vec![
        (all(&[]), ""),
        (all(&["mount", target]), "mount"),
        (all(&["stage"]), "--device"),
        (all(&["stage", target, "--device", device]), "--fstype"),
        (all(&["stage", target, "--fstype", "ext4"]), "--device"),
        (all(&["unstage"]), "TARGET_PATH"),
        (all(&["stats"]), "TARGET_PATH"),
        (all(&["stats", target, "--force"]), "--force"),
        (all(&["unstage", target, target]), target),
        (with(&["--no-such-flag"]), "--no-such-flag"),
        (with(&["--fs-group", "-1"]), "-1"),
        (with(&["--fs-group", "4294967295"]), "4294967295"),
        (with(&["--fs-group", "wheel"]), "wheel"),
        (with(&["--fs-group", ""]), "--fs-group"),
        (
            with(&["--fs-group", "1", "--fs-group-change-policy", "always"]),
            "always",
        ),
        (
            with(&["--fs-group-change-policy", "Sometimes"]),
            "Sometimes",
        ),
        (
            with(&["--access-mode", "ReadWriteOncePod"]),
            "ReadWriteOncePod",
        ),
        (with(&["--option", "bind,rw"]), "bind"),
        (with(&["--option", "rbind"]), "rbind"),
        (with(&["--option", "password=hunter2"]), "password"),
        (with(&["--option", "logdev=/dev/loop0"]), "logdev"),
        (
            with(&["--option", "rw", "--option", "noatime,DEVICE=/dev/loop0"]),
            "DEVICE",
        ),
        (with(&["--option", "ro=1"]), "ro"),
        (
            all(&["stage", target, "--device", "loop0", "--fstype", "ext4"]),
            "loop0",
        ),
        (
            all(&["stage", target, "--device", image, "--fstype", "ext4"]),
            "not a block device",
        ),
        (
            all(&[
                "stage",
                target,
                "--device",
                "/dev/no-such",
                "--fstype",
                "ext4",
            ]),
            "/dev/no-such",
        ),
        (
            all(&["stage", target, "--device", device, "--fstype", "vfat"]),
            "vfat",
        ),
        (
            all(&["stage", target, "--device", device, "--fstype", "../ext4"]),
            "fstype",
        ),
    ];
    for (arguments, named) in cases {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let run = node.handler().crust(&arguments);
        assert!(!run.stderr.contains("hunter2"), "{run}");
        assert_error(run, "INVALID_ARGUMENT", &[named]);
    }
    for path in ["", "pods/a/mount", "./mount", "//", parent.as_str()] {
        for verb in ["stage", "unstage", "stats"] {
            let mut arguments = vec![verb, path];
            arguments.extend(good.iter().filter(|_| verb == "stage"));
            let named = match path {
                "//" => "the root directory",
                path if path == parent => "`..`",
                _ => "relative",
            };
            assert_error(
                node.handler().crust(&arguments),
                "INVALID_ARGUMENT",
                &[named],
            );
        }
    }
    assert_eq!(node.records(), <[std::path::PathBuf; 0]>::default());
}

#[test]
fn an_unsafe_node_fails_every_subcommand_with_internal() {
    let volume = StagedVolume::new(Delegate::Runc);
    let verbs = || {
        [
            volume.try_stage(
                &volume.target,
                volume.device.path(),
                &["--option", "noatime"],
            ),
            volume.unstage(),
            volume.stats(),
            volume.resize(0, 0),
        ]
    };
    let root = volume.handler().crust_root();
    fs::set_permissions(&root, fs::Permissions::from_mode(0o777)).unwrap();
    for run in verbs() {
        assert_error(run, "INTERNAL", &[utf8(&root), "written"]);
    }
    fs::set_permissions(&root, fs::Permissions::from_mode(0o700)).unwrap();
    let entry = volume.entry();
    chown(&entry, Some(1000), None).unwrap();
    for run in verbs() {
        assert_error(run, "INTERNAL", &[utf8(&entry), "root"]);
    }
    chown(&entry, Some(0), None).unwrap();
    volume.handler().reconfigure("no_such_key = 1");
    let file = volume.handler().configuration();
    for run in verbs() {
        assert_error(run, "INTERNAL", &[utf8(&file), "line ", "`no_such_key`"]);
    }
    volume.handler().reconfigure("");
    assert_done(volume.unstage());
}

#[test]
fn the_subcommands_need_no_delegate() {
    let node = Node::new(Delegate::Runc);
    let device = LoopDevice::ext4(node.dir(), 16);
    let file = node.handler().configuration();
    let text = fs::read_to_string(&file).unwrap();
    let line = text
        .lines()
        .find(|line| line.starts_with("delegate"))
        .unwrap();
    fs::write(&file, text.replace(line, "delegate = \"/no/such/runc\"")).unwrap();
    let target = node.stage("pod-a", "pv-1", &device, &[]);
    assert_error(node.stats(&target), "FAILED_PRECONDITION", &["pv-1"]);
    assert_done(node.unstage(&target));
}

#[test]
fn help_names_every_subcommand_and_flag() {
    let node = Node::new(Delegate::Runc);
    let help = node.handler().crust(&["--help"]).success();
    for verb in ["stage", "unstage", "stats", "resize"] {
        assert!(help.stdout.contains(verb), "{help}");
        let help = node.handler().crust(&[verb, "--help"]).success();
        assert!(help.stdout.contains("<TARGET_PATH>"), "{help}");
        assert_eq!(help.stderr, "");
    }
    let stage = node.handler().crust(&["stage", "--help"]).success().stdout;
    for flag in [
        "--device",
        "--fstype",
        "--option",
        "--fs-group",
        "--fs-group-change-policy",
        "--read-only",
        "--access-mode",
        "--device-node",
    ] {
        assert!(stage.contains(flag), "{flag} is missing in {stage}");
    }
    let version = node.handler().crust(&["--version"]).success().stdout;
    assert!(version.starts_with("runcrust"), "{version}");
    assert_eq!(node.records(), <[std::path::PathBuf; 0]>::default());
}
