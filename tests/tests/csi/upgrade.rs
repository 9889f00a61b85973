//! Upgrades and downgrades between drivers with and without a capability, also under running pods (KEP-2857, stories
//! 4 to 6).

use std::fs;

use crust_proto::csi::v1::volume_capability::access_mode::Mode;
use runcrust_tests::container::end;
use runcrust_tests::csi::filesystem;
use runcrust_tests::{POD, host, on_each_delegate};
use tonic::Code;

use crate::scene::deferring_driver;
use crate::{deferred_publish_request, expect_error};

const OTHER_POD: &str = "ffffffff-1111-2222-3333-000000000001";
const WITHOUT_DEFERRAL: [&str; 2] = ["--without", "DEFER_FS_OPS"];

on_each_delegate! {
    fn a_driver_that_is_upgraded_defers_from_the_next_pod_on(delegate: Delegate) {
        let (node, _ops, csi) = deferring_driver(delegate, &WITHOUT_DEFERRAL);
        let volume = csi.volume("pv-1", filesystem("ext4"));
        let target = csi.target(POD, "pv-1");
        csi.call(volume.stage()).unwrap();
        // This driver does not know the field `defer_fs_ops`.
        csi.call(deferred_publish_request(&volume, &target)).unwrap();
        fs::write(target.join("file"), "of the host's mount\n").unwrap();
        csi.restart(&[]);
        csi.call(volume.unpublish(&target)).unwrap();
        csi.call(deferred_publish_request(&volume, &target)).unwrap();
        assert_eq!(host::mounts_of_device(&csi.device(&volume.id)), Vec::<String>::new());
        let sandbox = node.sandbox(POD);
        let app = node.app(&sandbox, &target, "/data");
        assert_eq!(app.sh("cat /data/file"), "of the host's mount");
        end([app, sandbox]);
        csi.call(volume.unpublish(&target)).unwrap();
    }

    fn a_driver_downgraded_under_a_pod_can_still_unpublish(delegate: Delegate) {
        let (node, _ops, csi) = deferring_driver(delegate, &[]);
        let volume = csi.volume("pv-1", filesystem("ext4"));
        let target = csi.target(POD, "pv-1");
        csi.call(volume.stage()).unwrap();
        csi.call(deferred_publish_request(&volume, &target)).unwrap();
        let sandbox = node.sandbox(POD);
        let app = node.app(&sandbox, &target, "/data");
        app.sh("echo kept > /data/file");
        csi.restart(&WITHOUT_DEFERRAL);
        for error in [
            expect_error(csi.call(volume.stats(&target)), Code::FailedPrecondition),
            expect_error(csi.call(volume.expand(&target, 0)), Code::FailedPrecondition),
        ] {
            assert!(error.contains("no DEFER_FS_OPS"), "{error}");
        }
        assert_eq!(app.sh("cat /data/file"), "kept");
        end([app, sandbox]);
        csi.call(volume.unpublish(&target)).unwrap();
        assert!(!target.exists());
        fs::remove_dir(target.parent().unwrap()).expect("kubelet's part");
        let _ = node.handler().crust(&["gc"]).success();
        node.assert_nothing_left();
        csi.call(volume.unstage()).unwrap();
        csi.call(volume.stage()).unwrap();
        csi.call(volume.publish(&csi.target(POD, "pv-1"))).unwrap();
        assert_eq!(fs::read_to_string(target.join("file")).unwrap(), "kept\n");
        csi.call(volume.unpublish(&target)).unwrap();
    }

    fn an_upgraded_driver_accepts_the_newer_access_mode(delegate: Delegate) {
        let (node, _ops, csi) = deferring_driver(delegate, &["--without", "SINGLE_NODE_MULTI_WRITER"]);
        let mut volume = csi.volume("pv-1", filesystem("ext4"));
        let targets = [POD, OTHER_POD].map(|pod| csi.target(pod, "pv-1"));
        csi.call(volume.stage()).unwrap();
        csi.call(deferred_publish_request(&volume, &targets[0])).unwrap();
        let sandbox = node.sandbox(POD);
        let app = node.app(&sandbox, &targets[0], "/data");
        csi.restart(&[]);
        // The mode that kubelet now sends for ReadWriteOnce.
        volume.capability.access_mode.as_mut().unwrap().mode = Mode::SingleNodeMultiWriter.into();
        csi.call(volume.stage()).expect("kubelet stages again after its own restart");
        csi.call(deferred_publish_request(&volume, &targets[0])).expect("and publishes");
        csi.call(deferred_publish_request(&volume, &targets[1])).unwrap();
        let second = node.sandbox(OTHER_POD);
        let other = node.app(&second, &targets[1], "/data");
        app.sh("echo shared > /data/file");
        assert_eq!(other.sh("cat /data/file"), "shared");
        end([app, other]);
        end([sandbox, second]);
        for target in &targets {
            csi.call(volume.unpublish(target)).unwrap();
        }
        csi.call(volume.unstage()).unwrap();
    }

    fn an_upgraded_driver_enforces_a_single_writer(delegate: Delegate) {
        let (_node, _ops, csi) = deferring_driver(delegate, &["--without", "SINGLE_NODE_MULTI_WRITER"]);
        let mut volume = csi.volume("pv-1", filesystem("ext4"));
        let targets = [POD, OTHER_POD].map(|pod| csi.target(pod, "pv-1"));
        csi.call(volume.stage()).unwrap();
        csi.call(deferred_publish_request(&volume, &targets[0])).unwrap();
        csi.restart(&[]);
        // The mode for ReadWriteOncePod.
        volume.capability.access_mode.as_mut().unwrap().mode = Mode::SingleNodeSingleWriter.into();
        csi.call(volume.stage()).expect("kubelet stages again after its own restart");
        csi.call(deferred_publish_request(&volume, &targets[0])).expect("and publishes");
        let error = expect_error(csi.call(deferred_publish_request(&volume, &targets[1])), Code::FailedPrecondition);
        assert!(error.contains("ReadWriteOncePod"), "{error}");
        csi.call(volume.unpublish(&targets[0])).unwrap();
        csi.call(deferred_publish_request(&volume, &targets[1])).expect("the first one's pod has ended");
        csi.call(volume.unpublish(&targets[1])).unwrap();
    }
}
