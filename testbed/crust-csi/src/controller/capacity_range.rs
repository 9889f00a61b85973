//! The size of a new or grown volume: the limits of `capacity_range`, and what its file system needs.

use crust_proto::csi::v1::CapacityRange;

use crate::capability::Capability;
use crate::images::MEBIBYTE;
use crate::refusal::Refusal;

/// The size of a volume without limits, in bytes.
const DEFAULT: u64 = 1 << 30;

/// The limits of a size in bytes. 0 means no limit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Range {
    least: u64,
    most: u64,
}

impl Range {
    /// Reads the limits of a request.
    pub(super) fn of(range: Option<&CapacityRange>) -> Result<Self, Refusal> {
        let range = range.copied().unwrap_or_default();
        let bytes = |name, value: i64| {
            u64::try_from(value).map_err(|_| {
                Refusal::field("capacity_range", format!("{name}: {value} is negative"))
            })
        };
        let least = bytes("required_bytes", range.required_bytes)?;
        let most = bytes("limit_bytes", range.limit_bytes)?;
        if most != 0 && most < least {
            let reason = format!("limit_bytes {most} is less than required_bytes {least}");
            return Err(Refusal::field("capacity_range", reason));
        }
        Ok(Self { least, most })
    }

    /// Whether a size is within.
    pub(super) fn holds(self, size: u64) -> bool {
        size >= self.least && (self.most == 0 || size <= self.most)
    }

    /// A new volume's size: no larger than it has to be, or a usual one.
    pub(super) fn size(self, usages: &[Capability]) -> Result<u64, Refusal> {
        let floor = least(usages);
        let wanted = if self.least == 0 {
            let usual = if self.most == 0 {
                DEFAULT
            } else {
                DEFAULT.min(self.most)
            };
            usual / MEBIBYTE * MEBIBYTE
        } else {
            Self::rounded(self.least)?
        };
        self.within(wanted.max(floor))
    }

    /// The size of a volume that is so large by now: shrinking is never one.
    pub(super) fn grown(self, now: u64) -> Result<u64, Refusal> {
        if self.holds(now) {
            return Ok(now);
        }
        if self.most != 0 && self.most < now {
            return Err(Refusal::Range(format!(
                "limit_bytes {} is less than the {now} that the volume has, and none shrinks",
                self.most
            )));
        }
        self.within(Self::rounded(self.least)?)
    }

    fn rounded(size: u64) -> Result<u64, Refusal> {
        let rounded = size.checked_next_multiple_of(MEBIBYTE);
        // Sizes of files are signed.
        let rounded = rounded.filter(|size| i64::try_from(*size).is_ok());
        rounded.ok_or_else(|| Refusal::Range(format!("{size} bytes are more than a file can have")))
    }

    fn within(self, size: u64) -> Result<u64, Refusal> {
        if self.holds(size) {
            return Ok(size);
        }
        Err(Refusal::Range(format!(
            "no whole number of MiB, and enough for the file system, is between {} and {} bytes; the next is {size}",
            self.least, self.most
        )))
    }
}

/// Returns the least size in bytes of a volume that is used so.
pub(super) fn least(usages: &[Capability]) -> u64 {
    let of_one = |usage: &Capability| {
        usage
            .mount
            .as_ref()
            .map_or(MEBIBYTE, |it| it.fstype.least())
    };
    usages.iter().map(of_one).max().unwrap_or(MEBIBYTE)
}

#[cfg(test)]
mod tests {
    use crust_state::info::AccessMode;

    use super::*;

    fn block() -> [Capability; 1] {
        [Capability {
            mode: AccessMode::SingleNodeWriter,
            mount: None,
        }]
    }

    fn range(required_bytes: i64, limit_bytes: i64) -> Result<Range, Refusal> {
        Range::of(Some(&CapacityRange {
            required_bytes,
            limit_bytes,
        }))
    }

    fn size(least: i64, most: i64) -> Option<u64> {
        range(least, most).ok()?.size(&block()).ok()
    }

    #[test]
    fn a_size_is_a_whole_number_of_mebibytes_within_the_limits() {
        assert_eq!(size(0, 0), Some(DEFAULT));
        assert_eq!(size(1, 0), Some(MEBIBYTE));
        assert_eq!(size(1, 1), None);
        assert_eq!(size(3 << 20, 3 << 20), Some(3 << 20));
        assert_eq!(size((3 << 20) + 1, 4 << 20), Some(4 << 20));
        assert_eq!(size((3 << 20) + 1, (4 << 20) - 1), None);
        assert_eq!(size(0, 5 << 20), Some(5 << 20));
        assert_eq!(size(0, (5 << 20) + 7), Some(5 << 20));
        assert_eq!(size(0, 7), None);
        assert_eq!(size(i64::MAX, 0), None);
    }

    #[test]
    fn limits_that_make_no_sense_are_the_callers_mistake() {
        for (least, most) in [(-1, 0), (0, -1), (2, 1)] {
            assert!(
                matches!(range(least, most), Err(Refusal::Field(_))),
                "{least} {most}"
            );
        }
    }

    #[test]
    fn a_volume_grows_and_never_shrinks() {
        let grown = |least, most| range(least, most).unwrap().grown(8 << 20).ok();
        assert_eq!(grown(1, 0), Some(8 << 20));
        assert_eq!(grown(8 << 20, 8 << 20), Some(8 << 20));
        assert_eq!(grown((8 << 20) + 1, 0), Some(9 << 20));
        assert_eq!(grown((8 << 20) + 1, (8 << 20) + 2), None);
        assert_eq!(grown(0, 4 << 20), None);
        assert_eq!(grown(1, 4 << 20), None);
    }
}
