//! The use of a volume, as given by the capabilities, parameters and contexts in requests.

use std::collections::HashMap;
use std::fmt::{Debug, Display};
use std::str::FromStr;

use crust_blockfs::fsgroup::FsGroupChangePolicy;
use crust_blockfs::options::{self, MountOptions};
use crust_proto::csi::v1::VolumeCapability;
use crust_proto::csi::v1::volume_capability::access_mode::Mode;
use crust_proto::csi::v1::volume_capability::{AccessType, MountVolume};
use crust_state::info::AccessMode;
use serde::{Deserialize, Serialize};

use crate::features::{Feature, Features};
use crate::field_error::FieldError;
use crate::serde_text;

/// A key in the parameters of a `StorageClass` and in a volume's context. If it is `true`, the runtime mounts the
/// volume even if kubelet doesn't know of deferral.
pub(crate) const DEFER_KEY: &str = "crust.dev/defer";

/// A key like [`DEFER_KEY`], for the fsGroup change policy. A kubelet without KEP-2857 doesn't pass the pod's policy.
pub(crate) const CHANGE_POLICY_KEY: &str = "crust.dev/fsgroup-change-policy";

/// The prefix of the keys that csi-provisioner and kubelet add.
pub(crate) const SIDECAR_PREFIX: &str = "csi.storage.k8s.io/";

/// The prefix of the driver's own keys. Other keys are ignored.
const KEY_PREFIX: &str = "crust.dev/";

/// The parameters that a volume is created with. Calls on a node get them again as the volume's context.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Parameters {
    /// The value of [`DEFER_KEY`].
    pub(crate) defer: bool,
    /// The value of [`CHANGE_POLICY_KEY`].
    #[serde(with = "serde_text::or_none")]
    pub(crate) change_policy: Option<FsGroupChangePolicy>,
}

impl Parameters {
    /// Reads the parameters of a `StorageClass`. The keys that csi-provisioner adds, `csi.storage.k8s.io/…`, are
    /// ignored.
    pub(crate) fn from_storage_class(
        parameters: &HashMap<String, String>,
    ) -> Result<Self, FieldError> {
        let field = "parameters";
        let is_known = |key: &&String| key.starts_with(SIDECAR_PREFIX) || is_own_key(key);
        if let Some(unknown) = parameters.keys().find(|key| !is_known(key)) {
            return Err(FieldError::new(field, unknown_key(unknown)));
        }
        Self::read(field, parameters)
    }

    /// Reads a volume's context, in which other components may have keys, too.
    pub(crate) fn from_volume_context(
        context: &HashMap<String, String>,
    ) -> Result<Self, FieldError> {
        Self::read("volume_context", context)
    }

    /// Reads the keys that have the driver's prefix. `field` is the field of the request that has them.
    pub(crate) fn read(
        field: &'static str,
        keys: &HashMap<String, String>,
    ) -> Result<Self, FieldError> {
        let mut read = Self::default();
        for (key, value) in keys.iter().filter(|(key, _)| is_own_key(key)) {
            let invalid = |reason: String| FieldError::new(field, format!("{key}: {reason}"));
            match key.as_str() {
                DEFER_KEY => {
                    read.defer = value
                        .parse()
                        .map_err(|_| invalid(format!("{value:?} is neither true nor false")))?;
                }
                CHANGE_POLICY_KEY => {
                    let policy = value.parse::<FsGroupChangePolicy>();
                    read.change_policy = Some(policy.map_err(|error| invalid(error.to_string()))?);
                }
                unknown => return Err(FieldError::new(field, unknown_key(unknown))),
            }
        }
        Ok(read)
    }

    /// Returns the parameters as a volume's context.
    pub(crate) fn context(&self) -> HashMap<String, String> {
        let defer = self.defer.then(|| (DEFER_KEY, "true".to_owned()));
        let policy = self
            .change_policy
            .map(|policy| (CHANGE_POLICY_KEY, policy.to_string()));
        let keys = defer.into_iter().chain(policy);
        keys.map(|(key, value)| (key.to_owned(), value)).collect()
    }
}

/// Returns whether a key is one of those that both drivers read, by its prefix.
pub(crate) fn is_own_key(key: &str) -> bool {
    key.starts_with(KEY_PREFIX)
}

fn unknown_key(key: &str) -> String {
    format!("unknown key {key:?}; hint: use {DEFER_KEY} or {CHANGE_POLICY_KEY}")
}

/// A file system that the volumes of a driver can have. It is parsed from `fs_type`, and displayed as that.
pub(crate) trait FileSystem: Copy + Eq + Debug + Display + FromStr<Err: Display> {
    /// The file system if the request names none.
    const DEFAULT: &'static str;

