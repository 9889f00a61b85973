//! The file system types of shares.

use std::fmt;
use std::str::FromStr;

use crust_blockfs::options::MountOptions;
use crust_nfs::options::normalize;
use serde::{Deserialize, Serialize};

use crate::capability::FileSystem;

/// The file system type of a share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum NfsType {
    /// Any version of the protocol that the server has.
    Nfs,
    /// Version 4 of the protocol, in any minor version.
    Nfs4,
}

/// A name that no type of a share has.
#[derive(Debug, thiserror::Error)]
#[error("unsupported file system {0:?}; hint: use nfs4 or nfs, or leave the field out")]
pub(super) struct UnknownType(String);

impl NfsType {
    /// Returns the name that mount(8) and `crust_ops` use.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Nfs => "nfs",
            Self::Nfs4 => "nfs4",
        }
    }
}

impl fmt::Display for NfsType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for NfsType {
    type Err = UnknownType;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let named = [Self::Nfs, Self::Nfs4]
            .into_iter()
            .find(|it| it.name() == name);
        named.ok_or_else(|| UnknownType(name.to_owned()))
    }
}

impl FileSystem for NfsType {
    // csi-driver-nfs mounts with this type, too.
    const DEFAULT: &'static str = "nfs";

    const IS_SHARED_BY_NODES: bool = true;

    /// Shows values in errors: no option of NFS is a secret.
    fn normalize(self, options: MountOptions) -> Result<MountOptions, String> {
        normalize(&options, self.name()).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use crust_proto::csi::v1::VolumeCapability;
    use crust_proto::csi::v1::volume_capability::access_mode::Mode;
    use crust_proto::csi::v1::volume_capability::{AccessMode, AccessType, MountVolume};

    use super::*;
    use crate::features::Features;
    use crate::nfs::Capability;

    fn capability(fs_type: &str, flags: &[&str], mode: Mode) -> Result<Capability, String> {
        let mount = MountVolume {
            fs_type: fs_type.to_owned(),
            mount_flags: flags.iter().map(|it| (*it).to_owned()).collect(),
            ..MountVolume::default()
        };
        let capability = VolumeCapability {
            access_mode: Some(AccessMode { mode: mode.into() }),
            access_type: Some(AccessType::Mount(mount)),
        };
        Capability::from_request("c", Some(&capability), &Features::without(&[]))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_share_can_be_used_by_many_nodes() {
        for (mode, only_reads) in [
            (Mode::SingleNodeWriter, false),
            (Mode::SingleNodeSingleWriter, false),
            (Mode::MultiNodeMultiWriter, false),
            (Mode::MultiNodeSingleWriter, false),
            (Mode::MultiNodeReaderOnly, true),
            (Mode::SingleNodeReaderOnly, true),
        ] {
            let usage = capability("", &[], mode).unwrap();
            assert_eq!(usage.is_read_only(), only_reads, "{mode:?}");
            assert_eq!(usage.mount.unwrap().fstype, NfsType::Nfs);
        }
    }

    #[test]
    fn wrong_types_and_options_are_named() {
        for (fstype, flags, words) in [
            ("ext4", &[][..], "nfs4 or nfs"),
            ("nfs", &["discard"], "mount option discard"),
            ("nfs4", &["vers=3"], "vers=3"),
            ("nfs", &["addr=10.0.0.1"], "names a host"),
        ] {
            let error = capability(fstype, flags, Mode::SingleNodeWriter).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn spellings_of_options_are_the_same_use() {
        let one = capability("nfs", &["v4.1,hard"], Mode::MultiNodeMultiWriter).unwrap();
        let other = capability("nfs", &["nfsvers=4.1"], Mode::MultiNodeMultiWriter).unwrap();
        assert!(one.has_same_usage(&other));
        let third = capability("nfs", &["soft"], Mode::MultiNodeMultiWriter).unwrap();
        assert!(!one.has_same_usage(&third));
        let written = serde_json::to_string(&one).unwrap();
        assert_eq!(serde_json::from_str::<Capability>(&written).unwrap(), one);
        let fields: HashMap<String, serde_json::Value> = serde_json::from_str(&written).unwrap();
        assert_eq!(fields["mount"]["fstype"], "nfs");
    }
}
