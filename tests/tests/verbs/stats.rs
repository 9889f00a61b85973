//! `stats` of volumes in use.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::{
    Container, Delegate, Node, Run, StagedVolume, on_each_delegate, process, wait_until,
};
use serde_json::Value;

use crate::output::assert_error;

/// Returns the stats that match the container's own statfs.
fn expected(app: &Container, at: &str) -> String {
    // Block size, total, free and available blocks, total and free inodes.
    let text = app.sh(&format!("stat -f -c '%S %b %f %a %c %d' {at}"));
    let numbers: Vec<u64> = text
        .split(' ')
        .map(|word| word.parse().expect("a number"))
        .collect();
    let [size, blocks, free, available, inodes, free_inodes] = numbers[..] else {
        panic!("{text:?}");
    };
    assert!(available < free, "no blocks are reserved for root: {text}");
    assert!(free < blocks && free_inodes < inodes, "{text}");
    format!(
        "{{\"usage\":[\
         {{\"unit\":\"BYTES\",\"total\":{},\"used\":{},\"available\":{}}},\
         {{\"unit\":\"INODES\",\"total\":{inodes},\"used\":{},\"available\":{free_inodes}}}],\
         \"volume_condition\":{{\"abnormal\":false,\"message\":\"\"}}}}\n",
        size * blocks,
        size * (blocks - free),
        size * available,
        inodes - free_inodes,
    )
}

#[track_caller]
fn stats(volume: &StagedVolume) -> String {
    let run = volume.stats().success();
    assert_eq!(run.stderr, "");
    run.stdout
}

#[test]
fn a_volume_that_is_not_staged_is_not_found() {
    let node = Node::new(Delegate::Runc);
    let unknown = node.target("pod-a", "pv-1");
    assert_error(node.stats(&unknown), "NOT_FOUND", &["pv-1"]);
    let device = node.ext4();
    let _ = node.stage("pod-a", "pv-2", &device, &[]);
    assert_error(node.stats(&unknown), "NOT_FOUND", &["pv-1"]);
}

on_each_delegate! {
    fn a_volume_that_is_not_in_use_has_no_stats(delegate: Delegate) {
        let volume = StagedVolume::new(delegate);
        assert_error(volume.stats(), "FAILED_PRECONDITION", &["pv-1"]);
        let sandbox = volume.sandbox();
        let _ = stats(&volume);
        sandbox.stop();
        let _ = sandbox.delete().success();
        assert_error(volume.stats(), "FAILED_PRECONDITION", &["pv-1"]);
        let _ = volume.unstage().success();
        assert_error(volume.stats(), "NOT_FOUND", &["pv-1"]);
    }

    fn the_numbers_are_those_that_the_container_sees(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        let app = volume.app(&sandbox);
        assert_eq!(stats(&volume), expected(&app, "/data"));
        let _ = app.sh("dd if=/dev/zero of=/data/file bs=1M count=6 2>/dev/null; sync");
        let _ = app.sh("mkdir -p /data/a/b/c; sync");
        let after = stats(&volume);
        assert_eq!(after, expected(&app, "/data"));
        let after: Value = serde_json::from_str(&after).unwrap();
        assert!(after["usage"][0]["used"].as_u64().unwrap() >= 6 << 20, "{after}");
    }

    /// crust_ops runs the program that the entry names, whichever runtime wrote it.
    fn runtime_cli_names_a_program_that_answers(delegate: Delegate) {
        let volume = StagedVolume::new(delegate);
        let cli = volume.entry().join("runtime-cli");
        assert!(!cli.exists(), "it exists before the volume is in use");
        let sandbox = volume.sandbox();
        let line = fs::read_to_string(&cli).unwrap();
        let program = PathBuf::from(line.strip_suffix('\n').expect("a line"));
        assert!(!line.trim_end().contains('\n') && program.is_absolute(), "{line:?}");
        let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&cli).unwrap().permissions());
        assert_eq!(mode & 0o7777, 0o600);

        let app = volume.app(&sandbox);
        let mut command = Command::new(&program);
        command.env_clear().args(["crust", "stats"]).arg(&volume.target).current_dir("/");
        let run = Run::capture(&mut command).success();
        assert_eq!((run.stdout, run.stderr), (expected(&app, "/data"), String::new()));
        for container in [&app, &sandbox] {
            container.stop();
            let _ = container.delete().success();
        }
        assert!(!cli.exists(), "it exists after the last user has ended");
    }

    fn stats_come_from_an_app_if_the_sandbox_was_killed(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        let app = volume.node.app(&sandbox, &volume.target, "/data/deep");
        process::kill_now(sandbox.pid());
        wait_until("the sandbox to end", WAIT_TIMEOUT, || !sandbox.is_alive());
        let _ = app.sh("dd if=/dev/zero of=/data/deep/file bs=1M count=3 2>/dev/null; sync");
        assert_eq!(stats(&volume), expected(&app, "/data/deep"));
    }

    fn stats_do_not_keep_the_device_busy(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        for _ in 0..20 {
            let _ = stats(&volume);
        }
        assert_eq!(volume.device.host_mounts(), <[String; 0]>::default());
        sandbox.stop();
        let _ = sandbox.delete().success();
        volume.device.wait_until_free(WAIT_TIMEOUT);
        assert_error(volume.stats(), "FAILED_PRECONDITION", &["pv-1"]);
        assert!(volume.device.is_free());
    }

    fn a_mountpoint_replaced_by_a_link_is_not_followed(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        let bundle = volume.app_bundle(&sandbox).all_capabilities();
        let app = volume.run(&bundle.write());
        let _ = app.sh("umount /data && rmdir /data && ln -s / /data");
        process::kill_now(sandbox.pid());
        wait_until("the sandbox to end", WAIT_TIMEOUT, || !sandbox.is_alive());
        assert_error(volume.stats(), "FAILED_PRECONDITION", &["pv-1"]);
    }
}