    /// Whether several nodes can use a volume at the same time.
    const IS_SHARED_BY_NODES: bool;

    /// Checks mount options, and brings them into a form that is the same for all spellings. An error must not contain
    /// more of an option than its name, unless its value can't be a secret.
    fn normalize(self, options: MountOptions) -> Result<MountOptions, String>;
}

/// A volume capability of CSI: the access mode and the access type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Capability<F> {
    #[serde(with = "serde_text")]
    pub(crate) mode: AccessMode,
    /// The file system. `None` if the volume is used as a block device.
    pub(crate) mount: Option<MountCapability<F>>,
}

/// A capability of a volume with a file system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MountCapability<F> {
    pub(crate) fstype: F,
    /// The mount options, as in `mount -o`.
    pub(crate) options: Vec<String>,
    /// The fsGroup, from either of the two fields that can have it.
    pub(crate) group: Option<u32>,
    #[serde(with = "serde_text::or_none")]
    pub(crate) change_policy: Option<FsGroupChangePolicy>,
}

impl<F: FileSystem> Capability<F> {
    /// Reads a required capability from a request.
    pub(crate) fn from_request(
        field: &'static str,
        capability: Option<&VolumeCapability>,
        features: &Features,
    ) -> Result<Self, FieldError> {
        let missing = |name: &str| FieldError::new(field, format!("{name} is required"));
        let capability = capability.ok_or_else(|| FieldError::new(field, "is required"))?;
        let access = capability.access_type.as_ref();
        let mount = match access.ok_or_else(|| missing("block or mount"))? {
            AccessType::Block(_) => None,
            AccessType::Mount(mount) => Some(MountCapability::from_request(field, mount)?),
        };
        let mode = capability.access_mode.as_ref();
        let mode = mode.ok_or_else(|| missing("access_mode"))?.mode;
        let mode = access_mode::<F>(field, mode, features)?;
        Ok(Self { mode, mount })
    }

    /// Reads the capabilities of a request, which needs at least one.
    pub(crate) fn all_from_request(
        capabilities: &[VolumeCapability],
        features: &Features,
    ) -> Result<Vec<Self>, FieldError> {
        let field = "volume_capabilities";
        if capabilities.is_empty() {
            return Err(FieldError::new(field, "is required"));
        }
        let capabilities = capabilities.iter();
        capabilities
            .map(|it| Self::from_request(field, Some(it), features))
            .collect()
    }

    /// Returns whether the access mode is read-only. The mount options can be read-only as well.
    pub(crate) fn is_read_only(&self) -> bool {
        self.mode.only_reads()
    }

    /// Describes the capability in a message. Doesn't show the mount options, because they can contain secrets.
    pub(crate) fn describe(&self) -> String {
        let Some(mount) = &self.mount else {
            return format!("a block device, {}", self.mode);
        };
        let options = match mount.options.len() {
            0 => "",
            _ => ", with mount_flags",
        };
        format!("{}, {}{options}", mount.fstype, self.mode)
    }

    /// Returns whether both capabilities stage the volume in the same way. Groups don't matter, because each pod has
    /// its own. Of the modes only read-only matters: kubelet uses another writable mode once the driver supports
    /// KEP-2485.
    pub(crate) fn has_same_staging(&self, other: &Self) -> bool {
        let of_storage = |usage: &Self| {
            let mount = usage.mount.as_ref();
            mount.map(|mount| (mount.fstype, mount.canonical_options()))
        };
        of_storage(self) == of_storage(other) && self.is_read_only() == other.is_read_only()
    }

    /// Returns whether both capabilities mean the same for a pod, except for groups. `SINGLE_NODE_WRITER` matches both
    /// newer modes, because it was used for both before KEP-2485.
    pub(crate) fn has_same_usage(&self, other: &Self) -> bool {
        let is_older = |usage: &Self| usage.mode == AccessMode::SingleNodeWriter;
        let is_same_mode = self.mode == other.mode || is_older(self) || is_older(other);
        self.has_same_staging(other) && is_same_mode
    }

    /// Returns whether the group and its change policy are the same.
    pub(crate) fn has_same_groups(&self, other: &Self) -> bool {
        let groups = |usage: &Self| usage.mount.as_ref().map(|it| (it.group, it.change_policy));
        groups(self) == groups(other)
    }
}

