//! `mountInfo.json`: what the CSI plugin staged (KEP-2857, "Overview of Interactions").

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crust_blockfs::fsgroup::FsGroupChangePolicy;
use serde_json::{Map, Value, json};

use crate::files::MAX_FILE_SIZE;
use crate::target::{TargetPath, TargetPathError};
use crust_blockfs::DiskSeq;

mod decode;

/// The file's name in an entry.
pub const MOUNT_INFO: &str = "mountInfo.json";

/// The version that is written, and the only one that is read.
pub const VERSION: u64 = 1;

/// How the volume is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VolumeType {
    /// A block device of this node.
    Block,
    /// A network source, `server:/export`.
    Network,
}

/// Declares an enum's names in one place, for both directions.
macro_rules! names {
    ($kind:ident, $error:ident, $what:literal, $($variant:ident = $name:literal),+ $(,)?) => {
        #[doc = concat!("A string that isn't ", $what, ".")]
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

/// How CSI publishes a volume (`VolumeCapability.AccessMode.Mode`, CSI 1.x; KEP-2485).
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

/// Whether a second pod may have the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// One kernel means one superblock: pods of a node may share it.
    Shared,
    /// One pod at a time.
    Exclusive,
}

impl AccessMode {
    /// Returns whether the mode allows a second pod.
    #[must_use]
    pub const fn access(self) -> Access {
        match self {
            Self::SingleNodeSingleWriter => Access::Exclusive,
            _ => Access::Shared,
        }
    }

    /// Returns true for the modes in which every pod only reads the volume.
    #[must_use]
    pub const fn only_reads(self) -> bool {
        matches!(self, Self::SingleNodeReaderOnly | Self::MultiNodeReaderOnly)
    }
}

/// A staged volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountInfo {
    /// `volume-type`.
    pub volume_type: VolumeType,
    /// `device`: absolute path of a block device, or a network source.
    pub device: PathBuf,
    /// `fstype`.
    pub fstype: String,
    /// `options`, in their order.
    pub options: Vec<String>,
    /// `metadata.fsGroup`: the gid that the volume's files get; 0 is one.
    pub fs_group: Option<u32>,
    /// `metadata.fsGroupChangePolicy`.
    pub fs_group_change_policy: FsGroupChangePolicy,
    /// `metadata.targetPath`, ours: the path that the entry's name is a digest of.
    pub target_path: Option<TargetPath>,
    /// `metadata.readOnly`, ours: this pod's mount is read-only, whatever others have.
    pub read_only: bool,
    /// `metadata.accessMode`, ours.
    pub access_mode: Option<AccessMode>,
    /// `metadata.deviceNode`, ours: the workload gets the raw device as well.
    pub device_node: bool,
    /// `metadata.diskSeq`, ours: which disk the device was when it was staged; `None` where nobody said.
    pub disk_seq: Option<DiskSeq>,
}

/// The error of a `mountInfo.json`: the field, and the reason.
#[derive(Debug, thiserror::Error)]
pub enum InfoError {
    /// Not JSON, or not UTF-8.
    #[error("isn't JSON: {0}")]
    Syntax(#[from] serde_json::Error),
    /// The document isn't an object.
    #[error("holds no JSON object")]
    NotAnObject,
    /// A later version than this program knows.
    #[error(
        "field `version`: {0} is unknown, {VERSION} is the only one known; hint: a newer crust_ops wrote it; upgrade runcrust on this node"
    )]
    Version(String),
    /// A field that must be there isn't.
    #[error("field `{0}` is missing")]
    Missing(&'static str),
    /// Two spellings of one field that say different things.
    #[error("fields `{0}` and `{1}` differ")]
    Differ(&'static str, &'static str),
    /// A field of the wrong type.
    #[error("field `{field}`: expected {expected}, found {found}")]
    Type {
        /// The field's path in the document.
        field: &'static str,
        /// The value that belongs there.
        expected: &'static str,
        /// The value that was found, as JSON.
        found: String,
    },
    /// More than a reader would take.
    #[error(
        "its {0} bytes are more than the {MAX_FILE_SIZE} that are read; hint: are there that many options?"
    )]
    TooLarge(usize),
    /// A field whose value means nothing.
    #[error("field `{field}`: {reason}")]
    Value {
        /// The field's path in the document.
        field: &'static str,
        /// The reason why it can't be used.
        reason: String,
    },
}

impl MountInfo {
    /// Reads the file's content. Unknown fields are tolerated, unknown values aren't: a container
    /// that starts without the fsGroup it asked for is worse than one that doesn't start.
    pub fn parse(bytes: &[u8]) -> Result<Self, InfoError> {
        decode::decode(serde_json::from_slice(bytes)?)
    }

    /// The file's content.
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
        // 64 bits are more than what readers of JSON keep of a number (RFC 8259, section 6).
        set("diskSeq", self.disk_seq.map(|seq| json!(seq.to_string())));
        let volume_type = match self.volume_type {
            VolumeType::Block => "block",
            VolumeType::Network => "network",
        };
        let mut document = json!({
            "version": VERSION,
            "volume-type": volume_type,
            "device": self.device.to_string_lossy(),
            "fstype": self.fstype,
        });
        if !self.options.is_empty() {
            document["options"] = json!(self.options);
        }
        document["metadata"] = Value::Object(metadata);
        document
    }

    /// Checks what a caller put together, by the same rules as what is read.
    pub fn validate(&self) -> Result<(), InfoError> {
        for (field, path) in [
            ("device", Some(self.device.as_path())),
            ("metadata.targetPath", self.target()),
        ] {
            // JSON has no other strings, and no OCI config or gRPC message could name it.
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

    /// Whether a second pod may have the volume.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access_mode.map_or(Access::Shared, AccessMode::access)
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

/// Shows everything that was staged except the target path: `device "/dev/sda", fstype "ext4", options []`.
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
