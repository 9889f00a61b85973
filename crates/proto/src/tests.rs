//! Tests that the interfaces stay compatible with existing clients.

use prost::Message;
use prost_types::{DescriptorProto, FileDescriptorProto, FileDescriptorSet};

use crate::csi::v1::node_service_capability::rpc::Type as NodeRpc;
use crate::csi::v1::volume_capability::MountVolume;
use crate::csi::v1::{
    NodeExpandVolumeRequest, NodeGetVolumeStatsRequest, NodePublishVolumeRequest,
    NodeUnpublishVolumeRequest,
};

fn files() -> Vec<FileDescriptorProto> {
    let sets = [
        crate::FILE_DESCRIPTOR_SET,
        crate::csi::FILE_DESCRIPTOR_SET,
        crate::crustlet::FILE_DESCRIPTOR_SET,
    ];
    let sets = sets.map(|set| FileDescriptorSet::decode(set).unwrap());
    let files = sets.into_iter().flat_map(|set| set.file);
    files
        .filter(|file| !file.package().starts_with("google."))
        .collect()
}

/// Adds the lines `Message.field = number` and `Message.Enum.VALUE = number` of a message, in the order of the file.
fn numbers(prefix: &str, message: &DescriptorProto, lines: &mut Vec<String>) {
    let name = format!("{prefix}{}", message.name());
    for field in &message.field {
        lines.push(format!("{name}.{} = {}", field.name(), field.number()));
    }
    for kind in &message.enum_type {
        for value in &kind.value {
            let (kind, value, number) = (kind.name(), value.name(), value.number());
            lines.push(format!("{name}.{kind}.{value} = {number}"));
        }
    }
    for nested in &message.nested_type {
        numbers(&format!("{name}."), nested, lines);
    }
}

#[test]
fn names_and_numbers_stay_as_they_are() {
    let mut lines = Vec::new();
    for file in files() {
        lines.push(format!("package {}", file.package()));
        for service in &file.service {
            for method in &service.method {
                lines.push(format!("rpc {}.{}", service.name(), method.name()));
            }
        }
        for message in &file.message_type {
            numbers("", message, &mut lines);
        }
        for kind in &file.enum_type {
            for value in &kind.value {
                let (value, number) = (value.name(), value.number());
                lines.push(format!("{}.{value} = {number}", kind.name()));
            }
        }
    }
    let text = lines.join("\n") + "\n";
    assert_eq!(text, include_str!("../api.txt"), "only add to it");
}

/// Numbers of additions to CSI must not collide with CSI's next numbers. CSI 1.13 took two of KEP-2857's.
#[test]
fn additions_to_csi_are_numbered_from_101_on() {
    // The encoded field 111 with the value true: the tag (two bytes) and the value.
    const BOOL_111: [u8; 3] = [0xf8, 0x06, 1];
    let deferred = [
        NodePublishVolumeRequest {
            defer_fs_ops: true,
            ..NodePublishVolumeRequest::default()
        }
        .encode_to_vec(),
        NodeUnpublishVolumeRequest {
            defer_fs_ops: true,
            ..NodeUnpublishVolumeRequest::default()
        }
        .encode_to_vec(),
        NodeGetVolumeStatsRequest {
            defer_fs_ops: true,
            ..NodeGetVolumeStatsRequest::default()
        }
        .encode_to_vec(),
        NodeExpandVolumeRequest {
            defer_fs_ops: true,
            ..NodeExpandVolumeRequest::default()
        }
        .encode_to_vec(),
    ];
    assert_eq!(deferred, [BOOL_111; 4]);
    let groups = MountVolume {
        volume_mount_group: "1".to_owned(),
        volume_supplemental_group: "2".to_owned(),
        volume_supplemental_group_change_policy: "3".to_owned(),
        ..MountVolume::default()
    };
    let expected = [
        &[0x1a, 1, b'1'][..],       // 3
        &[0xfa, 0x06, 1, b'2'][..], // 111
        &[0x82, 0x07, 1, b'3'][..], // 112
    ];
    assert_eq!(groups.encode_to_vec(), expected.concat());
    let capabilities = [
        (4, NodeRpc::VolumeCondition),
        (6, NodeRpc::VolumeMountGroup),
        (7, NodeRpc::GetVolumeHealth),
        (8, NodeRpc::GetStorageHealth),
        (101, NodeRpc::DeferFsOps),
        (102, NodeRpc::DeferFsOpsWithSupplementalGroup),
        (103, NodeRpc::DeferFsOpsWithSupplementalGroupChangePolicy),
    ];
    for (number, capability) in capabilities {
        assert_eq!(NodeRpc::try_from(number), Ok(capability), "{number}");
    }
    assert!(NodeRpc::try_from(9).is_err(), "CSI assigns 9");
}

/// Requests with the numbers of the KEP must not be misunderstood.
#[test]
fn the_keps_own_numbers_defer_nothing() {
    let publish = NodePublishVolumeRequest::decode(&[9 << 3, 1][..]).unwrap();
    let unpublish = NodeUnpublishVolumeRequest::decode(&[3 << 3, 1][..]).unwrap();
    let stats = NodeGetVolumeStatsRequest::decode(&[4 << 3, 1][..]).unwrap();
    let expand = NodeExpandVolumeRequest::decode(&[7 << 3, 1][..]).unwrap();
    let deferred = [
        publish.defer_fs_ops,
        unpublish.defer_fs_ops,
        stats.defer_fs_ops,
        expand.defer_fs_ops,
    ];
    assert_eq!(deferred, [false; 4]);
}

/// Each message, field, enum value and method must have a comment.
#[test]
fn everything_is_documented() {
    for file in files() {
        let info = file.source_code_info.as_ref().expect("comments");
        for location in &info.location {
            // Field numbers in descriptor.proto: messages 4, enums 5, services 6; in a message fields 2, nested 3,
            // enums 4 and their values 2; in a service methods 2.
            let is_element = match location.path.as_slice() {
                [4..=6, _] | [5 | 6, _, 2, _] => true,
                [4, _, rest @ ..] => is_in_message(rest),
                _ => false,
            };
            if is_element {
                let comment = location.leading_comments().trim();
                assert!(!comment.is_empty(), "{}: {:?}", file.name(), location.span);
            }
        }
    }
}

fn is_in_message(path: &[i32]) -> bool {
    match path {
        [2..=4, _] | [4, _, 2, _] => true,
        [3, _, rest @ ..] => is_in_message(rest),
        _ => false,
    }
}
