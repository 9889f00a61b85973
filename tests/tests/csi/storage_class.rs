//! Deferral that the `StorageClass` asks for, because a released kubelet does not know of it.

use std::fs;
use std::path::PathBuf;

use crust_proto::csi::v1::CreateVolumeRequest;
use runcrust_tests::container::end;
use runcrust_tests::csi::{Csi, CsiVolume, create_request, filesystem, mount_of};
use runcrust_tests::kubelet::SubPath;
use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::{POD, host, loopdev, on_each_delegate, wait_until};

use crate::scene::deferring_driver;

/// Creates a volume of the class `crust-deferred`.
fn deferred_volume(csi: &Csi, name: &str) -> CsiVolume {
    let parameters = [
        ("crust.dev/defer", "true"),
        ("crust.dev/fsgroup-change-policy", "OnRootMismatch"),
    ];
    let parameters = parameters.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let mut volume = csi.create_volume(CreateVolumeRequest {
        parameters: parameters.into(),
        ..create_request(name, filesystem("ext4"))
    });
    // The pod's fsGroup, which kubelet passes to a driver with VOLUME_MOUNT_GROUP.
    mount_of(&mut volume.capability).volume_mount_group = "2000".into();
    volume
}

on_each_delegate! {
    fn a_pods_volume_is_deferred_by_its_class(delegate: Delegate) {
        let (node, _ops, csi) = deferring_driver(delegate, &[]);
        let volume = deferred_volume(&csi, "pv-1");
        assert_eq!(volume.context["crust.dev/defer"], "true");
        let target = csi.target(POD, "pv-1");
        csi.call(volume.stage()).unwrap();
        csi.call(volume.publish(&target)).unwrap();
        assert_eq!(host::mounts_of_device(&csi.device(&volume.id)), Vec::<String>::new());

        // kubelet creates the directory of the subPath in the target, and binds it.
        let kubelet = node.handler().kubelet_dir();
        let subpath = SubPath { pod_uid: POD, volume: "pv-1", directory: &target, path: "logs/app", index: 0 };
        let subpath_mount = subpath.bind(&kubelet);
        let sandbox = node.sandbox(POD);
        let all = node.app(&sandbox, &target, "/data");
        let part = node.app(&sandbox, &subpath_mount, "/logs");
        assert_eq!(part.sh("echo line > /logs/file; stat -c %g /logs"), "2000");
        assert_eq!(all.sh("cat /data/logs/app/file; stat -c '%g %a' /data"), "line\n2000 2775");

        csi.call(volume.publish(&target)).expect("kubelet repeats the call while the pod runs");
        let stats = csi.call(volume.stats(&target)).unwrap();
        assert!(!stats.volume_condition.unwrap().abnormal);
        assert_eq!(stats.usage.len(), 2, "{:?}", stats.usage);

        end([part, all, sandbox]);
        nix::mount::umount(&subpath_mount).unwrap();
        csi.call(volume.unpublish(&target)).unwrap();
        assert!(!target.exists(), "kubelet only removes the parent");
        csi.call(volume.unpublish(&target)).expect("the repeated call");
        csi.call(volume.unstage()).unwrap();
        crate::assert_nothing_left(&node);
        assert_eq!(csi.devices(&volume.id), Vec::<PathBuf>::new());
    }

    fn after_a_boot_everything_is_published_again(delegate: Delegate) {
        let (node, _ops, csi) = deferring_driver(delegate, &[]);
        let volume = deferred_volume(&csi, "pv-1");
        let target = csi.target(POD, "pv-1");
        csi.call(volume.stage()).unwrap();
        csi.call(volume.publish(&target)).unwrap();
        let sandbox = node.sandbox(POD);
        let app = node.app(&sandbox, &target, "/data");
        app.sh("echo before > /data/file; sync");
        // A boot ends processes, and removes mounts, loop devices and files in /run.
        end([app, sandbox]);
        csi.kill();
        wait_until("the device to be free", WAIT_TIMEOUT, || host::is_free(&csi.device(&volume.id)));
        loopdev::detach(&csi.device(&volume.id));
        for directory in [node.handler().crust_root(), node.handler().state_dir()] {
            fs::remove_dir_all(&directory).unwrap();
        }
        csi.spawn(csi.command(&[]));
        csi.call(volume.stage()).unwrap();
        csi.call(volume.publish(&target)).unwrap();
        let sandbox = node.sandbox(POD);
        let app = node.app(&sandbox, &target, "/data");
        assert_eq!(app.sh("cat /data/file"), "before");
        end([app, sandbox]);
        csi.call(volume.unpublish(&target)).unwrap();
        csi.call(volume.unstage()).unwrap();
    }
}
