//! The sizes that a growth may end with.

use serde::{Deserialize, Serialize};

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
}
