//! The differences between the two ways of mounting a volume (docs/adr/0010-mount-in-the-sandbox.md), one test for each
//! row of the table: in the sandbox with a bind mount, or by a hook in the container, which refuses what it cannot do.

use std::fs;

use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::{Bundle, Container, LoopDevice, Node, StagedVolume, on_each_delegate};

use super::hook::{self, log_of_failed_create, with_mountpoint};
use super::{end, kill};

/// Returns whether root in the container, with all capabilities, can read the volume's raw device.
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

fn with_mount_in_volume(bundle: Bundle, node: &Node) -> Bundle {
    let below = node.dir().subdir("below");
    fs::write(below.join("mark"), "below").unwrap();
    bundle.bind(below, "/data/inner", &[])
}

on_each_delegate! {
    fn the_raw_device_is_unreadable_with_a_bind(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        for bundle in [volume.node.app_bundle(&sandbox), Bundle::plain(volume.dir())] {
            let bundle = bundle.bind(&volume.target, "/data", &[]).all_capabilities();
            let container = volume.run(&bundle.write());
            assert!(!reads_the_raw_device(&container, &volume.device), "{}", container.id());
        }
    }

    fn the_raw_device_is_readable_with_a_hook(delegate: Delegate) {
        let volume = StagedVolume::on(hook::node(delegate), &[]);
        let bundle = volume.plain_bundle().all_capabilities();
        let container = volume.run(&with_mountpoint(bundle, "/data"));
        assert!(reads_the_raw_device(&container, &volume.device), "the documented drawback of hooks");
    }

    fn mounts_below_the_volume_are_visible_with_a_bind(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        for bundle in [volume.node.app_bundle(&sandbox), Bundle::plain(volume.dir())] {
            let container = volume.run(&with_mount_in_volume(bundle.bind(&volume.target, "/data", &[]), &volume).write());
            assert_eq!(container.sh("cat /data/inner/mark"), "below");
        }
    }

    fn mounts_below_the_volume_are_refused_with_a_hook(delegate: Delegate) {
        let volume = StagedVolume::on(hook::node(delegate), &[]);
        let bundle = with_mount_in_volume(volume.plain_bundle(), &volume);
        let container = volume.container(&with_mountpoint(bundle, "/data"));
        let error = container.expect_refusal();
        assert!(error.contains("mount /data/inner is at or below /data"), "{error}");
    }

    fn a_mountpoint_missing_in_a_read_only_rootfs_is_created(delegate: Delegate) {
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
        let log = log_of_failed_create(&volume, &volume.container(&plain().write()));
        assert!(log.contains("mount /missing/here: the container has no such"), "{log}");
        // An existing mountpoint works, also in a read-only rootfs.
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

    fn a_pods_superblock_survives_restarts_with_a_bind(delegate: Delegate) {
        let volume = StagedVolume::with(delegate, &["--fs-group", "4242"]);
        let sandbox = volume.sandbox();
        let app = volume.app(&sandbox);
        let _ = app.sh("echo x > /data/file; chgrp 7 /data/file");
        kill(app.pid());
        let _ = app.delete_force();
        assert!(!volume.device.is_free(), "the sandbox does not use the device");
        let restarted = volume.app(&sandbox);
        assert_eq!(restarted.sh("stat -c %g /data/file"), "7", "fsGroup was applied again");
    }

    fn a_superblock_ends_with_its_container_with_a_hook(delegate: Delegate) {
        let volume = StagedVolume::on(hook::node(delegate), &["--fs-group", "4242"]);
        let sandbox = volume.sandbox();
        let app = || volume.run(&with_mountpoint(volume.app_bundle(&sandbox), "/data"));
        let first = app();
        let _ = first.sh("echo x > /data/file; chgrp 7 /data/file");
        end([first]);
        volume.device.wait_until_free(WAIT_TIMEOUT);
        let second = app();
        assert_eq!(second.sh("cat /data/file; stat -c %g /data/file"), "x\n4242", "fsGroup was not applied again");
    }
}

#[test]
#[ignore = "needs crun 1.29 or newer, which mounts after pivot_root and Debian 12 lacks: CRUN=/path/to/crun"]
fn mounting_after_pivot_root_is_refused_with_a_hook() {
    let volume = StagedVolume::on(hook::node(runcrust_tests::Delegate::Crun), &[]);
    let bundle = volume.plain_bundle();
    let log = log_of_failed_create(
        &volume,
        &volume.container(&with_mountpoint(bundle, "/data")),
    );
    assert!(log.contains("after pivot_root"), "{log}");
}

#[test]
#[ignore = "needs crun 1.29 or newer, which mounts after pivot_root and Debian 12 lacks: CRUN=/path/to/crun"]
fn mounting_after_pivot_root_works_with_a_bind() {
    let (volume, sandbox) = StagedVolume::with_sandbox(runcrust_tests::Delegate::Crun);
    let app = volume.app(&sandbox);
    let _ = app.sh("echo x > /data/file");
}
