//! Volumes in the spec of a pod (`Ephemeral`): kubelet only publishes and unpublishes them.

mod ids;
mod lifetime;
mod refusals;

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crust_proto::csi::v1::{NodePublishVolumeRequest, NodeUnpublishVolumeRequest};
use runcrust_tests::container::end;
use runcrust_tests::csi::{CsiVolume, filesystem, mount_of};
use runcrust_tests::{POD, on_each_delegate};
use tonic::Code;

use crate::expect_error;
use crate::scene::{Scene, deferring_driver};

const DEFER: (&str, &str) = ("crust.dev/defer", "true");

/// A volume of 4 MiB with an ext4.
pub(crate) fn inline_volume(name: &str) -> CsiVolume {
    CsiVolume::inline(POD, name, filesystem("ext4"), &[("crust.dev/size", "4Mi")])
}

/// The calls of a kubelet that knows of deferral, or of one that doesn't.
fn calls(
    volume: &CsiVolume,
    target: &Path,
    defer_fs_ops: bool,
) -> (NodePublishVolumeRequest, NodeUnpublishVolumeRequest) {
    let publish = NodePublishVolumeRequest {
        defer_fs_ops,
        ..volume.publish(target)
    };
    let unpublish = NodeUnpublishVolumeRequest {
        defer_fs_ops,
        ..volume.unpublish(target)
    };
    (publish, unpublish)
}

on_each_delegate! {
    fn a_pod_has_an_inline_volume(delegate: Delegate) {
        let (node, _ops, csi) = deferring_driver(delegate, &[]);
        // A kubelet asks for the deferral, or the pod does, or neither.
        for (defer_fs_ops, attributes) in [(true, &[][..]), (false, &[DEFER]), (false, &[])] {
            let is_deferred = defer_fs_ops || !attributes.is_empty();
            let attributes = [&[("crust.dev/size", "64Mi")], attributes].concat();
            let mut volume = CsiVolume::inline(POD, "scratch", filesystem("ext4"), &attributes);
            mount_of(&mut volume.capability).volume_mount_group = "4242".into();
            let target = csi.target(POD, "scratch");
            let (publish, unpublish) = calls(&volume, &target, defer_fs_ops);
            csi.call_ok(publish.clone());
            assert_eq!(node.entry(&target).exists(), is_deferred, "{attributes:?}");
            let sandbox = node.sandbox(POD);
            let app = node.app(&sandbox, &target, "/data");
            assert_eq!(app.sh("echo data > /data/file; stat -c '%g %a' /data"), "4242 2775", "{attributes:?}");
            csi.call_ok(publish);
            let stats = csi.call_ok(volume.stats(&target));
            let df = app.sh("df -P -k /data | tail -n 1");
            assert!(df.contains(&(stats.usage[0].total / 1024).to_string()), "{df}: {stats:?}");
            assert!(!stats.volume_condition.unwrap().abnormal);
            if is_deferred {
                let error = expect_error(csi.call(unpublish.clone()), Code::FailedPrecondition);
                assert!(error.contains(sandbox.id()), "{error}");
            }
            assert_eq!(app.sh("cat /data/file"), "data");
            end([app, sandbox]);
            csi.call_ok(unpublish.clone());
            assert!(!target.exists());
            assert_eq!(csi.leftovers(), Vec::<PathBuf>::new());
            crate::assert_nothing_left(&node);
            csi.call_ok(unpublish);
        }
    }

    fn a_deferred_inline_volume_can_be_read_only(delegate: Delegate) {
        let (node, _ops, csi) = deferring_driver(delegate, &[]);
        let volume = inline_volume("scratch");
        let target = csi.target(POD, "scratch");
        let (publish, unpublish) = calls(&volume, &target, true);
        csi.call_ok(NodePublishVolumeRequest { readonly: true, ..publish });
        let sandbox = node.sandbox(POD);
        let app = node.app(&sandbox, &target, "/data");
        let refused = app.exec(&["/bin/touch", "/data/file"]).failure();
        assert!(refused.stderr.contains("Read-only file system"), "{refused}");
        end([app, sandbox]);
        csi.call_ok(unpublish);
        assert_eq!(csi.leftovers(), Vec::<PathBuf>::new());
    }
}

/// On the host, because a runtime may make its own bind mount of the target writable.
#[test]
fn a_plain_inline_volume_can_be_read_only() {
    let scene = Scene::new();
    let volume = inline_volume("scratch");
    let target = scene.target(POD, "scratch");
    scene.call_ok(NodePublishVolumeRequest {
        readonly: true,
        ..volume.publish(&target)
    });
    let refused = fs::write(target.join("file"), "").expect_err("a read-only volume");
    assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
    scene.call_ok(volume.unpublish(&target));
    assert_eq!(scene.leftovers(), Vec::<PathBuf>::new());
}
