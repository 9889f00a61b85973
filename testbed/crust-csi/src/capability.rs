//! How a volume is to be used, as capabilities, parameters and contexts of requests say it.

use std::collections::HashMap;
use std::str::FromStr;

use crust_blockfs::fsgroup::FsGroupChangePolicy;
use crust_blockfs::options;
use crust_proto::csi::v1::VolumeCapability;
use crust_proto::csi::v1::volume_capability::access_mode::Mode;
use crust_proto::csi::v1::volume_capability::{AccessType, MountVolume};
use crust_state::info::AccessMode;
use serde::{Deserialize, Serialize};

use crate::features::{Feature, Features};
use crate::field_error::FieldError;
use crate::format::{DEFAULT, Fstype};
use crate::serde_text;

/// A key of a `StorageClass`'s parameters and of a volume's context: the runtime mounts the volume, whatever kubelet
/// knows of that.
pub(crate) const DEFER_KEY: &str = "crust.dev/defer";

/// Another such key: `Always` or `OnRootMismatch`, which a kubelet without KEP-2857 doesn't hand on.
pub(crate) const CHANGE_POLICY_KEY: &str = "crust.dev/fsgroup-change-policy";

/// The prefix of the driver's own keys. Others are ignored.
const KEY_PREFIX: &str = "crust.dev/";

/// The parameters that a volume is created with. Each call on a node gets them again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Parameters {
    /// [`DEFER_KEY`].
    pub(crate) defer: bool,
    /// [`CHANGE_POLICY_KEY`].
    #[serde(with = "serde_text::or_none")]
    pub(crate) change_policy: Option<FsGroupChangePolicy>,
}

impl Parameters {
    /// Reads a `StorageClass`'s parameters. What csi-provisioner adds, `csi.storage.k8s.io/…`, is ignored.
    pub(crate) fn from_storage_class(
        parameters: &HashMap<String, String>,
    ) -> Result<Self, FieldError> {
        let field = "parameters";
        let is_known =
            |key: &&String| key.starts_with("csi.storage.k8s.io/") || key.starts_with(KEY_PREFIX);
        if let Some(unknown) = parameters.keys().find(|key| !is_known(key)) {
            return Err(FieldError::new(field, unknown_key(unknown)));
        }
        Self::read(field, parameters)
    }

    /// Reads a volume's context, in which others than the driver may have keys.
    pub(crate) fn from_volume_context(
        context: &HashMap<String, String>,
    ) -> Result<Self, FieldError> {
        Self::read("volume_context", context)
    }

