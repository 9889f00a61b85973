//! Two pods with one volume, in each access mode (KEP-2485), deferred or not.

use crust_proto::csi::v1::volume_capability::access_mode::Mode;
use runcrust_tests::container::end;
use runcrust_tests::csi::{Csi, filesystem};
use runcrust_tests::{Node, on_each_delegate};
use tonic::Code;

use crate::scene::deferring_driver;
use crate::{deferred_publish_request, expect_error};

const ONE: &str = "eeeeeeee-1111-2222-3333-000000000001";
const TWO: &str = "eeeeeeee-1111-2222-3333-000000000002";

on_each_delegate! {
    fn pods_share_a_volume_unless_its_mode_says_one(delegate: Delegate) {
        let (node, _ops, csi) = deferring_driver(delegate, &[]);
        for mode in [Mode::SingleNodeWriter, Mode::SingleNodeMultiWriter, Mode::SingleNodeSingleWriter] {
            let mut capability = filesystem("ext4");
            capability.access_mode.as_mut().unwrap().mode = mode.into();
            let volume = csi.volume(mode.as_str_name(), capability);
            let targets = [ONE, TWO].map(|pod| csi.target(pod, mode.as_str_name()));
            csi.call(volume.stage()).unwrap();
            csi.call(deferred_publish_request(&volume, &targets[0])).unwrap();
            let second = csi.call(deferred_publish_request(&volume, &targets[1]));
            if mode == Mode::SingleNodeSingleWriter {
                let error = expect_error(second, Code::FailedPrecondition);
                assert!(error.contains(targets[0].to_str().unwrap()), "{error}");
                assert!(!targets[1].exists());
            } else {
                second.unwrap();
                let sandboxes = [ONE, TWO].map(|pod| node.sandbox(pod));
                let one = node.app(&sandboxes[0], &targets[0], "/data");
                let two = node.app(&sandboxes[1], &targets[1], "/data");
                one.sh("echo hello > /data/file");
                assert_eq!(two.sh("cat /data/file"), "hello", "{mode:?}");
                end([one, two]);
                end(sandboxes);
                csi.call(volume.unpublish(&targets[1])).unwrap();
            }
            csi.call(volume.unpublish(&targets[0])).unwrap();
            csi.call(volume.unstage()).unwrap();
        }
    }

    fn a_volume_is_mounted_by_driver_or_runtime_but_not_both(delegate: Delegate) {
        let (_node, _ops, csi) = deferring_driver(delegate, &[]);
        let volume = csi.volume("pv-1", filesystem("ext4"));
        let targets = [ONE, TWO].map(|pod| csi.target(pod, "pv-1"));
        csi.call(volume.stage()).unwrap();
        csi.call(volume.publish(&targets[0])).unwrap();
        let error = expect_error(csi.call(deferred_publish_request(&volume, &targets[1])), Code::FailedPrecondition);
        assert!(error.contains("the driver mounts it"), "{error}");
        let error = expect_error(csi.call(deferred_publish_request(&volume, &targets[0])), Code::AlreadyExists);
        assert!(error.contains("mounted by another"), "{error}");
        csi.call(volume.unpublish(&targets[0])).unwrap();
        csi.call(deferred_publish_request(&volume, &targets[1])).unwrap();
        let error = expect_error(csi.call(volume.publish(&targets[0])), Code::FailedPrecondition);
        assert!(error.contains("the container runtime mounts it"), "{error}");
        csi.call(volume.unpublish(&targets[1])).unwrap();
    }
}

#[test]
fn a_read_only_stage_beside_a_writer_is_refused() {
    let node = Node::trusted(runcrust_tests::Delegate::Runc, "");
    let csi = Csi::start(&node);
    let mut volume = csi.volume("pv-1", filesystem("ext4"));
    let targets = [ONE, TWO].map(|pod| csi.target(pod, "pv-1"));
    csi.call(volume.stage()).unwrap();
    csi.call(volume.publish(&targets[0])).unwrap();
    volume.capability.access_mode.as_mut().unwrap().mode = Mode::SingleNodeReaderOnly.into();
    volume.staging = volume.staging.with_file_name("second");
    std::fs::create_dir(&volume.staging).unwrap();
    csi.call(volume.stage()).unwrap();
    let error = expect_error(
        csi.call(volume.publish(&targets[1])),
        Code::FailedPrecondition,
    );
    assert!(error.contains("read-only for all pods"), "{error}");
    csi.call(volume.unstage())
        .expect("the other staging path is in use, not this one");
}
