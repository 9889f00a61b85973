//! `mountInfo.json`, the metadata of a staged volume (KEP-2857, "Overview of Interactions").

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crust_blockfs::fsgroup::FsGroupChangePolicy;
use serde_json::{Map, Value, json};

use crate::files::MAX_FILE_SIZE;
use crate::target::{TargetPath, TargetPathError};
use crust_blockfs::DiskSeq;
use crust_nfs::{Share, is_nfs};

mod decode;

/// The name of the file in an entry.
pub const MOUNT_INFO: &str = "mountInfo.json";

/// The format version that is written. No other version is read.
pub const VERSION: u64 = 1;

/// The type of a volume's source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VolumeType {
    /// A block device of this node.
    Block,
    /// A network source such as `server:/export`.
    Network,
}

impl VolumeType {
    /// Returns the type of the volumes that have this file system.
    #[must_use]
    pub fn from_fstype(fstype: &str) -> Self {
        if is_nfs(fstype.as_bytes()) {
            Self::Network
        } else {
            Self::Block
        }
    }

    /// Returns the name in `mountInfo.json`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::Network => "network",
        }
    }
}

/// Implements the conversions between an enum and the names of its variants.
macro_rules! names {
    ($kind:ident, $error:ident, $what:literal, $($variant:ident = $name:literal),+ $(,)?) => {
        #[doc = concat!("The error of a string that isn't ", $what, ".")]
        #[derive(Debug, thiserror::Error)]
        #[error("{0:?} isn't {what} (one of {known})", what = $what, known = [$($name),+].join(", "))]
        pub struct $error(String);

        impl FromStr for $kind {
            type Err = $error;

            fn from_str(text: &str) -> Result<Self, $error> {
                match text {
                    $($name => Ok(Self::$variant),)+
                    other => Err($error(other.to_owned())),
                }
            }
        }

        impl $kind {
            /// Returns the name in `mountInfo.json`.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }

        impl fmt::Display for $kind {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(self.as_str())
            }
        }
    };
}

/// The CSI access mode of a volume (`VolumeCapability.AccessMode.Mode`, CSI 1.x; KEP-2485).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessMode {
    /// Read-write on one node.
    SingleNodeWriter,
    /// Read-only on one node.
    SingleNodeReaderOnly,
    /// Read-only on many nodes.
    MultiNodeReaderOnly,
    /// Read-write on one of many nodes.
    MultiNodeSingleWriter,
    /// Read-write on many nodes.
    MultiNodeMultiWriter,
    /// `ReadWriteOncePod`: one pod in the whole cluster.
    SingleNodeSingleWriter,
    /// Read-write by many pods of one node.
    SingleNodeMultiWriter,
}

names!(
    AccessMode,
    NotAnAccessMode,
    "a CSI access mode",
    SingleNodeWriter = "SINGLE_NODE_WRITER",
    SingleNodeReaderOnly = "SINGLE_NODE_READER_ONLY",
    MultiNodeReaderOnly = "MULTI_NODE_READER_ONLY",
    MultiNodeSingleWriter = "MULTI_NODE_SINGLE_WRITER",
    MultiNodeMultiWriter = "MULTI_NODE_MULTI_WRITER",
    SingleNodeSingleWriter = "SINGLE_NODE_SINGLE_WRITER",
    SingleNodeMultiWriter = "SINGLE_NODE_MULTI_WRITER",
);

/// Whether a second pod on the node may use the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodAccess {
    /// The pods of a node may share the volume, because they have the same kernel and so the same superblock.
    Shared,
    /// Only one pod may use the volume.
    Exclusive,
}

impl AccessMode {
    /// Returns whether a second pod on the node may use the volume.
    #[must_use]
    pub const fn access(self) -> PodAccess {
        match self {
            Self::SingleNodeSingleWriter => PodAccess::Exclusive,
            _ => PodAccess::Shared,
        }
    }

    /// Returns whether all pods only read the volume.
    #[must_use]
    pub const fn only_reads(self) -> bool {
        matches!(self, Self::SingleNodeReaderOnly | Self::MultiNodeReaderOnly)
    }
}

/// The metadata of a staged volume. Fields that the KEP doesn't define are marked as runcrust's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountInfo {
    pub volume_type: VolumeType,
    /// `device`: the absolute path of a block device, or a network source.
    pub device: PathBuf,
    pub fstype: String,
    /// `options`: the mount options, in the order in which they apply.
    pub options: Vec<String>,
    /// `metadata.fsGroup`: the gid that the files of the volume get. 0 is a valid gid.
    pub fs_group: Option<u32>,
    /// `metadata.fsGroupChangePolicy`: `Always` without `fs_group`.
    pub fs_group_change_policy: FsGroupChangePolicy,
    /// `metadata.targetPath`, runcrust's: the path whose digest is the name of the entry. For a volume behind a
    /// symbolic link, both entries have the same target path here.
    pub target_path: Option<TargetPath>,
    /// `metadata.readOnly`, runcrust's: whether the mounts of this volume are read-only. Other volumes on the same
    /// device may be mounted read-write.
    pub read_only: bool,
    /// `metadata.accessMode`, runcrust's.
    pub access_mode: Option<AccessMode>,
    /// `metadata.deviceNode`, runcrust's: whether containers also get the block device.
    pub device_node: bool,
    /// `metadata.diskSeq`, runcrust's: the disk sequence number of the device when it was staged. `None` if it isn't
    /// known.
    pub disk_seq: Option<DiskSeq>,
}

