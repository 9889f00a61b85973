//! Records under `<state_dir>/sandboxes`: which process and pod a sandbox id stands for.

use serde::{Deserialize, Serialize};

use crate::process::Process;
use crate::record::Version;
use crate::target::Digest;

/// A pod's sandbox that was made with a `/.crust`, as its hook saw it. Annotations of a later
/// container only lead here: what is believed is what stands in this file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxRecord {
    /// 1.
    pub version: Version<1>,
    /// The container's id.
    pub id: String,
    /// The pod that it was made for.
    pub pod_uid: String,
    /// Its first process.
    pub process: Process,
    /// The SELinux label of its volumes' files, on a host that enforces; for volumes that come later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount_label: Option<String>,
    /// Volumes that couldn't be mounted when it was made, and why. The next container's create
    /// tries again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<MountFailure>,
}

/// A volume that couldn't be mounted into a new sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MountFailure {
    /// The volume's digest.
    #[serde(with = "crate::record::as_string")]
    pub volume: Digest,
    /// The sentence that says why.
    pub message: String,
}

/// An id that can't name a record.
#[derive(Debug, thiserror::Error)]
#[error(
    "{0:?} can't be a container's id: letters, digits, `_`, `.`, `+` and `-` only, not first a dot"
)]
pub struct InvalidId(String);

/// Checks that an id, which may come from an annotation, is one plain file name.
/// The letters are those that runc allows.
pub fn check_id(id: &str) -> Result<(), InvalidId> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.+-".contains(&byte);
    if id.is_empty() || id.len() > 240 || id.starts_with('.') || !id.bytes().all(allowed) {
        return Err(InvalidId(id.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_from_an_annotation_is_never_a_path() {
        for good in ["a", "b6f3c0ffee", "my_pod-1.2+x"] {
            check_id(good).unwrap();
        }
        for bad in [
            "",
            ".",
            "..",
            ".x",
            "a/b",
            "../x",
            "a\0",
            "a b",
            &"a".repeat(241),
        ] {
            assert!(check_id(bad).is_err(), "{bad}");
        }
    }
}
