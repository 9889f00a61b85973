//! The fields of requests that depend on the driver's capabilities (KEP-2857, KEP-2485, KEP-2317).

use std::collections::HashMap;

use crust_proto::csi::v1::VolumeCapability;
use crust_proto::csi::v1::node_service_capability::rpc::Type as Rpc;
use crust_proto::csi::v1::volume_capability::access_mode::Mode;
use crust_proto::csi::v1::volume_capability::{AccessMode, AccessType, MountVolume};

use super::Capabilities;
use crate::volumes::spec::{MountSpec, VolumeSpec};

/// Returns CSI's access mode for the node service of a driver.
pub(crate) fn node_access_mode(modes: &[String], capabilities: &Capabilities) -> Mode {
    access_mode(modes, capabilities.has(Rpc::SingleNodeMultiWriter))
}

/// Converts Kubernetes' access modes to one of CSI (KEP-2485, "CSI Specification Changes, Volume Capabilities").
/// `has_multi_writer` says whether the called service has the capability `SINGLE_NODE_MULTI_WRITER`, and so knows the
/// newer modes. The controller and the node service of a driver can differ in this.
pub(crate) fn access_mode(modes: &[String], has_multi_writer: bool) -> Mode {
    // As in kubelet, only the first mode counts, and the default is ReadWriteOnce.
    match modes.first().map(String::as_str) {
        Some("ReadWriteMany") => Mode::MultiNodeMultiWriter,
        Some("ReadOnlyMany") => Mode::MultiNodeReaderOnly,
        Some("ReadWriteOncePod") if has_multi_writer => Mode::SingleNodeSingleWriter,
        _ if has_multi_writer => Mode::SingleNodeMultiWriter,
        _ => Mode::SingleNodeWriter,
    }
}

/// The options of a publication that depend on the pod and on the driver's capabilities.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PublishOptions {
    pub(crate) defer_fs_ops: bool,
    /// The request's `volume_mount_group` (KEP-2317).
    pub(crate) mount_group: Option<i64>,
    /// The request's `volume_supplemental_group` (KEP-2857).
    pub(crate) supplemental_group: Option<i64>,
    /// The request's `volume_supplemental_group_change_policy` (KEP-2857).
    pub(crate) change_policy: Option<String>,
}

/// The error of a driver that lacks a capability for a deferred volume (KEP-2857, "Enhancements to Kubelet").
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "driver {driver} lacks the capability {capability}, which the pod needs for deferFSMount{other_field}; hint: upgrade the driver, or remove deferFSMount from the pod"
)]
pub(crate) struct LacksCapability {
    driver: String,
    capability: &'static str,
    /// The other field of the pod that needs the capability, such as ` and fsGroup`.
    other_field: &'static str,
}

impl LacksCapability {
    /// Returns the error for a volume that is already deferred, after its driver was replaced by a driver that can't
    /// defer (KEP-2857, story 5).
    pub(crate) fn deferral(driver: &str) -> Self {
        Self {
            driver: driver.to_owned(),
            capability: "DEFER_FS_OPS",
            other_field: "",
        }
    }
}

impl PublishOptions {
    /// Returns the options for a mount. Fails if the driver lacks a capability that the mount needs.
    pub(crate) fn new(
        mount: &MountSpec,
        capabilities: &Capabilities,
    ) -> Result<Self, LacksCapability> {
        let has = |capability| capabilities.has(capability);
        let lacks = |capability, other_field| LacksCapability {
            driver: mount.volume.id.driver.clone(),
            capability,
            other_field,
        };
        let group = mount.fs_group;
        let mut options = Self {
            mount_group: group.filter(|_| has(Rpc::VolumeMountGroup)),
            ..Self::default()
        };
        if !mount.deferred {
            return Ok(options);
        }
        if !has(Rpc::DeferFsOps) {
            return Err(lacks("DEFER_FS_OPS", ""));
        }
        options.defer_fs_ops = true;
        if group.is_some() {
            if !has(Rpc::DeferFsOpsWithSupplementalGroup) {
                return Err(lacks(
                    "DEFER_FS_OPS_WITH_SUPPLEMENTAL_GROUP",
                    " and fsGroup",
                ));
            }
            options.supplemental_group = group;
            if mount.change_policy.is_some() {
                if !has(Rpc::DeferFsOpsWithSupplementalGroupChangePolicy) {
                    let capability = "DEFER_FS_OPS_WITH_SUPPLEMENTAL_GROUP_CHANGE_POLICY";
                    return Err(lacks(capability, " and fsGroupChangePolicy"));
                }
                options.change_policy.clone_from(&mount.change_policy);
            }
        }
        Ok(options)
    }
}

