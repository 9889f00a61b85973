//! Volumes mounted inside other volumes, and subPaths that are files.

use std::fs;

use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::volume::with_mounted;
use runcrust_tests::{Bundle, Node, POD, StagedVolume, on_each_delegate};

use super::end;

on_each_delegate! {
    fn a_volume_is_mounted_inside_another(delegate: Delegate) {
        let node = Node::new(delegate);
        let (outer, inner) = (node.ext4(), node.ext4());
        let outside = node.stage(POD, "pv-outer", &outer, &[]);
        let inside = node.stage(POD, "pv-inner", &inner, &[]);
        let sandbox = node.sandbox(POD);
        let in_pod = node.app_bundle(&sandbox);
        let app = node.run(&in_pod.bind(&outside, "/data", &[]).bind(&inside, "/data/deep/inner", &[]).write());
        let _ = app.sh("echo outer > /data/mark; echo inner > /data/deep/inner/mark");
        assert_eq!(app.sh("cat /data/mark /data/deep/inner/mark"), "outer\ninner");
        end([app, sandbox]);
        for device in [&outer, &inner] {
            device.wait_until_free(WAIT_TIMEOUT);
        }
        let found = with_mounted(outer.path(), |root| {
            (fs::read(root.join("mark")).unwrap(), fs::read_dir(root.join("deep/inner")).unwrap().count())
        });
        assert_eq!(found, (b"outer\n".to_vec(), 0), "the mountpoint must be an empty directory in the outer volume");
        let mark = with_mounted(inner.path(), |root| fs::read(root.join("mark")).unwrap());
        assert_eq!(mark, b"inner\n");
        // A container without a sandbox sees the same files.
        let plain = Bundle::plain(node.dir()).bind(&outside, "/data", &[]).bind(&inside, "/data/deep/inner", &[]);
        let plain = node.run(&plain.write());
        assert_eq!(plain.sh("cat /data/mark /data/deep/inner/mark"), "outer\ninner");
    }

    fn a_subpath_can_be_a_file(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        with_mounted(device.path(), |root| {
            fs::create_dir(root.join("etc")).unwrap();
            fs::write(root.join("etc/app.conf"), "setting").unwrap();
            std::os::unix::fs::symlink("etc/app.conf", root.join("link")).unwrap();
        });
        let volume = StagedVolume::on_device(node, device, &[]);
        let sandbox = volume.sandbox();
        let mounts = |bundle: Bundle| {
            bundle
                .bind(volume.target.join("etc/app.conf"), "/etc/app.conf", &[])
                .bind(volume.target.join("link"), "/etc/linked.conf", &["rbind", "ro"])
        };
        let app = volume.run(&mounts(volume.node.app_bundle(&sandbox)).write());
        assert_eq!(app.sh("cat /etc/app.conf /etc/linked.conf"), "settingsetting");
        let _ = app.sh("echo -n changed > /etc/app.conf");
        let _ = app.exec(&["/bin/sh", "-c", "echo x > /etc/linked.conf"]).failure();
        let plain = volume.run(&mounts(Bundle::plain(volume.dir())).write());
        assert_eq!(plain.sh("cat /etc/app.conf"), "changed");
        assert_eq!(fs::read_dir(&volume.target).unwrap().count(), 0, "files are left on the host");
    }
}