    fn read(field: &'static str, keys: &HashMap<String, String>) -> Result<Self, FieldError> {
        let mut read = Self::default();
        for (key, value) in keys.iter().filter(|(key, _)| key.starts_with(KEY_PREFIX)) {
            let wrong = |reason: String| FieldError::new(field, format!("{key}: {reason}"));
            match key.as_str() {
                DEFER_KEY => {
                    read.defer = value
                        .parse()
                        .map_err(|_| wrong(format!("{value:?} is neither true nor false")))?;
                }
                CHANGE_POLICY_KEY => {
                    let policy = value.parse::<FsGroupChangePolicy>();
                    read.change_policy = Some(policy.map_err(|error| wrong(error.to_string()))?);
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

fn unknown_key(key: &str) -> String {
    format!("{key:?} isn't known; known are {DEFER_KEY} and {CHANGE_POLICY_KEY}")
}

/// A volume capability of CSI: as what, and by how many, a volume is used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Capability {
    /// The access mode: by how many nodes and pods.
    #[serde(with = "serde_text")]
    pub(crate) mode: AccessMode,
    /// The use as a file system. `None` is the use as a block device.
    pub(crate) mount: Option<MountCapability>,
}

/// A capability of a volume with a file system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MountCapability {
    /// The type of the file system.
    pub(crate) fstype: Fstype,
    /// The mount options, as in `mount -o`.
    pub(crate) options: Vec<String>,
    /// The fsGroup, by whichever field it came.
    pub(crate) group: Option<u32>,
    /// The policy for applying it.
    #[serde(with = "serde_text::or_none")]
    pub(crate) change_policy: Option<FsGroupChangePolicy>,
}

impl Capability {
    /// Reads the capability of a request, which is required.
    pub(crate) fn from_request(
        field: &'static str,
        capability: Option<&VolumeCapability>,
        features: &Features,
    ) -> Result<Self, FieldError> {
        let missing = |what: &str| FieldError::new(field, format!("{what} is required"));
        let capability = capability.ok_or_else(|| missing("it"))?;
        let access = capability.access_type.as_ref();
        let mount = match access.ok_or_else(|| missing("block or mount"))? {
            AccessType::Block(_) => None,
            AccessType::Mount(mount) => Some(MountCapability::from_request(field, mount)?),
        };
        let mode = capability.access_mode.as_ref();
        let mode = mode.ok_or_else(|| missing("access_mode"))?.mode;
        let mode = access_mode(field, mode, features)?;
        Ok(Self { mode, mount })
    }

    /// Whether nobody writes, by the mode alone.
    pub(crate) fn is_read_only(&self) -> bool {
        self.mode == AccessMode::SingleNodeReaderOnly
    }

    /// In a sentence; of options, that there are some: they may be secrets.
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

    /// Whether it is the same use of the volume's storage: groups are each pod's own, and one mode is another's
    /// newer name (KEP-2485), which kubelet uses from a driver's upgrade on.
    pub(crate) fn has_same_staging(&self, other: &Self) -> bool {
        let of_storage = |usage: &Self| {
            let mount = usage.mount.as_ref();
            mount.map(|mount| (mount.fstype, mount.canonical_options()))
        };
        of_storage(self) == of_storage(other) && self.is_read_only() == other.is_read_only()
    }

    /// Whether it says the same of a pod but for groups, by whatever name of the mode: `SINGLE_NODE_WRITER` is what
    /// either of the newer ones was.
    pub(crate) fn has_same_usage(&self, other: &Self) -> bool {
        let is_older = |usage: &Self| usage.mode == AccessMode::SingleNodeWriter;
        let is_same_mode = self.mode == other.mode || is_older(self) || is_older(other);
        self.has_same_staging(other) && is_same_mode
    }

    /// Whether the pods' groups are the same.
    pub(crate) fn has_same_groups(&self, other: &Self) -> bool {
        let groups = |usage: &Self| usage.mount.as_ref().map(|it| (it.group, it.change_policy));
        groups(self) == groups(other)
    }
}

impl MountCapability {
    fn from_request(field: &'static str, mount: &MountVolume) -> Result<Self, FieldError> {
        let wrong =
            |name: &str, reason: String| FieldError::new(field, format!("{name}: {reason}"));
        let fstype = match mount.fs_type.as_str() {
            "" => DEFAULT,
            name => name,
        };
        let fstype =
            Fstype::from_str(fstype).map_err(|error| wrong("fs_type", error.to_string()))?;
        // What is said of an option may quote it no further than its name: it may be a secret.
        options::parse(&mount.mount_flags)
            .map_err(|error| wrong("mount_flags", error.to_string()))?;
        let groups = [
            ("volume_mount_group", &mount.volume_mount_group),
            (
                "volume_supplemental_group",
                &mount.volume_supplemental_group,
            ),
        ];
        let mut group = None;
        for (name, text) in groups.into_iter().filter(|(_, text)| !text.is_empty()) {
            let gid = gid(text).ok_or_else(|| wrong(name, format!("{text:?} isn't a gid")))?;
            if group.is_some_and(|other| other != gid) {
                return Err(wrong(
                    name,
                    "it isn't the same as volume_mount_group".to_owned(),
                ));
            }
            group = Some(gid);
        }
        let change_policy = match mount.volume_supplemental_group_change_policy.as_str() {
            "" => None,
            text => Some(text.parse::<FsGroupChangePolicy>().map_err(|error| {
                wrong("volume_supplemental_group_change_policy", error.to_string())
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

impl MountCapability {
    /// The options in one spelling: kubelet asks again after each restart, and what it asks with may
    /// have been written anew. As they are where they can't be understood.
    fn canonical_options(&self) -> Vec<String> {
        options::parse(&self.options)
            .map_or_else(|_| self.options.clone(), |options| options.canonical())
    }

    /// Whether an option says that nobody writes.
    pub(crate) fn is_read_only(&self) -> bool {
        options::parse(&self.options).is_ok_and(|options| options.read_only)
    }
}

/// `-1` in all its forms means "no change" to chown(2).
fn gid(text: &str) -> Option<u32> {
    let is_decimal = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse()
        .ok()
        .filter(|gid| is_decimal && *gid != u32::MAX)
}

/// The volume is on one node: nobody has it on several.
fn access_mode(
    field: &'static str,
    mode: i32,
    features: &Features,
) -> Result<AccessMode, FieldError> {
    let refused = |why: &str| Err(FieldError::new(field, format!("access_mode: {why}")));
    let of_2485 = |mode| {
        if features.has(Feature::SingleNodeMultiWriter) {
            Ok(mode)
        } else {
            refused("it isn't known; hint: the driver hasn't SINGLE_NODE_MULTI_WRITER")
        }
    };
    match Mode::try_from(mode) {
        Ok(Mode::SingleNodeWriter) => Ok(AccessMode::SingleNodeWriter),
        Ok(Mode::SingleNodeReaderOnly) => Ok(AccessMode::SingleNodeReaderOnly),
        Ok(Mode::SingleNodeSingleWriter) => of_2485(AccessMode::SingleNodeSingleWriter),
        Ok(Mode::SingleNodeMultiWriter) => of_2485(AccessMode::SingleNodeMultiWriter),
        Ok(Mode::Unknown) => refused("it is required"),
        Ok(
            Mode::MultiNodeReaderOnly | Mode::MultiNodeSingleWriter | Mode::MultiNodeMultiWriter,
        ) => refused("a volume is on one node, and no other can have it"),
        Err(_) => refused(&format!("{mode} isn't known")),
    }
}

#[cfg(test)]
mod tests {
    use crust_proto::csi::v1::volume_capability::{AccessMode as Wire, BlockVolume};

    use super::*;

    fn all() -> Features {
        Features::without(&[])
    }

    fn mount(mount: MountVolume, mode: Mode) -> VolumeCapability {
        VolumeCapability {
            access_mode: Some(Wire { mode: mode.into() }),
            access_type: Some(AccessType::Mount(mount)),
        }
    }

    fn of(capability: &VolumeCapability) -> Result<Capability, String> {
        Capability::from_request("c", Some(capability), &all()).map_err(|error| error.to_string())
    }

    fn keys(pairs: &[(&str, &str)]) -> HashMap<String, String> {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        pairs.iter().map(owned).collect()
    }

    #[test]
    fn groups_come_by_either_field_and_have_to_agree() {
        let of_groups = |first: &str, second: &str| {
            let volume = MountVolume {
                volume_mount_group: first.to_owned(),
                volume_supplemental_group: second.to_owned(),
                ..MountVolume::default()
            };
            of(&mount(volume, Mode::SingleNodeWriter)).map(|it| it.mount.unwrap().group)
        };
        assert_eq!(of_groups("", ""), Ok(None));
        assert_eq!(of_groups("0", ""), Ok(Some(0)));
        assert_eq!(of_groups("", "7"), Ok(Some(7)));
        assert_eq!(of_groups("7", "7"), Ok(Some(7)));
        assert!(of_groups("7", "8").is_err());
        for wrong in ["-1", "+1", "4294967295", "4294967296", "users", " 1"] {
            assert!(of_groups(wrong, "").is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_missing_is_named() {
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
                "access_mode: it is required",
            ),
        ];
        for (capability, expected) in missing {
            let error = of(&capability).unwrap_err();
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
    fn an_unknown_parameter_is_refused_but_not_a_context() {
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
        for wrong in [
            (DEFER_KEY, "yes"),
            (CHANGE_POLICY_KEY, "always"),
            ("crust.dev/deferred", "true"),
        ] {
            assert!(
                Parameters::from_volume_context(&keys(&[wrong])).is_err(),
                "{wrong:?}"
            );
        }
    }

    #[test]
    fn a_usage_is_written_as_it_is_read() {
        let volume = MountVolume {
            fs_type: "xfs".to_owned(),
            mount_flags: vec!["noatime".to_owned()],
            volume_mount_group: "5".to_owned(),
            volume_supplemental_group_change_policy: "OnRootMismatch".to_owned(),
            ..MountVolume::default()
        };
        let usage = of(&mount(volume, Mode::SingleNodeMultiWriter)).unwrap();
        let written = serde_json::to_string(&usage).unwrap();
        assert_eq!(serde_json::from_str::<Capability>(&written).unwrap(), usage);
    }
}
