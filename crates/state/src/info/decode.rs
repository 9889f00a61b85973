//! Decodes `mountInfo.json` into [`MountInfo`], field by field, so that an error names the field. Also decodes the file
//! that CSI drivers write for Kata Containers (Kata's `src/runtime/pkg/direct-volume`, and `mount.rs` in its crate
//! `kata-types`).

use std::path::PathBuf;

use serde_json::{Map, Value};

use super::{InfoError, MountInfo, VERSION, VolumeType};
use crate::target::TargetPath;
use crust_blockfs::fsgroup::FsGroupChangePolicy;
use crust_nfs::{FSTYPES, ParseShareError, Share};

pub(super) fn decode(document: Value) -> Result<MountInfo, InfoError> {
    let Value::Object(fields) = document else {
        return Err(InfoError::NotAnObject);
    };
    let fields = Fields(&fields);
    match fields.0.get("version") {
        None => {}
        Some(version) if version.as_u64() == Some(VERSION) => {}
        Some(version) => return Err(InfoError::Version(version.to_string())),
    }
    // Both spellings are accepted: the KEP's and Kata's.
    let volume_type = fields.either_spelling("volume-type", "volume_type")?;
    let volume_type = match required("volume-type", string("volume-type", volume_type)?)? {
        // Kata's name for a directly assigned block device.
        "block" | "directvol" => VolumeType::Block,
        "network" => VolumeType::Network,
        other => {
            let reason = format!("{other:?} isn't a volume type (one of block, network)");
            return Err(InfoError::Value {
                field: "volume-type",
                reason,
            });
        }
    };
    let device = required("device", string("device", fields.0.get("device"))?)?;
    let fstype = fields.either_spelling("fstype", "fs_type")?;
    let fstype = required("fstype", string("fstype", fstype)?)?;
    if fstype.is_empty()
        || !fstype
            .bytes()
            .all(|c| c.is_ascii_alphanumeric() || b"._-".contains(&c))
    {
        let reason = format!("{fstype:?} can't be the name of a file system");
        return Err(InfoError::Value {
            field: "fstype",
            reason,
        });
    }
    check_source(volume_type, device, fstype)?;
    let none = Map::new();
    let metadata = match fields.0.get("metadata") {
        None | Some(Value::Null) => &none,
        Some(Value::Object(metadata)) => metadata,
        Some(other) => return Err(wrong_type("metadata", "an object", other)),
    };
    let metadata = Fields(metadata);
    let fs_group = metadata.gid("metadata.fsGroup")?;
    let policy: Option<FsGroupChangePolicy> = metadata.parsed("metadata.fsGroupChangePolicy")?;
    let target = string("metadata.targetPath", metadata.0.get("targetPath"))?;
    let device_node = metadata.flag("metadata.deviceNode")?;
    if device_node && volume_type == VolumeType::Network {
        return Err(InfoError::Value {
            field: "metadata.deviceNode",
            reason: "a share of a file server has no device".to_owned(),
        });
    }
    Ok(MountInfo {
        volume_type,
        device: PathBuf::from(device),
        fstype: fstype.to_owned(),
        options: fields.options()?,
        fs_group,
        fs_group_change_policy: policy.unwrap_or_default().with_group(fs_group),
        target_path: target.map(TargetPath::new).transpose()?,
        read_only: metadata.flag("metadata.readOnly")?,
        access_mode: metadata.parsed("metadata.accessMode")?,
        device_node,
        disk_seq: metadata.parsed("metadata.diskSeq")?,
    })
}

/// The network file systems that mount with a password.
const WITH_CREDENTIALS: [&str; 2] = ["cifs", "smb3"];

fn check_source(volume_type: VolumeType, device: &str, fstype: &str) -> Result<(), InfoError> {
    let value = |field, reason| Err(InfoError::Value { field, reason });
    if device.contains('\0') {
        return value("device", "the path has a NUL byte".to_owned());
    }
    match (volume_type, VolumeType::from_fstype(fstype)) {
        (VolumeType::Block, VolumeType::Block) if device.starts_with('/') => Ok(()),
        (VolumeType::Block, VolumeType::Block) => {
            value("device", format!("{device:?} isn't an absolute path"))
        }
        (VolumeType::Network, VolumeType::Network) => share(device).map(drop),
        (VolumeType::Block, VolumeType::Network) => value(
            "fstype",
            format!(
                "{fstype} isn't a file system on a block device; hint: set the volume type to network if it is a share"
            ),
        ),
        (VolumeType::Network, VolumeType::Block) if WITH_CREDENTIALS.contains(&fstype) => value(
            "fstype",
            format!(
                "{fstype} can't be deferred: its credentials would be stored in clear text on the node's disk \
                 (KEP-2857, \"Handling of NodePublish secrets\"); hint: let the CSI driver mount the volume itself"
            ),
        ),
        (VolumeType::Network, VolumeType::Block) => value(
            "fstype",
            format!(
                "{fstype} isn't a network file system that can be mounted; hint: use one of {}",
                FSTYPES.join(", ")
            ),
        ),
    }
}

/// Parses the source of a network volume.
pub(super) fn share(device: &str) -> Result<Share, InfoError> {
    device
        .parse()
        .map_err(|error: ParseShareError| InfoError::Value {
            field: "device",
            reason: error.to_string(),
        })
}

