//! `resize.json`: growth that was asked for before the volume is mounted.

use std::path::{Path, PathBuf};

use crust_blockfs::resize::Limits;
use serde::{Deserialize, Serialize};

use crate::record::Version;

/// The file's name in an entry.
pub const RESIZE: &str = "resize.json";

/// What a staged volume has to become before anybody sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ResizeRecord {
    /// 1.
    pub version: Version<1>,
    /// `device` of the `mountInfo.json` that it was asked for: it means nothing to another. Records
    /// that don't name it, as the first ones, are of whichever is staged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<PathBuf>,
    /// Between which sizes.
    pub limits: Limits,
    /// The error of the last mount's attempt, which left the volume with its old size. The next mount,
    /// and each resize that is asked for, try again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

impl ResizeRecord {
    /// Whether it was asked for this device.
    #[must_use]
    pub fn is_for(&self, device: &Path) -> bool {
        self.device.as_deref().is_none_or(|asked| asked == device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_strictly() {
        let text = r#"{"version":1,"device":"/dev/a","limits":{"minBytes":5,"maxBytes":0}}"#;
        let record: ResizeRecord = serde_json::from_str(text).unwrap();
        assert_eq!(record.limits, Limits::new(5, 0).unwrap());
        assert_eq!(serde_json::to_string(&record).unwrap(), text);
        assert!(record.is_for(Path::new("/dev/a")) && !record.is_for(Path::new("/dev/b")));
        let first = r#"{"version":1,"limits":{"minBytes":5,"maxBytes":0}}"#;
        let first: ResizeRecord = serde_json::from_str(first).unwrap();
        assert!(first.is_for(Path::new("/dev/b")));
        let failed = r#"{"version":1,"limits":{"minBytes":5,"maxBytes":0},"failed":"EPERM"}"#;
        let failed: ResizeRecord = serde_json::from_str(failed).unwrap();
        assert_eq!(failed.failed.as_deref(), Some("EPERM"));
        for bad in [
            r#"{"version":2,"device":"/dev/a","limits":{"minBytes":5,"maxBytes":0}}"#,
            r#"{"device":"/dev/a","limits":{"minBytes":5,"maxBytes":0}}"#,
            r#"{"version":1,"device":"/dev/a"}"#,
            r#"{"version":1,"device":"/dev/a","limits":{"minBytes":5}}"#,
            r#"{"version":1,"device":"/dev/a","limits":{"minBytes":-5,"maxBytes":0}}"#,
            r#"{"version":1,"device":"/dev/a","limits":{"minBytes":6,"maxBytes":5}}"#,
            r#"{"version":1,"device":"/dev/a","limits":{"minBytes":5,"maxBytes":0,"unit":"MiB"}}"#,
            r#"{"version":1,"device":"/dev/a","limits":{"minBytes":5,"maxBytes":0},"done":true}"#,
        ] {
            assert!(serde_json::from_str::<ResizeRecord>(bad).is_err(), "{bad}");
        }
    }
}
