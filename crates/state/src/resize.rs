//! `resize.json`: growth that was asked for before the volume is mounted.

use std::path::{Path, PathBuf};

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

/// CSI's `CapacityRange`: a least and a largest size in bytes, each of which may be unset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Bytes", try_from = "Bytes")]
pub struct Limits {
    min: u64,
    max: Option<u64>,
}

/// Limits that no size meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("at least {min} and at most {max} bytes: no size is both; hint: 0 is no limit")]
pub struct NoSuchSize {
    min: u64,
    max: u64,
}

impl Limits {
    /// In bytes; 0 is no limit.
    pub const fn new(min: u64, max: u64) -> Result<Self, NoSuchSize> {
        if max == 0 {
            return Ok(Self { min, max: None });
        }
        if min > max {
            return Err(NoSuchSize { min, max });
        }
        let max = Some(max);
        Ok(Self { min, max })
    }

    /// The least size; 0 is as good as unset.
    #[must_use]
    pub const fn min(self) -> u64 {
        self.min
    }

    /// The largest size.
    #[must_use]
    pub const fn max(self) -> Option<u64> {
        self.max
    }
}

/// Limits as they are written.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Bytes {
    min_bytes: u64,
    max_bytes: u64,
}

impl From<Limits> for Bytes {
    fn from(limits: Limits) -> Self {
        Self {
            min_bytes: limits.min,
            max_bytes: limits.max.unwrap_or(0),
        }
    }
}

impl TryFrom<Bytes> for Limits {
    type Error = NoSuchSize;

    fn try_from(bytes: Bytes) -> Result<Self, NoSuchSize> {
        Self::new(bytes.min_bytes, bytes.max_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_is_no_limit_and_no_size_is_below_the_least_and_above_the_largest() {
        let limits = |min, max| Limits::new(min, max).map(|limits| (limits.min(), limits.max()));
        assert_eq!(limits(0, 0), Ok((0, None)));
        assert_eq!(limits(7, 0), Ok((7, None)));
        assert_eq!(limits(7, 7), Ok((7, Some(7))));
        assert_eq!(limits(8, 7), Err(NoSuchSize { min: 8, max: 7 }));
    }

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