impl<F: FileSystem> MountCapability<F> {
    fn from_request(field: &'static str, mount: &MountVolume) -> Result<Self, FieldError> {
        let invalid =
            |name: &str, reason: String| FieldError::new(field, format!("{name}: {reason}"));
        let fstype = match mount.fs_type.as_str() {
            "" => F::DEFAULT,
            name => name,
        };
        let fstype = F::from_str(fstype).map_err(|error| invalid("fs_type", error.to_string()))?;
        // The error must not contain more of an option than its name, because the value can be a secret.
        let options = options::parse(&mount.mount_flags)
            .map_err(|error| invalid("mount_flags", error.to_string()))?;
        fstype
            .normalize(options)
            .map_err(|error| invalid("mount_flags", error))?;
        let groups = [
            ("volume_mount_group", &mount.volume_mount_group),
            (
                "volume_supplemental_group",
                &mount.volume_supplemental_group,
            ),
        ];
        let mut group = None;
        for (name, text) in groups.into_iter().filter(|(_, text)| !text.is_empty()) {
            let gid = gid(text).ok_or_else(|| invalid(name, format!("{text:?} is not a gid")))?;
            if group.is_some_and(|other| other != gid) {
                return Err(invalid(name, "differs from volume_mount_group".to_owned()));
            }
            group = Some(gid);
        }
        let change_policy = match mount.volume_supplemental_group_change_policy.as_str() {
            "" => None,
            text => Some(text.parse::<FsGroupChangePolicy>().map_err(|error| {
                invalid("volume_supplemental_group_change_policy", error.to_string())
            })?),
        };
        Ok(Self {
            fstype,
            options: mount.mount_flags.clone(),
            group,
            change_policy,
        })
    }
}

impl<F: FileSystem> MountCapability<F> {
    /// Returns the mount options in a canonical form, or unchanged if they can't be parsed. kubelet repeats its calls
    /// after each restart, and the options may have been spelled differently since.
    fn canonical_options(&self) -> Vec<String> {
        let parsed = options::parse(&self.options).ok();
        let normalized = parsed.and_then(|options| self.fstype.normalize(options).ok());
        normalized.map_or_else(|| self.options.clone(), |options| options.canonical())
    }

    /// Returns whether the mount options contain `ro`.
    pub(crate) fn is_read_only(&self) -> bool {
        options::parse(&self.options).is_ok_and(|options| options.read_only)
    }
}

/// Parses a gid. The largest number is not one: it is -1, which means "no change" to chown(2).
fn gid(text: &str) -> Option<u32> {
    let is_decimal = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse()
        .ok()
        .filter(|gid| is_decimal && *gid != u32::MAX)
}

/// Reads an access mode. Multi-node modes are refused if volumes exist on one node only.
fn access_mode<F: FileSystem>(
    field: &'static str,
    mode: i32,
    features: &Features,
) -> Result<AccessMode, FieldError> {
    let refused = |reason: &str| Err(FieldError::new(field, format!("access_mode: {reason}")));
    let kep_2485 = |mode| {
        if features.has(Feature::SingleNodeMultiWriter) {
            Ok(mode)
        } else {
            refused(
                "the driver lacks the capability SINGLE_NODE_MULTI_WRITER; hint: use SINGLE_NODE_WRITER",
            )
        }
    };
    match Mode::try_from(mode) {
        Ok(Mode::SingleNodeWriter) => Ok(AccessMode::SingleNodeWriter),
        Ok(Mode::SingleNodeReaderOnly) => Ok(AccessMode::SingleNodeReaderOnly),
        Ok(Mode::SingleNodeSingleWriter) => kep_2485(AccessMode::SingleNodeSingleWriter),
        Ok(Mode::SingleNodeMultiWriter) => kep_2485(AccessMode::SingleNodeMultiWriter),
        Ok(Mode::Unknown) => refused("is required"),
        Ok(Mode::MultiNodeReaderOnly) if F::IS_SHARED_BY_NODES => {
            Ok(AccessMode::MultiNodeReaderOnly)
        }
        Ok(Mode::MultiNodeSingleWriter) if F::IS_SHARED_BY_NODES => {
            Ok(AccessMode::MultiNodeSingleWriter)
        }
        Ok(Mode::MultiNodeMultiWriter) if F::IS_SHARED_BY_NODES => {
            Ok(AccessMode::MultiNodeMultiWriter)
        }
        Ok(
            Mode::MultiNodeReaderOnly | Mode::MultiNodeSingleWriter | Mode::MultiNodeMultiWriter,
        ) => refused("a volume exists on one node only, and cannot be used on others"),
        Err(_) => refused(&format!("unknown mode {mode}")),
    }
}

#[cfg(test)]
mod tests {
    use crust_proto::csi::v1::volume_capability::{AccessMode as Wire, BlockVolume};

    use super::*;
    use crate::block::Capability;

    fn all() -> Features {
        Features::without(&[])
    }

