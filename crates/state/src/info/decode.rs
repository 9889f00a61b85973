//! Decodes `mountInfo.json` into [`MountInfo`] field by field, so that an error names the field. Kata's file is read
//! too (its `src/runtime/pkg/direct-volume`, and kata-types' `mount.rs` in Rust), as CSI drivers write it.

use std::path::PathBuf;

use serde_json::{Map, Value};

use super::{InfoError, MountInfo, VERSION, VolumeType};
use crate::target::TargetPath;
use crust_blockfs::fsgroup::FsGroupChangePolicy;

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
    // Kata's and the KEP's spellings.
    let volume_type = fields.spelled("volume-type", "volume_type")?;
    let volume_type = match required("volume-type", string("volume-type", volume_type)?)? {
        // Kata's word for a directly assigned block device.
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
    check_source(volume_type, device)?;
    let fstype = fields.spelled("fstype", "fs_type")?;
    let fstype = required("fstype", string("fstype", fstype)?)?;
    if fstype.is_empty()
        || !fstype
            .bytes()
            .all(|c| c.is_ascii_alphanumeric() || b"._-".contains(&c))
    {
        let reason = format!("{fstype:?} can't be a file system's name");
        return Err(InfoError::Value {
            field: "fstype",
            reason,
        });
    }
    let none = Map::new();
    let metadata = match fields.0.get("metadata") {
        None | Some(Value::Null) => &none,
        Some(Value::Object(metadata)) => metadata,
        Some(other) => return Err(wrong("metadata", "an object", other)),
    };
    let metadata = Fields(metadata);
    let fs_group = metadata.gid("metadata.fsGroup")?;
    let policy: Option<FsGroupChangePolicy> = metadata.parsed("metadata.fsGroupChangePolicy")?;
    let target = string("metadata.targetPath", metadata.0.get("targetPath"))?;
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
        device_node: metadata.flag("metadata.deviceNode")?,
        disk_seq: metadata.parsed("metadata.diskSeq")?,
    })
}

fn check_source(volume_type: VolumeType, device: &str) -> Result<(), InfoError> {
    let reason = if device.contains('\0') {
        "the path has a NUL byte".to_owned()
    } else if volume_type == VolumeType::Block && !device.starts_with('/') {
        format!("{device:?} isn't an absolute path")
    } else if device.is_empty() {
        "it is empty".to_owned()
    } else {
        return Ok(());
    };
    Err(InfoError::Value {
        field: "device",
        reason,
    })
}

fn required<T>(field: &'static str, value: Option<T>) -> Result<T, InfoError> {
    value.ok_or(InfoError::Missing(field))
}

fn wrong(field: &'static str, expected: &'static str, found: &Value) -> InfoError {
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
        Some(other) => Err(wrong(field, "a string", other)),
    }
}

struct Fields<'a>(&'a Map<String, Value>);

impl<'a> Fields<'a> {
    fn spelled(
        &self,
        field: &'static str,
        other: &'static str,
    ) -> Result<Option<&'a Value>, InfoError> {
        match (self.0.get(field), self.0.get(other)) {
            (Some(one), Some(two)) if one != two => Err(InfoError::Differ(field, other)),
            (one, two) => Ok(one.or(two)),
        }
    }

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
            // (gid_t)-1 means "leave it" to chown(2): it would be no fsGroup at all.
            Ok(gid) if digits && gid != u32::MAX => Ok(Some(gid)),
            _ => {
                let reason = format!("{text:?} isn't a gid (a decimal number below {})", u32::MAX);
                Err(InfoError::Value { field, reason })
            }
        }
    }

    /// A boolean, or the same as a string: Kata's metadata is a map of strings.
    fn flag(&self, field: &'static str) -> Result<bool, InfoError> {
        match self.metadata(field) {
            None => Ok(false),
            Some(Value::Bool(value)) => Ok(*value),
            Some(Value::String(text)) if text == "true" => Ok(true),
            Some(Value::String(text)) if text == "false" => Ok(false),
            Some(other) => Err(wrong(field, "true or false", other)),
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
                    other => Err(wrong("options", expected, other)),
                })
                .collect(),
            Some(other) => Err(wrong("options", expected, other)),
        }
    }
}

impl MountInfo {
    /// Parses the file of a volume that a driver staged for Kata.
    ///
    /// Only Kata's own keys of the metadata are read. The others are the volume's attributes, which drivers pass on:
    /// the author of the volume wrote them or, of an inline volume, that of the pod. The raw device (`deviceNode`)
    /// can't be requested there.
    pub fn parse_kata(bytes: &[u8]) -> Result<Self, InfoError> {
        let mut document: Value = serde_json::from_slice(bytes)?;
        if let Some(Value::Object(metadata)) = document.get_mut("metadata") {
            refuse_unsupported(metadata)?;
            metadata.retain(|key, _| matches!(&**key, "fsGroup" | "fsGroupChangePolicy"));
        }
        decode(document)
    }

    /// Whether the file of the other layout describes the same volume, as far as Kata's format can express it.
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

/// Refuses what Kata's guest would do: encrypt the volume, or make a file system on it. Ignoring that would write plain
/// data to the device, or show old data on a volume that was to be empty.
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
