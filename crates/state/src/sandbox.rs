//! The records of sandboxes, `<state_dir>/sandboxes/<id>.json`: the process and the pod of a sandbox.

use serde::{Deserialize, Serialize};

use crate::process::Process;
use crate::record::Version;
use crate::target::Digest;

/// The record of a pod's sandbox that was created with a `/.crust`. Its hook writes the record. The annotations of a
/// later container only name the sandbox; the pod and the process are taken from this record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxRecord {
    pub version: Version<1>,
    pub id: String,
    pub pod_uid: String,
    /// The first process of the sandbox.
    pub process: Process,
    /// The SELinux label for the files of volumes that are mounted later. `None` if the host doesn't enforce SELinux.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount_label: Option<String>,
    /// The volumes that couldn't be mounted when the sandbox was created. The next create in the pod retries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<MountFailure>,
}

/// A volume that couldn't be mounted into a new sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MountFailure {
    #[serde(with = "crate::record::as_string")]
    pub volume: Digest,
    /// The error with its causes and hints.
    pub message: String,
}

/// The error of an id that can't be the name of a record.
#[derive(Debug, thiserror::Error)]
#[error(
    "{0:?} can't be a container's id: only letters, digits, `_`, `.`, `+` and `-` are allowed, and no leading dot"
)]
pub struct InvalidId(String);

/// Checks that an id is a plain file name, as it may come from an annotation. The allowed characters are runc's.
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
    fn an_id_that_could_be_a_path_is_refused() {
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