/// The error of a `mountInfo.json`: the field and the reason.
#[derive(Debug, thiserror::Error)]
pub enum InfoError {
    /// The file isn't JSON, or not UTF-8.
    #[error("isn't JSON: {0}")]
    Syntax(#[from] serde_json::Error),
    #[error("isn't a JSON object")]
    NotAnObject,
    /// The version isn't [`VERSION`].
    #[error(
        "field `version`: {0} is unknown, {VERSION} is the only one known; hint: upgrade runcrust on this node; a newer crust_ops wrote the file"
    )]
    Version(String),
    #[error("field `{0}` is missing")]
    Missing(&'static str),
    /// Two spellings of the same field have different values.
    #[error("fields `{0}` and `{1}` differ")]
    Differ(&'static str, &'static str),
    #[error("field `{field}`: expected {expected}, found {found}")]
    Type {
        /// The path of the field in the document.
        field: &'static str,
        expected: &'static str,
        /// The JSON text of the value.
        found: String,
    },
    /// The file would be larger than [`MAX_FILE_SIZE`], and couldn't be read again.
    #[error(
        "its {0} bytes are more than the {MAX_FILE_SIZE} that are read; hint: reduce the number of mount options"
    )]
    TooLarge(usize),
    /// The value of a field can't be used.
    #[error("field `{field}`: {reason}")]
    Value {
        /// The path of the field in the document.
        field: &'static str,
        reason: String,
    },
}

impl MountInfo {
    /// Parses the content of the file. Unknown fields are ignored, but unknown values are errors: it is worse if a
    /// container starts without the requested fsGroup than if it doesn't start.
    pub fn parse(bytes: &[u8]) -> Result<Self, InfoError> {
        decode::decode(serde_json::from_slice(bytes)?)
    }

    /// Returns the content of the file.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        text(&self.document())
    }

    fn document(&self) -> Value {
        let mut metadata = Map::new();
        let mut set = |key: &str, value: Option<Value>| {
            value.map(|value| metadata.insert(key.to_owned(), value));
        };
        set("fsGroup", self.fs_group.map(|gid| json!(gid.to_string())));
        let policy = self
            .fs_group
            .map(|_| json!(self.fs_group_change_policy.as_str()));
        set("fsGroupChangePolicy", policy);
        let path = self.target_path.as_ref();
        set(
            "targetPath",
            path.map(|path| json!(path.as_path().to_string_lossy())),
        );
        set("readOnly", self.read_only.then_some(Value::Bool(true)));
        set(
            "accessMode",
            self.access_mode.map(|mode| json!(mode.as_str())),
        );
        set("deviceNode", self.device_node.then_some(Value::Bool(true)));
        // A string, because readers of JSON may not keep all 64 bits of a number (RFC 8259, section 6).
        set("diskSeq", self.disk_seq.map(|seq| json!(seq.to_string())));
        let mut document = json!({
            "version": VERSION,
            "volume-type": self.volume_type.as_str(),
            "device": self.device.to_string_lossy(),
            "fstype": self.fstype,
        });
        if !self.options.is_empty() {
            document["options"] = json!(self.options);
        }
        document["metadata"] = Value::Object(metadata);
        document
    }

    /// Checks metadata that a caller composed, by the same rules as [`Self::parse`].
    pub fn validate(&self) -> Result<(), InfoError> {
        for (field, path) in [
            ("device", Some(self.device.as_path())),
            ("metadata.targetPath", self.target()),
        ] {
            // A path that isn't UTF-8 can't be written to JSON, an OCI config or a gRPC message.
            if path.is_some_and(|path| path.to_str().is_none()) {
                return Err(InfoError::Value {
                    field,
                    reason: "the path isn't UTF-8".into(),
                });
            }
        }
        let document = self.document();
        let length = text(&document).len();
        if length as u64 > MAX_FILE_SIZE {
            return Err(InfoError::TooLarge(length));
        }
        decode::decode(document).map(drop)
    }

    /// Returns whether a second pod on the node may use the volume.
    #[must_use]
    pub fn access(&self) -> PodAccess {
        self.access_mode
            .map_or(PodAccess::Shared, AccessMode::access)
    }

    /// Returns the share of a network volume; `None` for a volume on a block device.
    pub fn share(&self) -> Result<Option<Share>, InfoError> {
        match self.volume_type {
            VolumeType::Block => Ok(None),
            VolumeType::Network => decode::share(&self.device.to_string_lossy()).map(Some),
        }
    }

    fn target(&self) -> Option<&Path> {
        self.target_path.as_ref().map(TargetPath::as_path)
    }
}

fn text(document: &Value) -> Vec<u8> {
    let mut bytes = document.to_string().into_bytes();
    bytes.push(b'\n');
    bytes
}

impl From<TargetPathError> for InfoError {
    fn from(error: TargetPathError) -> Self {
        Self::Value {
            field: "metadata.targetPath",
            reason: error.to_string(),
        }
    }
}

/// Formats the metadata without the target path: `device "/dev/sda", fstype "ext4", options []`.
impl fmt::Display for MountInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (device, fstype, options) =
            (self.device.to_string_lossy(), &self.fstype, &self.options);
        write!(
            f,
            "device {device:?}, fstype {fstype:?}, options {options:?}"
        )?;
        if let Some(gid) = self.fs_group {
            write!(f, ", fsGroup {gid} ({})", self.fs_group_change_policy)?;
        }
        if self.read_only {
            f.write_str(", read-only")?;
        }
        if let Some(mode) = self.access_mode {
            write!(f, ", access mode {mode}")?;
        }
        if self.device_node {
            f.write_str(", with the device node")?;
        }
        if let Some(seq) = self.disk_seq {
            write!(f, ", disk {seq}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
