//! A pod with a deferred volume, by the runtime's command line.

use runcrust_tests::node::PATIENCE;
use runcrust_tests::{MountWatcher, Node, on_each_delegate};

on_each_delegate! {
    fn two_apps_share_one_superblock_that_the_host_never_sees(delegate: Delegate) {
        let node = Node::new(delegate);
        let device = node.ext4();
        let target = node.stage("pod-a", "pv-1", &device, &[]);
        let watcher = MountWatcher::start(device.path());
        let sandbox = node.sandbox("pod-a");
        let one = node.app(&sandbox, &target, "/data");
        let two = node.app(&sandbox, &target, "/elsewhere/deep");

        let _ = one.sh("echo hello > /data/file");
        assert_eq!(two.sh("cat /elsewhere/deep/file"), "hello");
        assert_eq!(one.sh("stat -c %d /data"), two.sh("stat -c %d /elsewhere/deep"));

        watcher.assert_never_mounted();
        for container in [one, two, sandbox] {
            container.stop();
            let _ = container.delete().success();
        }
        device.wait_until_free(PATIENCE);
        let _ = node.unstage(&target).success();
        assert_eq!(std::fs::read_dir(&target).unwrap().count(), 0, "nothing on the host");
    }
}
