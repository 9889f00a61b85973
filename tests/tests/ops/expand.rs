//! `RuntimeExpandVolume`, while the volume is in use and before.

use runcrust_tests::container::end;
use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::ops::stage_request;
use runcrust_tests::volume::fsck;
use runcrust_tests::writer::{WRITER, assert_no_line_missing, wait_for_lines};
use runcrust_tests::{Container, Delegate, LoopDevice, Node, Ops, POD, on_each_delegate};
use tonic::Code::{FailedPrecondition, OutOfRange};

use crate::{expect_error, reason};

const MIB: i64 = 1 << 20;

/// Returns a device with an empty file system, and its size in bytes.
fn device(node: &Node, fstype: &'static str) -> (LoopDevice, i64) {
    let mebibytes = match fstype {
        "xfs" => 320,
        "btrfs" => 256,
        _ => 64,
    };
    let device = LoopDevice::formatted(node.dir(), fstype, mebibytes);
    (device, mebibytes.cast_signed() * MIB)
}

fn set_size(device: &LoopDevice, bytes: i64) {
    device.set_size(bytes.cast_unsigned());
}

/// Returns the size of the file system in bytes, as a container sees it.
#[track_caller]
fn size_in(app: &Container) -> i64 {
    let text = app.sh("stat -f -c '%S %b' /data");
    let numbers = text.split(' ').map(|word| word.parse::<i64>().unwrap());
    numbers.product()
}

fn assert_grows_under_a_writer(delegate: Delegate, fstype: &'static str) {
    let (node, ops) = Ops::with_node(delegate);
    let (device, before) = device(&node, fstype);
    let after = before + 256 * MIB;
    let target = node.target(POD, "pv-1");
    ops.stage(stage_request(&target, &device)).unwrap();
    let sandbox = node.sandbox(POD);
    let bundle = node.app_bundle(&sandbox).bind(&target, "/data", &[]);
    let app = node.run(&bundle.script(WRITER).write());
    let one = wait_for_lines(&app, 3);
    let size_before = size_in(&app);
    assert_eq!(
        ops.expand(&target, 0, 0).unwrap(),
        before,
        "the device has not grown yet"
    );

    set_size(&device, after);
    let two = wait_for_lines(&app, one);
    assert_eq!(ops.expand(&target, after, 0).unwrap(), after);
    wait_for_lines(&app, two);
    let size_after = size_in(&app);
    assert!(
        size_after >= size_before + 200 * MIB,
        "{size_before} became {size_after}"
    );
    assert_eq!(
        ops.expand(&target, after, after).unwrap(),
        after,
        "the repeated call"
    );
    let stats = ops.stats(&target).unwrap();
    assert!(
        stats.usage.iter().any(|usage| usage.total == size_after),
        "{stats:?}"
    );
    assert_no_line_missing(&app);

    for (least, most) in [(after + 1, 0), (0, after - 1), (1, before)] {
        let call = ops.expand(&target, least, most);
        assert_eq!(reason(&call), "RUNTIME");
        let error = expect_error(call, OutOfRange);
        assert!(error.starts_with("volume pv-1: "), "{error}");
        assert_eq!(error.matches("volume pv-1").count(), 1, "{error}");
    }
    assert_eq!(size_in(&app), size_after);
    end([app, sandbox]);
    ops.unstage(&target).unwrap();
    device.wait_until_free(WAIT_TIMEOUT);
    fsck(fstype, device.path());
}

fn assert_grows_with_its_mount(delegate: Delegate, fstype: &'static str) {
    let (node, ops) = Ops::with_node(delegate);
    let (device, before) = device(&node, fstype);
    let after = before + 256 * MIB;
    let target = node.target(POD, "pv-1");
    ops.stage(stage_request(&target, &device)).unwrap();
    let recorded = || node.entry(&target).join("resize.json").exists();
    expect_error(ops.expand(&target, after, 0), OutOfRange);
    expect_error(ops.expand(&target, 0, before - 1), OutOfRange);
    assert!(!recorded());
    set_size(&device, after);
    assert_eq!(ops.expand(&target, after, 0).unwrap(), after);
    assert!(recorded() && device.is_free());
    let sandbox = node.sandbox(POD);
    let app = node.app(&sandbox, &target, "/data");
    assert!(
        size_in(&app) > before,
        "the mount carried out the expansion"
    );
    assert!(!recorded());
    assert_eq!(ops.expand(&target, after, 0).unwrap(), after);
}

on_each_delegate! {
    fn xfs_grows_under_a_writer(delegate: Delegate) {
        assert_grows_under_a_writer(delegate, "xfs");
    }

    fn btrfs_grows_under_a_writer(delegate: Delegate) {
        assert_grows_under_a_writer(delegate, "btrfs");
    }

    #[ignore = "needs CAP_SYS_RESOURCE; runs in the guest: make vm-test"]
    fn ext4_grows_under_a_writer(delegate: Delegate) {
        assert_grows_under_a_writer(delegate, "ext4");
    }

    fn xfs_grows_with_its_mount(delegate: Delegate) {
        assert_grows_with_its_mount(delegate, "xfs");
    }

    fn btrfs_grows_with_its_mount(delegate: Delegate) {
        assert_grows_with_its_mount(delegate, "btrfs");
    }

    #[ignore = "needs CAP_SYS_RESOURCE; runs in the guest: make vm-test"]
    fn ext4_grows_with_its_mount(delegate: Delegate) {
        assert_grows_with_its_mount(delegate, "ext4");
    }

    fn a_read_only_volume_does_not_grow(delegate: Delegate) {
        let (node, ops) = Ops::with_node(delegate);
        let (device, before) = device(&node, "xfs");
        let target = node.target(POD, "pv-1");
        let mut request = stage_request(&target, &device);
        request.mount_flags = vec!["ro".into()];
        ops.stage(request).unwrap();
        set_size(&device, before + 64 * MIB);
        let _sandbox = node.sandbox(POD);
        let error = expect_error(ops.expand(&target, 0, 0), FailedPrecondition);
        assert!(error.contains("read-only"), "{error}");
    }
}
