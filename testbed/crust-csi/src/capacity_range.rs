//! The limits of a volume's size in a request (`capacity_range`).

use crust_proto::csi::v1::CapacityRange;

use crate::refusal::Refusal;

/// The limits of a volume's size in bytes. 0 means no limit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SizeRange {
    pub(crate) min: u64,
    pub(crate) max: u64,
}

impl SizeRange {
    /// Reads the limits from a request.
    pub(crate) fn from_request(range: Option<&CapacityRange>) -> Result<Self, Refusal> {
        let range = range.copied().unwrap_or_default();
        let bytes = |name, value: i64| {
            u64::try_from(value).map_err(|_| {
                Refusal::field("capacity_range", format!("{name}: {value} is negative"))
            })
        };
        let min = bytes("required_bytes", range.required_bytes)?;
        let max = bytes("limit_bytes", range.limit_bytes)?;
        if max != 0 && max < min {
            let reason = format!("limit_bytes {max} is less than required_bytes {min}");
            return Err(Refusal::field("capacity_range", reason));
        }
        Ok(Self { min, max })
    }

    /// Returns whether a size is within the limits.
    pub(crate) fn contains(self, size: u64) -> bool {
        size >= self.min && (self.max == 0 || size <= self.max)
    }
}
