//! The driver's optional capabilities. If a capability is left out, the driver ignores the capability's fields, as an
//! older driver does.

use clap::ValueEnum;
use crust_proto::csi::v1::controller_service_capability::rpc::Type as ControllerType;
use crust_proto::csi::v1::node_service_capability::rpc::Type as NodeType;
use crust_proto::csi::v1::volume_capability::AccessType;
use crust_proto::csi::v1::{
    NodeExpandVolumeRequest, NodeGetVolumeStatsRequest, NodePublishVolumeRequest,
    NodeStageVolumeRequest, NodeUnpublishVolumeRequest, VolumeCapability,
};

/// A capability that can be left out. It has the same name as in CSI.
#[allow(
    clippy::doc_markdown,
    reason = "clap prints the comments as help, without markup"
)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "SCREAMING_SNAKE_CASE")]
pub(crate) enum Feature {
    /// The call NodeGetVolumeStats.
    GetVolumeStats,
    /// The field volume_condition of NodeGetVolumeStats, for kubelets before CSI 1.13.
    VolumeCondition,
    /// The call NodeGetVolumeHealth, and the controller's calls for health (CSI 1.13).
    GetVolumeHealth,
    /// The call NodeGetStorageHealth (CSI 1.13).
    GetStorageHealth,
    /// The calls ControllerExpandVolume and NodeExpandVolume.
    ExpandVolume,
    /// The access modes of KEP-2485.
    SingleNodeMultiWriter,
    /// The field volume_mount_group (KEP-2317).
    VolumeMountGroup,
    /// The field defer_fs_ops (KEP-2857), the fields of the KEP's earlier draft, and the parameter crust.dev/defer.
    DeferFsOps,
    /// The field volume_supplemental_group (KEP-2857).
    DeferFsOpsWithSupplementalGroup,
    /// The field volume_supplemental_group_change_policy (KEP-2857).
    DeferFsOpsWithSupplementalGroupChangePolicy,
}

/// The capabilities that the driver has.
#[derive(Debug, Clone)]
pub(crate) struct Features(Vec<Feature>);

impl Features {
    /// Returns all capabilities except `left_out` and those that require one of them.
    pub(crate) fn without(left_out: &[Feature]) -> Self {
        let is_there = |feature: &Feature| {
            let needed = [
                Some(*feature),
                feature.requires(),
                feature.requires().and_then(Feature::requires),
            ];
            !needed
                .iter()
                .flatten()
                .any(|needed| left_out.contains(needed))
        };
        Self(
            Feature::value_variants()
                .iter()
                .copied()
                .filter(is_there)
                .collect(),
        )
    }

    pub(crate) fn has(&self, feature: Feature) -> bool {
        self.0.contains(&feature)
    }

    /// Returns the names of the features that affect how a publish request is read. The publication's record contains
    /// these names.
    pub(crate) fn publication_feature_names(&self) -> Vec<String> {
        let is_read = |feature: &&Feature| {
            matches!(
                feature,
                Feature::VolumeMountGroup
                    | Feature::DeferFsOps
                    | Feature::DeferFsOpsWithSupplementalGroup
                    | Feature::DeferFsOpsWithSupplementalGroupChangePolicy
            )
        };
        let read = self.0.iter().filter(is_read);
        let values = read.filter_map(ValueEnum::to_possible_value);
        values.map(|value| value.get_name().to_owned()).collect()
    }

    /// Returns the features as capabilities for `ControllerGetCapabilities`.
    pub(crate) fn controller_capabilities(&self) -> impl Iterator<Item = ControllerType> {
        let capabilities = [
            (Feature::ExpandVolume, ControllerType::ExpandVolume),
            (
                Feature::SingleNodeMultiWriter,
                ControllerType::SingleNodeMultiWriter,
            ),
            (Feature::GetVolumeHealth, ControllerType::GetVolumeHealth),
            (Feature::GetVolumeHealth, ControllerType::ListVolumeHealth),
        ];
        let there = capabilities
            .into_iter()
            .filter(|(feature, _)| self.has(*feature));
        there.map(|(_, capability)| capability)
    }

    /// Returns the features as capabilities for `NodeGetCapabilities`.
    pub(crate) fn node_capabilities(&self) -> impl Iterator<Item = NodeType> {
        self.0.iter().map(|feature| match feature {
            Feature::GetVolumeStats => NodeType::GetVolumeStats,
            Feature::VolumeCondition => NodeType::VolumeCondition,
            Feature::GetVolumeHealth => NodeType::GetVolumeHealth,
            Feature::GetStorageHealth => NodeType::GetStorageHealth,
            Feature::ExpandVolume => NodeType::ExpandVolume,
            Feature::SingleNodeMultiWriter => NodeType::SingleNodeMultiWriter,
            Feature::VolumeMountGroup => NodeType::VolumeMountGroup,
            Feature::DeferFsOps => NodeType::DeferFsOps,
            Feature::DeferFsOpsWithSupplementalGroup => NodeType::DeferFsOpsWithSupplementalGroup,
            Feature::DeferFsOpsWithSupplementalGroupChangePolicy => {
                NodeType::DeferFsOpsWithSupplementalGroupChangePolicy
            }
        })
    }
}

