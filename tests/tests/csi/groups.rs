//! fsGroup in each of its two fields, for volumes that the driver mounts and that the runtime mounts.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;

use crust_proto::csi::v1::NodePublishVolumeRequest;
use crust_proto::csi::v1::volume_capability::MountVolume;
use runcrust_tests::container::end;
use runcrust_tests::csi::{Csi, filesystem, mount_of};
use runcrust_tests::{Delegate, Node, POD, on_each_delegate};

use crate::scene::deferring_driver;

/// The field of KEP-2317 and that of KEP-2857.
const FIELDS: [fn(&mut MountVolume) -> &mut String; 2] = [
    |mount| &mut mount.volume_mount_group,
    |mount| &mut mount.volume_supplemental_group,
];

fn gid(path: &Path) -> u32 {
    fs::symlink_metadata(path)
        .expect("the file's metadata")
        .gid()
}

on_each_delegate! {
    fn a_deferred_volume_gets_the_group_of_either_field(delegate: Delegate) {
        let (node, _ops, csi) = deferring_driver(delegate, &[]);
        for (field, group) in FIELDS.into_iter().zip(["3001", "3002"]) {
            let mut volume = csi.volume(group, filesystem("ext4"));
            csi.call(volume.stage()).unwrap();
            *field(mount_of(&mut volume.capability)) = group.into();
            let target = csi.target(POD, group);
            csi.call(NodePublishVolumeRequest { defer_fs_ops: true, ..volume.publish(&target) }).unwrap();
            let sandbox = node.sandbox(POD);
            let app = node.app(&sandbox, &target, "/data");
            assert_eq!(app.sh("stat -c '%g %a' /data"), format!("{group} 2775"));
            end([app, sandbox]);
            csi.call(volume.unpublish(&target)).unwrap();
        }
    }
}

#[test]
fn a_plain_volume_gets_the_group_as_from_kubelet() {
    let node = Node::trusted(Delegate::Runc, "");
    let csi = Csi::start(&node);
    let mut volume = csi.volume("pv-1", filesystem("ext4"));
    let target = csi.target(POD, "pv-1");
    csi.call(volume.stage()).unwrap();
    csi.call(volume.publish(&target)).unwrap();
    fs::write(target.join("file"), "").unwrap();
    assert_eq!(gid(&target.join("file")), 0, "no group was requested");
    csi.call(volume.unpublish(&target)).unwrap();

    mount_of(&mut volume.capability).volume_mount_group = "4001".to_owned();
    csi.call(volume.publish(&target)).unwrap();
    assert_eq!((gid(&target), gid(&target.join("file"))), (4001, 4001));
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
    assert_eq!(
        (mode(&target) & 0o2770, mode(&target.join("file")) & 0o660),
        (0o2770, 0o660)
    );
    chown(target.join("file"), None, Some(7)).unwrap();
    csi.call(volume.unpublish(&target)).unwrap();

    // A read-only volume is not changed.
    let read_only = NodePublishVolumeRequest {
        readonly: true,
        ..volume.publish(&target)
    };
    csi.call(read_only).unwrap();
    assert_eq!(gid(&target.join("file")), 7);
    csi.call(volume.unpublish(&target)).unwrap();

    let policy = ("crust.dev/fsgroup-change-policy", "OnRootMismatch");
    volume
        .context
        .insert(policy.0.to_owned(), policy.1.to_owned());
    csi.call(volume.publish(&target)).unwrap();
    assert_eq!(gid(&target.join("file")), 7, "the root matches");
    csi.call(volume.unpublish(&target)).unwrap();
    volume.context.clear();
    csi.call(volume.publish(&target)).unwrap();
    assert_eq!(gid(&target.join("file")), 4001);
}

#[test]
fn without_the_capability_kubelet_applies_the_group() {
    let node = Node::trusted(Delegate::Runc, "");
    let csi = Csi::with(&node, &["--without", "VOLUME_MOUNT_GROUP"]);
    let mut volume = csi.volume("pv-1", filesystem("ext4"));
    mount_of(&mut volume.capability).volume_mount_group = "4001".to_owned();
    let target = csi.target(POD, "pv-1");
    csi.call(volume.stage()).unwrap();
    csi.call(volume.publish(&target)).unwrap();
    assert_eq!(gid(&target), 0);
}
