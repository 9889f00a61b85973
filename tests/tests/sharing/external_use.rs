//! Devices that are in use without a record of runcrust's.

use std::sync::mpsc;
use std::thread;

use runcrust_tests::refusal::assert_contains;
use runcrust_tests::{LoopDevice, Node, Pod, on_each_delegate, volume};

/// Runs `work` while the device is mounted in a separate mount namespace.
fn while_mounted<T>(device: &LoopDevice, work: impl FnOnce() -> T) -> T {
    let (mounted, is_mounted) = mpsc::channel();
    let (done, is_done) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let holder = scope.spawn(move || {
            volume::with_mounted(device.path(), move |_| {
                mounted.send(()).expect("a receiver");
                // Ends when the sender is dropped, after a panic too.
                let _ = is_done.recv();
            });
        });
        is_mounted.recv().expect("a mount");
        let result = work();
        drop(done);
        holder.join().expect("an unmount");
        result
    })
}

on_each_delegate! {
    fn a_device_mounted_by_others_is_refused(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        let pod = while_mounted(&device, || {
            assert_eq!(device.host_mounts(), <[String; 0]>::default(), "the mount is visible on the host");
            let pod = Pod::new(&node, "pod-a", &device, &[]);
            assert!(!pod.has(&device));
            let sentence = pod.expect_refusal();
            let path = device.path().to_str().unwrap();
            assert_contains(&sentence, &[path, "in use", "hint: "]);
            assert!(!pod.has(&device));
            pod.assert_target_empty();
            pod
        });
        // kubelet retries.
        let app = pod.app();
        assert_eq!(app.sh("echo hello > /data/file; cat /data/file"), "hello");
    }

    /// Only the first mount checks whether the device is in use; later ones join the superblock.
    fn a_volume_mounted_by_its_sandbox_is_joined(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        let pod = Pod::new(&node, "pod-a", &device, &[]);
        assert!(pod.has(&device) && !device.is_free());
        let (one, two) = (pod.app(), pod.app());
        let _ = one.sh("echo hello > /data/file");
        assert_eq!(two.sh("cat /data/file"), "hello");
    }

    /// Waiting for the device would never end.
    fn unstaging_does_not_wait_for_another_pods_device(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        let (a, b) =
            (Pod::new(&node, "pod-a", &device, &[]), Pod::new(&node, "pod-b", &device, &[]));
        let app = b.app();
        a.end([]);
        let _ = node.unstage(&a.target).success();
        assert!(!node.entry(&a.target).exists());
        assert!(!device.is_free());
        assert_eq!(app.sh("echo on > /data/file; cat /data/file"), "on");
        let _ = node.unstage(&b.target).failure();
    }
}