impl Feature {
    /// Returns the capability without which this one has no meaning.
    const fn requires(self) -> Option<Self> {
        match self {
            Self::VolumeCondition => Some(Self::GetVolumeStats),
            Self::DeferFsOpsWithSupplementalGroup => Some(Self::DeferFsOps),
            Self::DeferFsOpsWithSupplementalGroupChangePolicy => {
                Some(Self::DeferFsOpsWithSupplementalGroup)
            }
            _ => None,
        }
    }
}

/// A request with fields that an older driver would not know.
pub(crate) trait KnownFields {
    /// Clears the fields that belong to capabilities that aren't in `features`.
    fn clear_unknown_fields(&mut self, features: &Features);
}

impl KnownFields for NodeStageVolumeRequest {
    fn clear_unknown_fields(&mut self, features: &Features) {
        clear_unknown_groups(self.volume_capability.as_mut(), features);
    }
}

impl KnownFields for NodePublishVolumeRequest {
    fn clear_unknown_fields(&mut self, features: &Features) {
        clear_unknown_groups(self.volume_capability.as_mut(), features);
        if !features.has(Feature::DeferFsOps) {
            self.defer_fs_ops = false;
            self.runtime_supported_filesystems.clear();
        }
    }
}

impl KnownFields for NodeUnpublishVolumeRequest {
    fn clear_unknown_fields(&mut self, features: &Features) {
        self.defer_fs_ops &= features.has(Feature::DeferFsOps);
    }
}

impl KnownFields for NodeGetVolumeStatsRequest {
    fn clear_unknown_fields(&mut self, features: &Features) {
        self.defer_fs_ops &= features.has(Feature::DeferFsOps);
        self.runtime_supported_stats &= features.has(Feature::DeferFsOps);
    }
}

impl KnownFields for NodeExpandVolumeRequest {
    fn clear_unknown_fields(&mut self, features: &Features) {
        clear_unknown_groups(self.volume_capability.as_mut(), features);
        self.defer_fs_ops &= features.has(Feature::DeferFsOps);
        self.runtime_supports_expand &= features.has(Feature::DeferFsOps);
    }
}

fn clear_unknown_groups(capability: Option<&mut VolumeCapability>, features: &Features) {
    let access = capability.and_then(|it| it.access_type.as_mut());
    let Some(AccessType::Mount(mount)) = access else {
        return;
    };
    let fields = [
        (Feature::VolumeMountGroup, &mut mount.volume_mount_group),
        (
            Feature::DeferFsOpsWithSupplementalGroup,
            &mut mount.volume_supplemental_group,
        ),
        (
            Feature::DeferFsOpsWithSupplementalGroupChangePolicy,
            &mut mount.volume_supplemental_group_change_policy,
        ),
    ];
    for (feature, field) in fields {
        if !features.has(feature) {
            field.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use crust_proto::csi::v1::volume_capability::MountVolume;

    use super::*;

    fn publish() -> NodePublishVolumeRequest {
        let mount = MountVolume {
            volume_mount_group: "1".to_owned(),
            volume_supplemental_group: "2".to_owned(),
            volume_supplemental_group_change_policy: "Always".to_owned(),
            ..MountVolume::default()
        };
        NodePublishVolumeRequest {
            defer_fs_ops: true,
            runtime_supported_filesystems: vec!["ext4".to_owned()],
            volume_capability: Some(VolumeCapability {
                access_type: Some(AccessType::Mount(mount)),
                access_mode: None,
            }),
            ..NodePublishVolumeRequest::default()
        }
    }

    fn groups(request: &NodePublishVolumeRequest) -> [&str; 3] {
        let access = request.volume_capability.as_ref();
        let Some(AccessType::Mount(mount)) = access.and_then(|it| it.access_type.as_ref()) else {
            panic!("a mount");
        };
        [
            &mount.volume_mount_group,
            &mount.volume_supplemental_group,
            &mount.volume_supplemental_group_change_policy,
        ]
    }

    #[test]
    fn a_driver_with_all_features_sees_all_fields() {
        let mut request = publish();
        request.clear_unknown_fields(&Features::without(&[]));
        assert_eq!(request, publish());
    }

    #[test]
    fn an_older_driver_does_not_see_newer_fields() {
        let request_for = |left_out: &[Feature]| {
            let mut request = publish();
            request.clear_unknown_fields(&Features::without(left_out));
            request
        };
        let request = request_for(&[Feature::VolumeMountGroup]);
        assert!(request.defer_fs_ops);
        assert_eq!(groups(&request), ["", "2", "Always"]);
        let request = request_for(&[Feature::DeferFsOps]);
        assert!(!request.defer_fs_ops && request.runtime_supported_filesystems.is_empty());
        assert_eq!(groups(&request), ["1", "", ""]);
        let request = request_for(&[Feature::DeferFsOpsWithSupplementalGroup]);
        assert!(request.defer_fs_ops);
        assert_eq!(groups(&request), ["1", "", ""]);
    }

    #[test]
    fn a_capability_is_left_out_with_the_one_it_requires() {
        let features = Features::without(&[Feature::DeferFsOps, Feature::GetVolumeStats]);
        let left: Vec<_> = features.node_capabilities().collect();
        let expected = [
            NodeType::GetVolumeHealth,
            NodeType::GetStorageHealth,
            NodeType::ExpandVolume,
            NodeType::SingleNodeMultiWriter,
            NodeType::VolumeMountGroup,
        ];
        assert_eq!(left, expected);
    }
}
