//! What the access modes say of a second pod.

use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::{Delegate, MountWatcher, Node, Pod, on_each_delegate, process, wait_until};

const ONE_POD: [&str; 2] = ["--access-mode", "SINGLE_NODE_SINGLE_WRITER"];
const WRITER: [&str; 2] = ["--access-mode", "SINGLE_NODE_WRITER"];
const MULTI_WRITER: [&str; 2] = ["--access-mode", "SINGLE_NODE_MULTI_WRITER"];

/// Both pods get the volume: one kernel, one superblock.
fn shared(delegate: Delegate, first: &[&str], second: &[&str]) {
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

    // Either may go first, and takes nothing from the other.
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

/// The second pod waits for the first one's end.
fn one_after_the_other(delegate: Delegate, first: &[&str], second: &[&str]) {
    let (node, device) = Node::with_ext4(delegate);
    let a = Pod::new(&node, "pod-a", &device, first);
    let one = a.app();
    let _ = one.sh("echo from a > /data/a");
    // Its sandbox could not have it, and the app says so.
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
    fn no_access_mode_allows_a_second_pod(delegate: Delegate) {
        shared(delegate, &[], &[]);
    }

    fn a_single_node_writer_allows_a_second_pod(delegate: Delegate) {
        shared(delegate, &WRITER, &WRITER);
    }

    fn a_multi_writer_allows_a_second_pod(delegate: Delegate) {
        shared(delegate, &MULTI_WRITER, &MULTI_WRITER);
    }

    fn modes_that_allow_it_may_be_mixed(delegate: Delegate) {
        shared(delegate, &WRITER, &[]);
    }

    fn read_write_once_pod_keeps_others_out(delegate: Delegate) {
        one_after_the_other(delegate, &ONE_POD, &[]);
    }

    fn read_write_once_pod_does_not_join_others(delegate: Delegate) {
        one_after_the_other(delegate, &MULTI_WRITER, &ONE_POD);
    }

    fn of_two_that_are_read_write_once_pod_the_first_has_it(delegate: Delegate) {
        one_after_the_other(delegate, &ONE_POD, &ONE_POD);
    }

    /// kubelet makes a pod's sandbox anew while an app of the old one still runs.
    fn a_pods_second_sandbox_is_no_second_pod(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        let a = Pod::new(&node, "pod-a", &device, &ONE_POD);
        let old = a.app();
        let _ = old.sh("echo from the old > /data/file");
        process::kill_now(a.sandbox.pid());
        wait_until("the sandbox to end", WAIT_TIMEOUT, || !a.sandbox.is_alive());
        let again = node.sandbox("pod-a");
        let new = node.app(&again, &a.target, "/data");
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

    /// No hook ran and nobody unstaged: what counts is that no process of the pod lives.
    fn a_pod_that_was_killed_is_no_holder(delegate: Delegate) {
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

    fn a_strict_node_keeps_every_second_pod_out(delegate: Delegate) {
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
