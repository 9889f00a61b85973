//! A hanging file system only affects the volumes on it.

use std::fs;

use runcrust_tests::container::end;
use runcrust_tests::node::utf8;
use runcrust_tests::{HungFilesystem, LoopDevice, Node, Pod, on_each_delegate};

on_each_delegate! {
    /// The path of a loop device's backing file is never looked up.
    fn another_volumes_file_on_a_hung_directory_delays_nothing(delegate: Delegate) {
        let node = Node::new(delegate);
        let directory = node.dir().subdir("files");
        let file = directory.join("disk.img");
        fs::copy(node.ext4().file(), &file).unwrap();
        let (device, other) = (LoopDevice::on(&file), node.ext4());
        let a = Pod::new(&node, "pod-a", &device, &[]);
        let app = a.app();
        let hung = HungFilesystem::mount(&directory);
        let b = Pod::new(&node, "pod-b", &other, &[]);
        let bundle = node.app_bundle(&b.sandbox).bind(&b.target, "/data", &[]).write();
        let _ = node.handler().crust(&["explain", utf8(bundle.path())]).success();
        let _ = node.handler().crust(&["inspect", utf8(&b.target)]).success();
        let _ = node.handler().crust(&["list"]).success();
        assert_eq!(b.app().sh("echo x > /data/file; cat /data/file"), "x");
        assert_eq!(app.sh("echo x > /data/file; cat /data/file"), "x");
        drop(hung);
    }

    /// Only the kernel knows the backing file of a loop device, and it queries the file system of that file. The child
    /// process that hangs during this query delays no volume.
    fn another_loop_device_on_a_hung_file_delays_nothing(delegate: Delegate) {
        let node = Node::with(delegate, "sandbox = \"always\"");
        let directory = node.dir().subdir("files");
        let mut hung = HungFilesystem::mount_answering(&directory);
        let silent = [LoopDevice::on(&hung.file()), LoopDevice::on(&hung.file())];
        let (device, later_device) = (node.ext4(), node.ext4());
        hung.stop_answering();
        let pod = Pod::new(&node, "pod-a", &device, &[]);
        let app = pod.app();
        assert_eq!(app.sh("echo x > /data/file; cat /data/file"), "x");
        let found = node.handler().crust(&["inspect", utf8(device.path())]).success();
        assert!(found.stdout.contains("in use"), "{found}");
        // A volume that a container's create mounts, instead of the sandbox.
        let target = node.stage("pod-a", "pv-2", &later_device, &[]);
        let other = node.app(&pod.sandbox, &target, "/late");
        assert_eq!(other.sh("echo x > /late/file; cat /late/file"), "x");
        end([app, other]);
        pod.end([]);
        for target in [&pod.target, &target] {
            let _ = node.unstage(target).success();
        }
        // The hanging child processes keep the devices open until they get an answer.
        hung.fail();
        drop(silent);
    }

    /// The upper loop device answers, and the one below it hangs.
    fn a_loop_device_above_a_hung_one_delays_nothing(delegate: Delegate) {
        let node = Node::new(delegate);
        let mut hung = HungFilesystem::mount_answering(&node.dir().subdir("files"));
        let lower = LoopDevice::on(&hung.file());
        let upper = LoopDevice::on(lower.path());
        let device = node.ext4();
        hung.stop_answering();
        let pod = Pod::new(&node, "pod-a", &device, &[]);
        let app = pod.app();
        assert_eq!(app.sh("echo x > /data/file; cat /data/file"), "x");
        end([app]);
        pod.end([]);
        let _ = node.unstage(&pod.target).success();
        hung.fail();
        drop(upper);
        drop(lower);
    }
}
