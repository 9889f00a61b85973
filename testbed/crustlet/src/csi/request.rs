//! The fields of requests that depend on a driver's capabilities (KEP-2857, 2485, 2317).

use std::collections::HashMap;

use crust_proto::csi::v1::VolumeCapability;
use crust_proto::csi::v1::node_service_capability::rpc::Type as Rpc;
use crust_proto::csi::v1::volume_capability::access_mode::Mode;
use crust_proto::csi::v1::volume_capability::{AccessMode, AccessType, MountVolume};

use super::Capabilities;
use crate::volumes::spec::{MountSpec, VolumeSpec};

/// KEP-2485, "CSI Specification Changes, Volume Capabilities": by Kubernetes' modes, and by whether the driver
/// knows the newer ones of CSI.
pub(crate) fn access_mode(modes: &[String], capabilities: &Capabilities) -> Mode {
    mode(modes, capabilities.has(Rpc::SingleNodeMultiWriter))
}

/// The same, by whether the service that is asked knows them: a driver's controller tells it apart from its node.
pub(crate) fn mode(modes: &[String], knows: bool) -> Mode {
    // The first alone counts, and none is ReadWriteOnce: as for kubelet, which asks with one mode a call.
    match modes.first().map(String::as_str) {
        Some("ReadWriteMany") => Mode::MultiNodeMultiWriter,
        Some("ReadOnlyMany") => Mode::MultiNodeReaderOnly,
        Some("ReadWriteOncePod") if knows => Mode::SingleNodeSingleWriter,
        _ if knows => Mode::SingleNodeMultiWriter,
        _ => Mode::SingleNodeWriter,
    }
}

/// The fields of a publication for a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Publish {
    /// `defer_fs_ops`
    pub(crate) defer_fs_ops: bool,
    /// `volume_mount_group` (KEP-2317).
    pub(crate) mount_group: Option<i64>,
    /// `volume_supplemental_group` (KEP-2857).
    pub(crate) supplemental_group: Option<i64>,
    /// `volume_supplemental_group_change_policy` (KEP-2857).
    pub(crate) change_policy: Option<String>,
}

/// A capability that the driver of a deferred volume lacks (KEP-2857, "Enhancements to Kubelet").
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "driver {driver} lacks the capability {capability}, and the pod asks for deferFSMount{with}; hint: upgrade the driver, or take deferFSMount out of the pod"
)]
pub(crate) struct LacksCapability {
    driver: String,
    capability: &'static str,
    with: &'static str,
}

impl LacksCapability {
    /// Returns the error for a volume that is deferred already, whose driver was replaced by one that can't defer
    /// (KEP-2857, story 5).
    pub(crate) fn deferral(driver: &str) -> Self {
        Self {
            driver: driver.to_owned(),
            capability: "DEFER_FS_OPS",
            with: "",
        }
    }
}

impl Publish {
    /// Returns the fields for a mount, by its driver's capabilities.
    pub(crate) fn of(
        mount: &MountSpec,
        capabilities: &Capabilities,
    ) -> Result<Self, LacksCapability> {
        let has = |capability| capabilities.has(capability);
        let lacks = |capability, with| LacksCapability {
            driver: mount.volume.id.driver.clone(),
            capability,
            with,
        };
        let group = mount.fs_group;
        let mut publish = Self {
            mount_group: group.filter(|_| has(Rpc::VolumeMountGroup)),
            ..Self::default()
        };
        if !mount.deferred {
            return Ok(publish);
        }
        if !has(Rpc::DeferFsOps) {
            return Err(lacks("DEFER_FS_OPS", ""));
        }
        publish.defer_fs_ops = true;
        if group.is_some() {
            if !has(Rpc::DeferFsOpsWithSupplementalGroup) {
                return Err(lacks(
                    "DEFER_FS_OPS_WITH_SUPPLEMENTAL_GROUP",
                    " and fsGroup",
                ));
            }
            publish.supplemental_group = group;
            if mount.change_policy.is_some() {
                if !has(Rpc::DeferFsOpsWithSupplementalGroupChangePolicy) {
                    let capability = "DEFER_FS_OPS_WITH_SUPPLEMENTAL_GROUP_CHANGE_POLICY";
                    return Err(lacks(capability, " and fsGroupChangePolicy"));
                }
                publish.change_policy.clone_from(&mount.change_policy);
            }
        }
        Ok(publish)
    }
}

/// How a volume is used. At stage there is no pod yet.
pub(crate) fn capability(
    volume: &VolumeSpec,
    capabilities: &Capabilities,
    publish: &Publish,
) -> VolumeCapability {
    let group = |gid: Option<i64>| gid.map(|gid| gid.to_string()).unwrap_or_default();
    let mount = MountVolume {
        fs_type: volume.fs_type.clone(),
        mount_flags: volume.mount_options.clone(),
        volume_mount_group: group(publish.mount_group),
        volume_supplemental_group: group(publish.supplemental_group),
        volume_supplemental_group_change_policy: publish.change_policy.clone().unwrap_or_default(),
    };
    let mode = access_mode(&volume.access_modes, capabilities);
    VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: Some(AccessType::Mount(mount)),
    }
}