pub(crate) fn volume_capability(
    volume: &VolumeSpec,
    capabilities: &Capabilities,
    options: &PublishOptions,
) -> VolumeCapability {
    let group = |gid: Option<i64>| gid.map(|gid| gid.to_string()).unwrap_or_default();
    let mount = MountVolume {
        fs_type: volume.fs_type.clone(),
        mount_flags: volume.mount_options.clone(),
        volume_mount_group: group(options.mount_group),
        volume_supplemental_group: group(options.supplemental_group),
        volume_supplemental_group_change_policy: options.change_policy.clone().unwrap_or_default(),
    };
    let mode = node_access_mode(&volume.access_modes, capabilities);
    VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: Some(AccessType::Mount(mount)),
    }
}

pub(crate) fn volume_context(volume: &VolumeSpec) -> HashMap<String, String> {
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

    fn capabilities(rpcs: &[Rpc]) -> Capabilities {
        rpcs.iter().copied().collect()
    }

    /// The table of KEP-2485, "CSI Specification Changes, Volume Capabilities".
    #[test]
    fn the_access_mode_depends_on_the_driver() {
        let new = capabilities(&[Rpc::SingleNodeMultiWriter]);
        let old = capabilities(&[]);
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
            // As in kubelet, the first of several modes counts.
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
            let modes: Vec<String> = modes.iter().map(|&mode| mode.to_owned()).collect();
            assert_eq!(
                node_access_mode(&modes, capabilities),
                expected,
                "{modes:?}"
            );
        }
    }

    #[test]
    fn a_missing_capability_of_a_deferred_volume_is_named() {
        let defer = Rpc::DeferFsOps;
        let group = Rpc::DeferFsOpsWithSupplementalGroup;
        let policy = Rpc::DeferFsOpsWithSupplementalGroupChangePolicy;
        let cases = [
            (mount(true, None, None), &[][..], Some("DEFER_FS_OPS,")),
            (mount(true, None, None), &[defer], None),
            // Without fsGroup, the policy has no effect.
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
        for (mount, rpcs, missing) in cases {
            let error = PublishOptions::new(&mount, &capabilities(rpcs))
                .err()
                .map(|error| error.to_string());
            let is_expected = match (&error, missing) {
                (Some(error), Some(missing)) => {
                    error.contains(&format!("the capability {missing}"))
                }
                (error, missing) => error.is_none() && missing.is_none(),
            };
            assert!(is_expected, "{rpcs:?}: {error:?}, not {missing:?}");
        }
    }

    /// KEP-2317, and the fields of KEP-2857.
    #[test]
    fn the_group_is_in_every_field_that_the_driver_supports() {
        let all = capabilities(&[
            Rpc::VolumeMountGroup,
            Rpc::DeferFsOps,
            Rpc::DeferFsOpsWithSupplementalGroup,
            Rpc::DeferFsOpsWithSupplementalGroupChangePolicy,
        ]);
        let options =
            PublishOptions::new(&mount(true, Some(0), Some("OnRootMismatch")), &all).unwrap();
        let expected = PublishOptions {
            defer_fs_ops: true,
            mount_group: Some(0),
            supplemental_group: Some(0),
            change_policy: Some("OnRootMismatch".to_owned()),
        };
        assert_eq!(options, expected);
        let capability = volume_capability(&mount(true, None, None).volume, &all, &options);
        let Some(AccessType::Mount(mounted)) = capability.access_type else {
            panic!("{capability:?}");
        };
        assert_eq!(mounted.volume_mount_group, "0");
        assert_eq!(mounted.volume_supplemental_group, "0");
        assert_eq!(
            mounted.volume_supplemental_group_change_policy,
            "OnRootMismatch"
        );
        let not_deferred =
            PublishOptions::new(&mount(false, Some(7), Some("Always")), &all).unwrap();
        let expected = PublishOptions {
            mount_group: Some(7),
            ..PublishOptions::default()
        };
        assert_eq!(not_deferred, expected);
    }
}