    fn mount(mount: MountVolume, mode: Mode) -> VolumeCapability {
        VolumeCapability {
            access_mode: Some(Wire { mode: mode.into() }),
            access_type: Some(AccessType::Mount(mount)),
        }
    }

    fn parse_capability(capability: &VolumeCapability) -> Result<Capability, String> {
        Capability::from_request("c", Some(capability), &all()).map_err(|error| error.to_string())
    }

    fn keys(pairs: &[(&str, &str)]) -> HashMap<String, String> {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        pairs.iter().map(owned).collect()
    }

    #[test]
    fn both_group_fields_are_read_and_must_agree() {
        let parse_groups = |first: &str, second: &str| {
            let volume = MountVolume {
                volume_mount_group: first.to_owned(),
                volume_supplemental_group: second.to_owned(),
                ..MountVolume::default()
            };
            parse_capability(&mount(volume, Mode::SingleNodeWriter))
                .map(|it| it.mount.unwrap().group)
        };
        assert_eq!(parse_groups("", ""), Ok(None));
        assert_eq!(parse_groups("0", ""), Ok(Some(0)));
        assert_eq!(parse_groups("", "7"), Ok(Some(7)));
        assert_eq!(parse_groups("7", "7"), Ok(Some(7)));
        assert!(parse_groups("7", "8").is_err());
        for invalid in ["-1", "+1", "4294967295", "4294967296", "users", " 1"] {
            assert!(parse_groups(invalid, "").is_err(), "{invalid}");
        }
    }

    #[test]
    fn a_missing_field_is_named_in_the_error() {
        let missing = [
            (VolumeCapability::default(), "block or mount"),
            (
                VolumeCapability {
                    access_type: Some(AccessType::Block(BlockVolume {})),
                    access_mode: None,
                },
                "access_mode is required",
            ),
            (
                mount(MountVolume::default(), Mode::Unknown),
                "access_mode: is required",
            ),
        ];
        for (capability, expected) in missing {
            let error = parse_capability(&capability).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        assert!(Capability::from_request("c", None, &all()).is_err());
    }

    #[test]
    fn multi_node_and_newer_modes_are_refused() {
        let of_mode = |mode, features: &Features| {
            let capability = mount(MountVolume::default(), mode);
            Capability::from_request("c", Some(&capability), features)
                .map(|usage| usage.mode)
                .ok()
        };
        let older = Features::without(&[Feature::SingleNodeMultiWriter]);
        assert_eq!(of_mode(Mode::MultiNodeReaderOnly, &all()), None);
        assert_eq!(
            of_mode(Mode::SingleNodeSingleWriter, &all()),
            Some(AccessMode::SingleNodeSingleWriter)
        );
        assert_eq!(of_mode(Mode::SingleNodeSingleWriter, &older), None);
        assert_eq!(
            of_mode(Mode::SingleNodeWriter, &older),
            Some(AccessMode::SingleNodeWriter)
        );
    }

    #[test]
    fn unknown_keys_are_refused_in_parameters_but_not_in_a_context() {
        let ours = keys(&[(DEFER_KEY, "true"), (CHANGE_POLICY_KEY, "OnRootMismatch")]);
        let read = Parameters::from_storage_class(&ours).unwrap();
        assert_eq!(read.context(), ours);
        assert_eq!(
            Parameters::from_volume_context(&read.context()).unwrap(),
            read
        );
        let others = keys(&[("csi.storage.k8s.io/pvc/name", "data")]);
        assert_eq!(
            Parameters::from_storage_class(&others).unwrap(),
            Parameters::default()
        );
        let identity = keys(&[("storage.kubernetes.io/csiProvisionerIdentity", "x")]);
        assert!(Parameters::from_storage_class(&identity).is_err());
        assert!(Parameters::from_volume_context(&identity).is_ok());
        for invalid in [
            (DEFER_KEY, "yes"),
            (CHANGE_POLICY_KEY, "always"),
            ("crust.dev/deferred", "true"),
        ] {
            assert!(
                Parameters::from_volume_context(&keys(&[invalid])).is_err(),
                "{invalid:?}"
            );
        }
    }

    #[test]
    fn a_capability_survives_serialisation() {
        let volume = MountVolume {
            fs_type: "xfs".to_owned(),
            mount_flags: vec!["noatime".to_owned()],
            volume_mount_group: "5".to_owned(),
            volume_supplemental_group_change_policy: "OnRootMismatch".to_owned(),
            ..MountVolume::default()
        };
        let usage = parse_capability(&mount(volume, Mode::SingleNodeMultiWriter)).unwrap();
        let written = serde_json::to_string(&usage).unwrap();
        assert_eq!(serde_json::from_str::<Capability>(&written).unwrap(), usage);
    }
}
