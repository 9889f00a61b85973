//! The effect of access modes on a second pod.

use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::{Delegate, MountWatcher, Node, Pod, on_each_delegate, process, wait_until};

const ONE_POD: [&str; 2] = ["--access-mode", "SINGLE_NODE_SINGLE_WRITER"];
const WRITER: [&str; 2] = ["--access-mode", "SINGLE_NODE_WRITER"];
const MULTI_WRITER: [&str; 2] = ["--access-mode", "SINGLE_NODE_MULTI_WRITER"];

/// Asserts that both pods get the volume, with one superblock.
fn assert_shared(delegate: Delegate, first: &[&str], second: &[&str]) {
    let (node, device) = Node::with_ext4(delegate);
    let watcher = MountWatcher::start(device.path());
    let a = Pod::new(&node, "pod-a", &device, first);
    let one = a.app();
    let _ = one.sh("echo from a > /data/a");
    let b = Pod::new(&node, "pod-b", &device, second);
    let two = b.app();
    assert_eq!(two.sh("cat /data/a; echo from b > /data/b"), "from a");
    assert_eq!(one.sh("cat /data/b"), "from b");
    assert_eq!(one.sh("stat -c %d /data"), two.sh("stat -c %d /data"));
    watcher.assert_never_mounted();

    // Either pod may end first, without an effect on the other.
    a.end([one]);
    let _ = node.unstage(&a.target).success();
    assert_eq!(
        two.sh("cat /data/a; echo still > /data/b; cat /data/b"),
        "from a\nstill"
    );
    assert!(!device.is_free());
    b.end([two]);
    let _ = node.unstage(&b.target).success();
    assert!(device.is_free());
    a.assert_target_empty();
    b.assert_target_empty();
}

/// Asserts that the second pod is refused until the first one has ended.
fn assert_exclusive(delegate: Delegate, first: &[&str], second: &[&str]) {
    let (node, device) = Node::with_ext4(delegate);
    let a = Pod::new(&node, "pod-a", &device, first);
    let one = a.app();
    let _ = one.sh("echo from a > /data/a");
    // The sandbox's hook could not mount the volume, and the app's create reports it.
    let b = Pod::new(&node, "pod-b", &device, second);
    assert!(!b.has(&device));
    let sentence = b.expect_refusal_naming(&a);
    assert!(sentence.contains("SINGLE_NODE_SINGLE_WRITER"), "{sentence}");
    assert!(sentence.contains("ReadWriteOncePod"), "{sentence}");
    assert!(!b.has(&device));
    assert_eq!(one.sh("cat /data/a"), "from a");
    b.assert_target_empty();

    a.end([one]);
    assert_eq!(b.app().sh("cat /data/a"), "from a");
    let _ = node.unstage(&a.target).success();
    assert!(b.has(&device));
}

on_each_delegate! {
    fn volumes_without_an_access_mode_are_shared(delegate: Delegate) {
        assert_shared(delegate, &[], &[]);
    }

    fn single_node_writer_volumes_are_shared(delegate: Delegate) {
        assert_shared(delegate, &WRITER, &WRITER);
    }

    fn multi_writer_volumes_are_shared(delegate: Delegate) {
        assert_shared(delegate, &MULTI_WRITER, &MULTI_WRITER);
    }

    fn different_shareable_modes_are_shared(delegate: Delegate) {
        assert_shared(delegate, &WRITER, &[]);
    }

    fn read_write_once_pod_keeps_others_out(delegate: Delegate) {
        assert_exclusive(delegate, &ONE_POD, &[]);
    }

    fn read_write_once_pod_does_not_join_others(delegate: Delegate) {
        assert_exclusive(delegate, &MULTI_WRITER, &ONE_POD);
    }

    fn the_first_of_two_read_write_once_pods_has_the_volume(delegate: Delegate) {
        assert_exclusive(delegate, &ONE_POD, &ONE_POD);
    }

    /// kubelet may create a new sandbox of a pod while an app of the old one still runs.
    fn a_pods_second_sandbox_is_not_a_second_pod(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        let a = Pod::new(&node, "pod-a", &device, &ONE_POD);
        let old = a.app();
        let _ = old.sh("echo from the old > /data/file");
        process::kill_now(a.sandbox.pid());
        wait_until("the sandbox to end", WAIT_TIMEOUT, || !a.sandbox.is_alive());
        let sandbox = node.sandbox("pod-a");
        let new = node.app(&sandbox, &a.target, "/data");
        assert_eq!(new.sh("cat /data/file"), "from the old");
        assert_eq!(new.sh("stat -c %d /data"), old.sh("stat -c %d /data"));
    }

    fn an_app_that_outlives_its_sandbox_keeps_the_volume(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        let a = Pod::new(&node, "pod-a", &device, &ONE_POD);
        let app = a.app();
        process::kill_now(a.sandbox.pid());
        wait_until("the sandbox to end", WAIT_TIMEOUT, || !a.sandbox.is_alive());
        let b = Pod::new(&node, "pod-b", &device, &[]);
        let _ = b.expect_refusal_naming(&a);
        app.stop();
        let _ = app.delete().success();
        let _ = b.app();
    }

    /// No hook has run, and the volume was not unstaged: only living processes count.
    fn a_killed_pod_does_not_hold_its_volume(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        let a = Pod::new(&node, "pod-a", &device, &ONE_POD);
        let app = a.app();
        for container in [&app, &a.sandbox] {
            process::kill_now(container.pid());
        }
        wait_until("the pod to end", WAIT_TIMEOUT, || !app.is_alive() && !a.sandbox.is_alive());
        device.wait_until_free(WAIT_TIMEOUT);
        let b = Pod::new(&node, "pod-b", &device, &ONE_POD);
        assert!(b.has(&device));
        let _ = b.app();
        let _ = node.unstage(&a.target).success();
    }

    fn shared_deny_refuses_every_second_pod(delegate: Delegate) {
        let node = Node::with(delegate, "shared = \"deny\"");
        let device = node.ext4();
        let a = Pod::new(&node, "pod-a", &device, &MULTI_WRITER);
        let apps = [a.app(), a.app()];
        let b = Pod::new(&node, "pod-b", &device, &MULTI_WRITER);
        let sentence = b.expect_refusal_naming(&a);
        assert!(sentence.contains("shared = \"deny\""), "{sentence}");
        a.end(apps);
        let _ = b.app();
    }
}
