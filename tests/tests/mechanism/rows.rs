//! What sets the ways of mounting a volume apart (docs/adr/0010-mount-in-the-sandbox.md), a test a
//! row: by the sandbox and a bind, and by a hook in the container, which does what it can and
//! refuses the rest.

use std::fs;

use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::{Bundle, Container, LoopDevice, Node, StagedVolume, on_each_delegate};

use super::hook::{self, failure_of, with_mountpoint};
use super::{end, kill};

/// Whether root in the container, with every capability, reads the volume's raw blocks.
fn reads_the_raw_device(container: &Container, device: &LoopDevice) -> bool {
    let (major, minor) = device.number().split_once(':').unwrap();
    let _ = container
        .exec(&["/bin/mknod", "/raw", "b", major, minor])
        .success();
    let read = container.exec(&["/bin/dd", "if=/raw", "of=/dev/null", "count=1"]);
    assert!(
        read.status.success() || read.stderr.contains("not permitted"),
        "{read}"
    );
    read.status.success()
}

fn nested(bundle: Bundle, node: &Node) -> Bundle {
    let below = node.dir().subdir("below");
    fs::write(below.join("mark"), "below").unwrap();
    bundle.bind(below, "/data/inner", &[])
}

on_each_delegate! {
    fn raw_device_not_with_a_bind(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        for bundle in [volume.node.app_bundle(&sandbox), Bundle::plain(volume.dir())] {
            let bundle = bundle.bind(&volume.target, "/data", &[]).all_capabilities();
            let container = volume.run(&bundle.write());
            assert!(!reads_the_raw_device(&container, &volume.device), "{}", container.id());
        }
    }

    fn raw_device_with_a_hook(delegate: Delegate) {
        let volume = StagedVolume::on(hook::node(delegate), &[]);
        let bundle = volume.plain_bundle().all_capabilities();
        let container = volume.run(&with_mountpoint(bundle, "/data"));
        assert!(reads_the_raw_device(&container, &volume.device), "the price of this form");
    }

    fn mounts_nested_below_the_volume_are_seen_with_a_bind(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        for bundle in [volume.node.app_bundle(&sandbox), Bundle::plain(volume.dir())] {
            let container = volume.run(&nested(bundle.bind(&volume.target, "/data", &[]), &volume).write());
            assert_eq!(container.sh("cat /data/inner/mark"), "below");
        }
    }

    fn mounts_nested_below_the_volume_are_refused_with_a_hook(delegate: Delegate) {
        let volume = StagedVolume::on(hook::node(delegate), &[]);
        let bundle = nested(volume.plain_bundle(), &volume);
        let container = volume.container(&with_mountpoint(bundle, "/data"));
        let error = container.expect_refusal();
        assert!(error.contains("mount /data/inner is at or below /data"), "{error}");
    }

    fn a_mountpoint_missing_in_a_read_only_rootfs_is_made(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        for bundle in [volume.node.app_bundle(&sandbox), Bundle::plain(volume.dir())] {
            let bundle = bundle.bind(&volume.target, "/missing/here", &[]).readonly_rootfs();
            let container = volume.run(&bundle.write());
            let _ = container.sh("echo x > /missing/here/file");
            let _ = container.exec(&["/bin/touch", "/x"]).failure();
        }
    }

    fn a_missing_mountpoint_is_refused_with_a_hook(delegate: Delegate) {
        let volume = StagedVolume::on(hook::node(delegate), &[]);
        let plain = || Bundle::plain(volume.dir()).bind(&volume.target, "/missing/here", &[]).readonly_rootfs();
        let log = failure_of(&volume, &volume.container(&plain().write()));
        assert!(log.contains("mount /missing/here: the container has no such"), "{log}");
        // What is there can be mounted on, read-only or not.
        let container = volume.run(&with_mountpoint(plain(), "/missing/here"));
        let _ = container.sh("echo x > /missing/here/file");
        let _ = container.exec(&["/bin/touch", "/x"]).failure();
    }

    fn a_user_namespace_has_its_volume_with_a_bind(delegate: Delegate) {
        let volume = StagedVolume::new(delegate);
        let bundle = volume.plain_bundle();
        let container = volume.run(&bundle.user_namespace(500_000, None).write());
        assert_eq!(container.sh("echo x > /data/file; stat -c %u /data/file"), "0");
    }

    fn a_user_namespace_is_refused_with_a_hook(delegate: Delegate) {
        let volume = StagedVolume::on(hook::node(delegate), &[]);
        let bundle = volume.plain_bundle().user_namespace(500_000, None);
        let container = volume.container(&with_mountpoint(bundle, "/data"));
        let error = container.expect_refusal();
        assert!(error.contains("in a user namespace a hook can't mount a device"), "{error}");
    }

    fn one_superblock_a_pod_survives_restarts_with_a_bind(delegate: Delegate) {
        let volume = StagedVolume::with(delegate, &["--fs-group", "4242"]);
        let sandbox = volume.sandbox();
        let app = volume.app(&sandbox);
        let _ = app.sh("echo x > /data/file; chgrp 7 /data/file");
        kill(app.pid());
        let _ = app.delete_force();
        assert!(!volume.device.is_free(), "the sandbox has it");
        let again = volume.app(&sandbox);
        assert_eq!(again.sh("stat -c %g /data/file"), "7", "nothing was done to it again");
    }

    fn a_superblock_a_container_ends_with_it_with_a_hook(delegate: Delegate) {
        let volume = StagedVolume::on(hook::node(delegate), &["--fs-group", "4242"]);
        let sandbox = volume.sandbox();
        let app = || volume.run(&with_mountpoint(volume.app_bundle(&sandbox), "/data"));
        let first = app();
        let _ = first.sh("echo x > /data/file; chgrp 7 /data/file");
        end([first]);
        volume.device.wait_until_free(WAIT_TIMEOUT);
        let again = app();
        assert_eq!(again.sh("cat /data/file; stat -c %g /data/file"), "x\n4242", "mounted and prepared anew");
    }
}

#[test]
#[ignore = "needs a crun that mounts after pivot_root (1.29 or newer), which Debian 12 hasn't: CRUN=/path/to/crun"]
fn a_delegate_that_has_pivoted_already_is_refused_with_a_hook() {
    let volume = StagedVolume::on(hook::node(runcrust_tests::Delegate::Crun), &[]);
    let bundle = volume.plain_bundle();
    let log = failure_of(
        &volume,
        &volume.container(&with_mountpoint(bundle, "/data")),
    );
    assert!(log.contains("after pivot_root"), "{log}");
}

#[test]
#[ignore = "needs a crun that mounts after pivot_root (1.29 or newer), which Debian 12 hasn't: CRUN=/path/to/crun"]
fn a_delegate_that_has_pivoted_already_is_fine_with_a_bind() {
    let (volume, sandbox) = StagedVolume::with_sandbox(runcrust_tests::Delegate::Crun);
    let app = volume.app(&sandbox);
    let _ = app.sh("echo x > /data/file");
}
