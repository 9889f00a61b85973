//! Minimum and maximum sizes of a resize.

use runcrust_tests::node::utf8;
use runcrust_tests::volume::mkfs;
use runcrust_tests::{Delegate, LoopDevice, Node, StagedVolume, on_each_delegate};

use super::{MIB, capacity, device, device_size, is_recorded, size_in_container, stage_new};
use crate::output::assert_error;

#[test]
fn invalid_sizes_are_named() {
    let node = Node::new(Delegate::Runc);
    let device = device(&node, "ext4");
    let target = node.stage("pod-a", "pv-1", &device, &[]);
    let target = utf8(&target);
    for (arguments, named) in [
        (vec!["resize", target], "MIN_BYTES"),
        (vec!["resize", target, "0"], "MAX_BYTES"),
        (vec!["resize", target, "0", "0", "0"], "0"),
        (vec!["resize", target, "-1", "0"], "-1"),
        (vec!["resize", target, "0", "-4096"], "-4096"),
        (vec!["resize", target, "1GiB", "0"], "1GiB"),
        (vec!["resize", target, "", "0"], "MIN_BYTES"),
        (vec!["resize", target, "1.5", "0"], "1.5"),
        (
            vec!["resize", target, "9223372036854775808", "0"],
            "9223372036854775808",
        ),
        (
            vec!["resize", target, "2", "1"],
            "the minimum of 2 bytes is larger than the maximum of 1",
        ),
        (vec!["resize", "pods/a/mount", "0", "0"], "relative"),
    ] {
        let run = node.handler().crust(&arguments);
        assert_error(run, "INVALID_ARGUMENT", &[named]);
    }
}

#[test]
fn a_volume_that_is_not_staged_is_not_found() {
    let node = Node::new(Delegate::Runc);
    let unknown = node.target("pod-a", "pv-1");
    assert_error(node.resize(&unknown, 0, 0), "NOT_FOUND", &["pv-1"]);
    let half = node.target("pod-a", "pv-2");
    std::fs::create_dir_all(node.entry(&half)).unwrap();
    assert_error(
        node.resize(&half, 0, 0),
        "INTERNAL",
        &["pv-2", "mountInfo.json"],
    );
}

/// The limit is below the device's end, and not a multiple of the block size.
fn growth_ends_at_the_limit(delegate: Delegate, fstype: &'static str) {
    let node = Node::new(delegate);
    let device = device(&node, fstype);
    if fstype == "ext4" {
        // By default a small ext4 has smaller blocks than the other file systems.
        mkfs(fstype, device.path(), &["-b", "4096"]);
    }
    let before = device_size(&device);
    let volume = StagedVolume::on_device(node, device, &[]);
    let sandbox = volume.sandbox();
    let app = volume.app(&sandbox);
    volume.device.set_size(600 * MIB);
    let (min, max) = (400 * MIB - 4096, 400 * MIB + 4095);
    assert_eq!(capacity(volume.resize(min, max)), 400 * MIB);
    let now = size_in_container(&app, "/data");
    assert!(now <= 400 * MIB && now > before, "{now}");
    let between = (500 * MIB + 1, 500 * MIB + 4095);
    let names = ["pv-1", &between.0.to_string(), &between.1.to_string()];
    let run = volume.resize(between.0, between.1);
    assert_error(run, "OUT_OF_RANGE", &names);
    assert_eq!(size_in_container(&app, "/data"), now);
    assert_eq!(capacity(volume.resize(400 * MIB, 0)), 600 * MIB);
}

on_each_delegate! {
    fn a_device_that_is_too_small_is_named_with_a_hint(delegate: Delegate) {
        let volume = stage_new(delegate, "xfs");
        let refused = || {
            let names = ["pv-1", utf8(volume.device.path()), "335544320", "335544321", "expand", "rescan"];
            assert_error(volume.resize(320 * MIB + 1, 0), "OUT_OF_RANGE", &names);
            assert!(!is_recorded(&volume.entry()));
        };
        refused();
        let sandbox = volume.sandbox();
        let app = volume.app(&sandbox);
        let before = size_in_container(&app, "/data");
        refused();
        assert_eq!(size_in_container(&app, "/data"), before);
        assert_eq!(capacity(volume.resize(320 * MIB, 0)), 320 * MIB);
    }

    fn a_maximum_below_the_present_size_is_refused(delegate: Delegate) {
        let node = Node::new(delegate);
        for (fstype, present) in [("ext4", 64), ("xfs", 320), ("btrfs", 256)] {
            let device = device(&node, fstype);
            let target = node.stage(fstype, "pv-1", &device, &[]);
            let (max, bytes) = (present * MIB - 1, (present * MIB).to_string());
            let refused = || {
                let names = ["pv-1", utf8(device.path()), &bytes, &max.to_string()];
                assert_error(node.resize(&target, 0, max), "OUT_OF_RANGE", &names);
                assert!(!is_recorded(&node.entry(&target)), "{fstype}");
            };
            refused();
            let _sandbox = node.sandbox(fstype);
            refused();
            assert_eq!(capacity(node.resize(&target, 0, present * MIB)), present * MIB);
        }
    }

    fn growth_ends_in_whole_blocks_below_the_maximum_on_xfs(delegate: Delegate) {
        growth_ends_at_the_limit(delegate, "xfs");
    }

    fn growth_ends_in_whole_blocks_below_the_maximum_on_btrfs(delegate: Delegate) {
        growth_ends_at_the_limit(delegate, "btrfs");
    }

    #[ignore = "needs CAP_SYS_RESOURCE; runs in the guest: make vm-test"]
    fn growth_ends_in_whole_blocks_below_the_maximum_on_ext4(delegate: Delegate) {
        growth_ends_at_the_limit(delegate, "ext4");
    }

    /// A caller cannot avoid the part at the device's end that xfs or btrfs cannot use.
    fn a_device_with_an_unusable_end_meets_its_minimum(delegate: Delegate) {
        let node = Node::new(delegate);
        for (fstype, odd) in [("xfs", 600 * MIB + 8192), ("btrfs", 600 * MIB + 512)] {
            let device = device(&node, fstype);
            let target = node.stage(fstype, "pv-1", &device, &[]);
            let _sandbox = node.sandbox(fstype);
            device.set_size(odd);
            for _ in 0..2 {
                let got = capacity(node.resize(&target, odd, odd));
                assert!(got <= odd && got >= 600 * MIB, "{fstype}: {got}");
            }
        }
    }

    fn a_btrfs_too_small_to_grow_names_the_minimum_size(delegate: Delegate) {
        let node = Node::new(delegate);
        let device = LoopDevice::formatted(node.dir(), "btrfs", 128);
        let target = node.stage("pod-a", "pv-1", &device, &[]);
        let _sandbox = node.sandbox("pod-a");
        device.set_size(200 * MIB);
        let names = ["pv-1", utf8(device.path()), "268435456"];
        assert_error(node.resize(&target, 200 * MIB, 0), "OUT_OF_RANGE", &names);
        assert_eq!(capacity(node.resize(&target, 0, 0)), 128 * MIB);
        device.set_size(256 * MIB);
        assert_eq!(capacity(node.resize(&target, 200 * MIB, 0)), 256 * MIB);
    }
}
