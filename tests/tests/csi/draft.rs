//! The earlier draft of KEP-2857: the driver returns what to mount, and kubelet has the runtime mount it.

use crust_proto::csi::v1::volume_capability::access_mode::Mode;
use crust_proto::csi::v1::{
    NodeExpandVolumeRequest, NodeGetVolumeStatsRequest, NodePublishVolumeRequest,
};
use crust_proto::runtime::v1alpha1::RuntimePublishVolumeRequest;
use runcrust_tests::container::end;
use runcrust_tests::csi::{Csi, CsiVolume, filesystem};
use runcrust_tests::node::utf8;
use runcrust_tests::{Node, Ops, POD, host, on_each_delegate};

fn publish(
    volume: &CsiVolume,
    target: &std::path::Path,
    runtimes: &[&str],
) -> NodePublishVolumeRequest {
    NodePublishVolumeRequest {
        runtime_supported_filesystems: runtimes.iter().map(|&it| it.to_owned()).collect(),
        ..volume.publish(target)
    }
}

on_each_delegate! {
    fn the_runtime_mounts_what_the_driver_returns(delegate: Delegate) {
        let node = Node::trusted(delegate, "sandbox = \"always\"");
        let ops = Ops::start(&node);
        let csi = Csi::start(&node);
        let mut capability = filesystem("ext4");
        runcrust_tests::csi::mount_of(&mut capability).mount_flags = vec!["noatime,errors=remount-ro".to_owned()];
        let volume = csi.volume("pv-1", capability);
        let target = csi.target(POD, "pv-1");
        csi.call(volume.stage()).unwrap();
        let answer = csi.call(publish(&volume, &target, &["xfs", "ext4"])).unwrap();
        let info = answer.runtime_mount_info.expect("runtime_mount_info");
        let device = csi.device(&volume.id);
        assert_eq!((info.source.as_str(), info.r#type.as_str()), (utf8(&device), "ext4"));
        assert_eq!(info.options["errors"], "remount-ro");
        assert_eq!(info.options["noatime"], "");
        assert_eq!(host::mounts_of_device(&device), Vec::<String>::new());

        let sandbox = node.sandbox(POD);
        let request = RuntimePublishVolumeRequest {
            sandbox_id: sandbox.id().to_owned(),
            host_volume_id: info.source.clone(),
            host_target_path: utf8(&target).to_owned(),
            file_system: info.r#type.clone(),
            mount_options: vec!["noatime".to_owned()],
            ..RuntimePublishVolumeRequest::default()
        };
        ops.crust(|mut client| async move { client.runtime_publish_volume(request).await }).unwrap();
        let app = node.app(&sandbox, &target, "/data");
        assert_eq!(app.sh("touch /data/file && ls /data"), "file\nlost+found");
        let stats = csi.call(NodeGetVolumeStatsRequest {
            runtime_supported_stats: true,
            ..volume.stats(&target)
        });
        let stats = stats.unwrap();
        assert_eq!((stats.source.as_str(), stats.usage.len()), (utf8(&device), 0));
        assert!(stats.volume_condition.is_none(), "the SP MUST NOT populate it in this case");
        let expanded = csi.call(NodeExpandVolumeRequest {
            runtime_supports_expand: true,
            ..volume.expand(&target, volume.capacity)
        });
        let expanded = expanded.unwrap();
        assert_eq!((expanded.source.as_str(), expanded.capacity_bytes), (utf8(&device), volume.capacity));
        end([app, sandbox]);
        csi.call(volume.unpublish(&target)).unwrap();
        csi.call(volume.unstage()).unwrap();
        crate::assert_nothing_left(&node);
    }

    fn the_driver_mounts_what_the_runtime_does_not_support(delegate: Delegate) {
        let node = Node::trusted(delegate, "");
        let csi = Csi::start(&node);
        let volume = csi.volume("pv-1", filesystem("ext4"));
        let target = csi.target(POD, "pv-1");
        csi.call(volume.stage()).unwrap();
        let answer = csi.call(publish(&volume, &target, &["xfs", "ntfs"])).unwrap();
        assert_eq!(answer.runtime_mount_info, None);
        assert_eq!(host::mounts_of_device(&csi.device(&volume.id)).len(), 1);
        csi.call(volume.unpublish(&target)).unwrap();
    }

    fn a_failed_publish_does_not_claim_the_volume(delegate: Delegate) {
        let node = Node::trusted(delegate, "");
        let csi = Csi::start(&node);
        let mut capability = filesystem("ext4");
        capability.access_mode.as_mut().unwrap().mode = Mode::SingleNodeSingleWriter.into();
        let volume = csi.volume("pv-1", capability);
        csi.call(volume.stage()).unwrap();
        csi.call(publish(&volume, &node.dir().join("none/mount"), &["ext4"])).expect_err("no parent");
        let target = csi.target(POD, "pv-1");
        csi.call(publish(&volume, &target, &["ext4"])).unwrap();
        csi.call(volume.unpublish(&target)).unwrap();
        csi.call(volume.unstage()).unwrap();
        csi.call(volume.delete()).unwrap();
    }
}
