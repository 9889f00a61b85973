//! Errors that are not about the volume itself also name the volume, and have a hint.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use runcrust_tests::refusal::assert_contains;
use runcrust_tests::{Container, Node, POD, Run, StagedVolume, binary, on_each_delegate};

#[track_caller]
fn assert_refused(container: &Container, words: &[&str]) {
    let sentence = container.expect_refusal();
    assert!(sentence.starts_with("volume pv-1: "), "{sentence}");
    assert_contains(&sentence, words);
}

on_each_delegate! {
    fn a_hook_that_cannot_be_run_is_reported(delegate: Delegate) {
        let volume = StagedVolume::new(delegate);
        let hook = volume.dir().join("hook");
        let bundle = || volume.plain_bundle().write();
        let configuration = volume.handler().configuration();
        let text = fs::read_to_string(&configuration).unwrap();
        let ours = format!("{:?}", binary("crust-mount-hook"));
        fs::write(&configuration, text.replace(&ours, &format!("{hook:?}"))).unwrap();
        assert_refused(&volume.container(&bundle()), &[hook.to_str().unwrap(), "No such file", "hint: "]);
        fs::write(&hook, "").unwrap();
        assert_refused(&volume.container(&bundle()), &[hook.to_str().unwrap(), "Permission denied", "hint: "]);
        fs::remove_file(&hook).unwrap();
        fs::create_dir(&hook).unwrap();
        fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).unwrap();
        assert_refused(&volume.container(&bundle()), &[hook.to_str().unwrap(), "isn't a program", "hint: "]);
    }

    fn a_bundle_that_cannot_be_written_is_reported(delegate: Delegate) {
        let volume = StagedVolume::new(delegate);
        let bundle = volume.plain_bundle().write();
        let container = volume.container(&bundle);
        let log = volume.dir().join("log");
        while_read_only(bundle.path(), || {
            let mut create = Command::new(volume.handler().path());
            create.arg("--log").arg(&log).args(["--log-format", "json", "--root"]).arg(container.root());
            create.args(["create", "--bundle"]).arg(bundle.path()).arg(container.id());
            let _ = Run::capture(&mut create).failure();
        });
        let sentence = fs::read_to_string(&log).unwrap();
        assert_contains(&sentence, &["volume pv-1: ", "Read-only file system", "hint: ", "replaces the config.json"]);
        assert!(!volume.entry().join("runcrust.json").exists());
    }

    fn a_missing_root_file_system_is_reported(delegate: Delegate) {
        let volume = StagedVolume::new(delegate);
        let bundle = volume.plain_bundle().write();
        fs::rename(bundle.rootfs(), bundle.path().join("elsewhere")).unwrap();
        assert_refused(&volume.container(&bundle), &["realpath", "rootfs"]);
    }

    fn an_existing_sandbox_is_reported(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        let _target = node.stage(POD, "pv-1", &device, &[]);
        let sandbox = node.sandbox(POD);
        let second = node.sandbox_bundle(POD).with_id("again").write();
        let config = fs::read_to_string(second.config_path()).unwrap();
        fs::write(second.config_path(), config.replace("again", sandbox.id())).unwrap();
        let mut create = sandbox.command(&["create", "--bundle"]);
        create.arg(second.path()).arg(sandbox.id());
        let _ = sandbox.create_with(create).failure();
        let sentence = sandbox.last_log_error().unwrap();
        assert_contains(&sentence, &["volume pv-1: ", sandbox.id(), "already exists", "hint: "]);
    }
}

/// Runs `work` while a directory is mounted read-only on itself.
fn while_read_only(directory: &Path, work: impl FnOnce()) {
    let mount = |arguments: &[&str]| {
        let mut mount = Command::new("mount");
        let _ = Run::capture(mount.args(arguments).arg(directory)).success();
    };
    mount(&["--bind", directory.to_str().unwrap()]);
    mount(&["-o", "remount,bind,ro"]);
    work();
    let _ = Run::capture(Command::new("umount").arg(directory)).success();
}