fn required<T>(field: &'static str, value: Option<T>) -> Result<T, InfoError> {
    value.ok_or(InfoError::Missing(field))
}

fn wrong_type(field: &'static str, expected: &'static str, found: &Value) -> InfoError {
    InfoError::Type {
        field,
        expected,
        found: found.to_string(),
    }
}

fn string<'a>(field: &'static str, value: Option<&'a Value>) -> Result<Option<&'a str>, InfoError> {
    match value {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(other) => Err(wrong_type(field, "a string", other)),
    }
}

struct Fields<'a>(&'a Map<String, Value>);

impl<'a> Fields<'a> {
    /// Returns the value of a field with two spellings. Fails if both are present and differ.
    fn either_spelling(
        &self,
        field: &'static str,
        other: &'static str,
    ) -> Result<Option<&'a Value>, InfoError> {
        match (self.0.get(field), self.0.get(other)) {
            (Some(one), Some(two)) if one != two => Err(InfoError::Differ(field, other)),
            (one, two) => Ok(one.or(two)),
        }
    }

    /// Returns a field of the metadata by its path in the document.
    fn metadata(&self, field: &'static str) -> Option<&'a Value> {
        self.0.get(field.trim_start_matches("metadata."))
    }

    fn parsed<T: std::str::FromStr<Err: std::fmt::Display>>(
        &self,
        field: &'static str,
    ) -> Result<Option<T>, InfoError> {
        let Some(text) = string(field, self.metadata(field))? else {
            return Ok(None);
        };
        let parsed = text.parse().map_err(|error: T::Err| error.to_string());
        parsed
            .map(Some)
            .map_err(|reason| InfoError::Value { field, reason })
    }

    fn gid(&self, field: &'static str) -> Result<Option<u32>, InfoError> {
        let Some(text) = string(field, self.metadata(field))? else {
            return Ok(None);
        };
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        match text.parse::<u32>() {
            // chown(2) takes (gid_t)-1 as "don't change the group", so it can't be an fsGroup.
            Ok(gid) if digits && gid != u32::MAX => Ok(Some(gid)),
            _ => {
                let reason = format!("{text:?} isn't a gid (a decimal number below {})", u32::MAX);
                Err(InfoError::Value { field, reason })
            }
        }
    }

    /// Returns a boolean of the metadata; false if it is missing. It may be a string, because Kata's metadata is a map
    /// of strings.
    fn flag(&self, field: &'static str) -> Result<bool, InfoError> {
        match self.metadata(field) {
            None => Ok(false),
            Some(Value::Bool(value)) => Ok(*value),
            Some(Value::String(text)) if text == "true" => Ok(true),
            Some(Value::String(text)) if text == "false" => Ok(false),
            Some(other) => Err(wrong_type(field, "true or false", other)),
        }
    }

    fn options(&self) -> Result<Vec<String>, InfoError> {
        let expected = "a list of strings";
        match self.0.get("options") {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(Value::Array(options)) => options
                .iter()
                .map(|option| match option {
                    Value::String(text) => Ok(text.clone()),
                    other => Err(wrong_type("options", expected, other)),
                })
                .collect(),
            Some(other) => Err(wrong_type("options", expected, other)),
        }
    }
}

impl MountInfo {
    /// Parses the file of a volume that a driver staged for Kata.
    ///
    /// Reads only the keys of the metadata that Kata defines. The other keys are attributes of the volume that the
    /// driver passed on. They come from the author of the volume or, for an inline volume, from the author of the pod.
    /// So `deviceNode`, which gives containers the block device, can't be requested there.
    pub fn parse_kata(bytes: &[u8]) -> Result<Self, InfoError> {
        let mut document: Value = serde_json::from_slice(bytes)?;
        if let Some(Value::Object(metadata)) = document.get_mut("metadata") {
            refuse_unsupported(metadata)?;
            metadata.retain(|key, _| matches!(&**key, "fsGroup" | "fsGroupChangePolicy"));
        }
        decode(document)
    }

    /// Returns whether the file of the other layout describes the same volume, as far as Kata's format can express
    /// that.
    #[must_use]
    pub fn agrees_with(&self, other: &Self) -> bool {
        self.as_kata_info() == other.as_kata_info()
    }

    fn as_kata_info(&self) -> Self {
        let policy = self.fs_group.map(|_| self.fs_group_change_policy);
        Self {
            fs_group_change_policy: policy.unwrap_or(FsGroupChangePolicy::Always),
            target_path: None,
            read_only: false,
            access_mode: None,
            device_node: false,
            disk_seq: None,
            ..self.clone()
        }
    }
}

/// Refuses requests for operations of Kata's guest: to encrypt the volume, or to create a file system on it. If they
/// were ignored, unencrypted data would be written to the device, or old data would be visible on a volume that has to
/// be empty.
fn refuse_unsupported(metadata: &Map<String, Value>) -> Result<(), InfoError> {
    let refused = |field, what: &str| {
        let reason = format!("{what} isn't supported");
        Err(InfoError::Value { field, reason })
    };
    if metadata.contains_key("encryptionKey") {
        return refused("metadata.encryptionKey", "an encrypted volume");
    }
    match metadata.get("createFilesystem") {
        Some(value) if value != "false" => {
            refused("metadata.createFilesystem", "making a file system")
        }
        _ => Ok(()),
    }
}
