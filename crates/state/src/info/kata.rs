//! Kata's `mountInfo.json` (its `src/runtime/pkg/direct-volume`, and kata-types' `mount.rs` in Rust),
//! as CSI drivers write it.

use serde_json::{Map, Value};

use super::{InfoError, MountInfo, decode};
use crust_blockfs::fsgroup::FsGroupChangePolicy;

impl MountInfo {
    /// Reads what a driver staged for Kata.
    ///
    /// Of the metadata only Kata's own keys are: the others are the volume's attributes, which
    /// drivers pass on, and so the words of whoever wrote the volume or, inline, the pod. The raw
    /// device (`deviceNode`) can't be asked for there.
    pub fn parse_katas(bytes: &[u8]) -> Result<Self, InfoError> {
        let mut document: Value = serde_json::from_slice(bytes)?;
        if let Some(Value::Object(metadata)) = document.get_mut("metadata") {
            refuse_what_is_not_done(metadata)?;
            metadata.retain(|key, _| matches!(&**key, "fsGroup" | "fsGroupChangePolicy"));
        }
        decode::decode(document)
    }

    /// Whether another layout's file says the same, as far as Kata's can say it.
    #[must_use]
    pub fn agrees_with(&self, other: &Self) -> bool {
        self.in_katas_words() == other.in_katas_words()
    }

    fn in_katas_words(&self) -> Self {
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

/// Kata's guest would encrypt the volume, or make a file system on it. Leaving that out would put
/// plain data on the device, or show data that was to be new.
fn refuse_what_is_not_done(metadata: &Map<String, Value>) -> Result<(), InfoError> {
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
