//! `unstage`: when it is refused, and what it leaves.

use std::path::PathBuf;

use runcrust_tests::container::kill_everything;
use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::{Container, Delegate, Node, POD, StagedVolume, on_each_delegate};

use crate::output::{assert_done, assert_error};

#[test]
fn unstaging_is_idempotent_and_ignores_unknown_paths() {
    let (node, device) = Node::with_ext4(Delegate::Runc);
    let (kept, target) = (
        node.stage("pod-a", "pv-1", &device, &[]),
        node.stage("pod-a", "pv-2", &device, &[]),
    );
    let before = node.records();
    for unknown in [
        node.target("pod-a", "pv-3"),
        kept.join("sub"),
        PathBuf::from("/no/such/path"),
    ] {
        assert_done(node.unstage(&unknown));
    }
    assert_eq!(node.records(), before);
    for _ in 0..2 {
        assert_done(node.unstage(&target));
        assert!(!node.entry(&target).exists());
        assert!(node.entry(&kept).exists());
    }
    assert!(target.is_dir(), "unstage removed the driver's directory");
}

#[test]
fn unstage_without_a_crust_directory_succeeds() {
    let node = Node::new(Delegate::Runc);
    assert_done(node.unstage(&node.target("pod-a", "pv-1")));
    assert_eq!(node.records(), <[PathBuf; 0]>::default());
}

#[test]
fn a_volume_of_a_detached_device_can_be_unstaged() {
    let (node, device) = Node::with_ext4(Delegate::Runc);
    let target = node.stage(POD, "pv-1", &device, &[]);
    let sandbox = node.sandbox(POD);
    sandbox.stop();
    let _ = sandbox.delete().success();
    std::fs::remove_dir_all(sandbox.bundle()).unwrap();
    device.wait_until_free(WAIT_TIMEOUT);
    drop(device);
    assert_done(node.unstage(&target));
    assert_eq!(node.records(), <[PathBuf; 0]>::default());
}

#[test]
fn an_unreadable_entry_is_removed() {
    let volume = StagedVolume::new(Delegate::Runc);
    std::fs::write(volume.entry().join("mountInfo.json"), "{").unwrap();
    assert_done(volume.unstage());
    assert_eq!(volume.records(), <[PathBuf; 0]>::default());
}

on_each_delegate! {
    fn a_volume_in_use_stays_until_its_last_user_ends(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        let assert_used_by = |user: &Container| {
            let before = volume.records();
            let names = ["pv-1", user.id(), POD];
            assert_error(volume.unstage(), "FAILED_PRECONDITION", &names);
            assert_eq!(volume.records(), before);
        };
        assert_used_by(&sandbox);
        let app = volume.app(&sandbox);
        assert_used_by(&sandbox);
        // The app has its own pid namespace, so it survives the sandbox and keeps the volume.
        sandbox.stop();
        let _ = sandbox.delete().success();
        assert_used_by(&app);
        assert_eq!(app.sh("echo on > /data/file; cat /data/file"), "on");
        app.stop();
        let _ = app.delete().success();
        assert_done(volume.unstage());
        assert!(volume.device.is_free());
    }

    fn a_created_container_uses_its_volume(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        let app = volume.container(&volume.app_bundle(&sandbox).write());
        let _ = app.create().success();
        sandbox.stop();
        let _ = sandbox.delete().success();
        assert_error(volume.unstage(), "FAILED_PRECONDITION", &["pv-1", app.id()]);
    }

    /// Neither a hook nor `delete` runs for the killed containers.
    fn unstage_succeeds_after_all_processes_are_killed(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        let one = volume.app(&sandbox);
        let two = volume.node.app(&sandbox, &volume.target.join("sub"), "/data");
        let _ = one.sh("dd if=/dev/zero of=/data/file bs=1M count=8 2>/dev/null");
        kill_everything(&[&sandbox, &one, &two]);
        assert_done(volume.unstage());
        assert!(volume.device.is_free(), "unstage returned before the device was free");
        assert!(!volume.entry().exists());
        let owners = volume.handler().state_dir().join("owners");
        assert_eq!(std::fs::read_dir(owners).unwrap().count(), 0);
        assert_eq!(std::fs::read_dir(&volume.target).unwrap().count(), 0);
    }
}
