//! A file system that hangs holds up the volumes that are on it, and no others.

use std::fs;

use runcrust_tests::container::end;
use runcrust_tests::node::utf8;
use runcrust_tests::{HungFilesystem, LoopDevice, Node, Pod, on_each_delegate};

on_each_delegate! {
    /// A path of the file is looked up nowhere.
    fn the_directory_of_another_volumes_file(delegate: Delegate) {
        let node = Node::new(delegate);
        let directory = node.dir().subdir("files");
        let file = directory.join("disk.img");
        fs::copy(node.ext4().file(), &file).unwrap();
        let (device, other) = (LoopDevice::on(&file), node.ext4());
        let a = Pod::new(&node, "pod-a", &device, &[]);
        let app = a.app();
        let hung = HungFilesystem::over(&directory);
        let b = Pod::new(&node, "pod-b", &other, &[]);
        let bundle = node.app_bundle(&b.sandbox).bind(&b.target, "/data", &[]).write();
        let _ = node.handler().crust(&["explain", utf8(bundle.path())]).success();
        let _ = node.handler().crust(&["inspect", utf8(&b.target)]).success();
        let _ = node.handler().crust(&["list"]).success();
        assert_eq!(b.app().sh("echo x > /data/file; cat /data/file"), "x");
        assert_eq!(app.sh("echo x > /data/file; cat /data/file"), "x");
        drop(hung);
    }
    /// Only its kernel knows which file a loop device is on, and asks for it there. Who is left behind with
    /// that keeps nobody's volume.
    fn the_file_of_somebody_elses_loop_device(delegate: Delegate) {
        let node = Node::with(delegate, "sandbox = \"always\"");
        let directory = node.dir().subdir("files");
        let mut hung = HungFilesystem::answering_over(&directory);
        let silent = [LoopDevice::on(&hung.file()), LoopDevice::on(&hung.file())];
        let (device, late) = (node.ext4(), node.ext4());
        hung.stop_answering();
        let pod = Pod::new(&node, "pod-a", &device, &[]);
        let app = pod.app();
        assert_eq!(app.sh("echo x > /data/file; cat /data/file"), "x");
        let found = node.handler().crust(&["inspect", utf8(device.path())]).success();
        assert!(found.stdout.contains("in use"), "{found}");
        // A container is the first to mount it.
        let target = node.stage("pod-a", "pv-2", &late, &[]);
        let other = node.app(&pod.sandbox, &target, "/late");
        assert_eq!(other.sh("echo x > /late/file; cat /late/file"), "x");
        end([app, other]);
        pod.end([]);
        for target in [&pod.target, &target] {
            let _ = node.unstage(target).success();
        }
        // Who asks the devices has them open until there is an answer.
        hung.fail();
        drop(silent);
    }

    /// The one that a device is on answers, and the one below that doesn't.
    fn the_file_below_somebody_elses_loop_device_on_a_loop_device(delegate: Delegate) {
        let node = Node::new(delegate);
        let mut hung = HungFilesystem::answering_over(&node.dir().subdir("files"));
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