/// Returns the context of a volume, which each call repeats.
pub(crate) fn context(volume: &VolumeSpec) -> HashMap<String, String> {
    let attributes = volume.attributes.iter();
    attributes
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::volumes::spec::{Lifecycle, VolumeId};

    fn mount(deferred: bool, group: Option<i64>, policy: Option<&str>) -> MountSpec {
        MountSpec {
            volume: VolumeSpec {
                id: VolumeId {
                    driver: "csi.example".to_owned(),
                    handle: "handle-1".to_owned(),
                },
                directory: "pv-1".to_owned(),
                lifecycle: Lifecycle::Persistent,
                fs_type: "ext4".to_owned(),
                mount_options: vec!["noatime".to_owned()],
                attributes: BTreeMap::new(),
                access_modes: vec!["ReadWriteOnce".to_owned()],
                read_only: false,
                stage_secret: None,
                publish_secret: None,
                expand_secret: None,
                claim: None,
                capacity: None,
                allows_runtime: false,
            },
            deferred,
            read_only: false,
            fs_group: group,
            change_policy: policy.map(str::to_owned),
            runtime: None,
            has_subpath: false,
        }
    }

    fn able(capabilities: &[Rpc]) -> Capabilities {
        capabilities.iter().copied().collect()
    }

    /// The table of KEP-2485, "CSI Specification Changes, Volume Capabilities".
    #[test]
    fn access_modes_have_the_names_that_the_driver_knows() {
        let new = able(&[Rpc::SingleNodeMultiWriter]);
        let old = able(&[]);
        let cases = [
            (
                &["ReadWriteOncePod"][..],
                &new,
                Mode::SingleNodeSingleWriter,
            ),
            (&["ReadWriteOncePod"], &old, Mode::SingleNodeWriter),
            (&["ReadWriteOnce"], &new, Mode::SingleNodeMultiWriter),
            (&["ReadWriteOnce"], &old, Mode::SingleNodeWriter),
            (&["ReadOnlyMany"], &new, Mode::MultiNodeReaderOnly),
            (&["ReadWriteMany"], &old, Mode::MultiNodeMultiWriter),
            // The first of several, as kubelet has it.
            (
                &["ReadOnlyMany", "ReadWriteOnce"],
                &new,
                Mode::MultiNodeReaderOnly,
            ),
            (
                &["ReadWriteOnce", "ReadWriteMany"],
                &new,
                Mode::SingleNodeMultiWriter,
            ),
            (&[], &new, Mode::SingleNodeMultiWriter),
            (&[], &old, Mode::SingleNodeWriter),
        ];
        for (modes, capabilities, expected) in cases {
            let modes: Vec<String> = modes.iter().map(|&it| it.to_owned()).collect();
            assert_eq!(access_mode(&modes, capabilities), expected, "{modes:?}");
        }
    }

    #[test]
    fn what_a_deferred_volume_needs_of_its_driver_is_named() {
        let defer = Rpc::DeferFsOps;
        let group = Rpc::DeferFsOpsWithSupplementalGroup;
        let policy = Rpc::DeferFsOpsWithSupplementalGroupChangePolicy;
        let cases = [
            (mount(true, None, None), &[][..], Some("DEFER_FS_OPS,")),
            (mount(true, None, None), &[defer], None),
            // Without fsGroup there is nothing to apply a policy to.
            (mount(true, None, Some("Always")), &[defer], None),
            (
                mount(true, Some(7), None),
                &[defer],
                Some("DEFER_FS_OPS_WITH_SUPPLEMENTAL_GROUP,"),
            ),
            (mount(true, Some(7), None), &[defer, group], None),
            (
                mount(true, Some(7), Some("Always")),
                &[defer, group],
                Some("DEFER_FS_OPS_WITH_SUPPLEMENTAL_GROUP_CHANGE_POLICY,"),
            ),
            (
                mount(true, Some(7), Some("Always")),
                &[defer, group, policy],
                None,
            ),
            (mount(false, Some(7), Some("Always")), &[], None),
        ];
        for (mount, capabilities, lacks) in cases {
            let found = Publish::of(&mount, &able(capabilities))
                .err()
                .map(|it| it.to_string());
            let is_told = match (&found, lacks) {
                (Some(found), Some(lacks)) => found.contains(&format!("the capability {lacks}")),
                (found, lacks) => found.is_none() && lacks.is_none(),
            };
            assert!(is_told, "{capabilities:?}: {found:?}, not {lacks:?}");
        }
    }

    /// KEP-2317, and KEP-2857's fields beside.
    #[test]
    fn a_group_goes_by_every_field_that_the_driver_knows() {
        let all = able(&[
            Rpc::VolumeMountGroup,
            Rpc::DeferFsOps,
            Rpc::DeferFsOpsWithSupplementalGroup,
            Rpc::DeferFsOpsWithSupplementalGroupChangePolicy,
        ]);
        let publish = Publish::of(&mount(true, Some(0), Some("OnRootMismatch")), &all).unwrap();
        let expected = Publish {
            defer_fs_ops: true,
            mount_group: Some(0),
            supplemental_group: Some(0),
            change_policy: Some("OnRootMismatch".to_owned()),
        };
        assert_eq!(publish, expected);
        let capability = capability(&mount(true, None, None).volume, &all, &publish);
        let Some(AccessType::Mount(mounted)) = capability.access_type else {
            panic!("{capability:?}");
        };
        assert_eq!(mounted.volume_mount_group, "0");
        assert_eq!(mounted.volume_supplemental_group, "0");
        assert_eq!(
            mounted.volume_supplemental_group_change_policy,
            "OnRootMismatch"
        );
        let plain = Publish::of(&mount(false, Some(7), Some("Always")), &all).unwrap();
        let expected = Publish {
            mount_group: Some(7),
            ..Publish::default()
        };
        assert_eq!(plain, expected);
    }
}
