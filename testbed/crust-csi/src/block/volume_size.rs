//! The size of a new or expanded volume. It is within the limits of `capacity_range`, and large enough for the volume's
//! file system.

use super::Capability;
use super::images::MEBIBYTE;
use crate::capacity_range::SizeRange;
use crate::refusal::Refusal;

/// The size in bytes of a new volume if the request has no limits.
const DEFAULT: u64 = 1 << 30;

impl SizeRange {
    /// Returns the size of a new volume: the smallest that is possible, or the default if there is no minimum.
    pub(crate) fn new_size(self, usages: &[Capability]) -> Result<u64, Refusal> {
        let min = min_size(usages);
        let requested = if self.min == 0 {
            let usual = if self.max == 0 {
                DEFAULT
            } else {
                DEFAULT.min(self.max)
            };
            usual / MEBIBYTE * MEBIBYTE
        } else {
            Self::round_up(self.min)?
        };
        self.check_within(requested.max(min))
    }

    /// Returns the new size of a volume that has `now` bytes. A volume never shrinks.
    pub(crate) fn expanded_size(self, now: u64) -> Result<u64, Refusal> {
        if self.contains(now) {
            return Ok(now);
        }
        if self.max != 0 && self.max < now {
            return Err(Refusal::Range(format!(
                "limit_bytes {} is less than the volume's size of {now} bytes; hint: raise it, because volumes never shrink",
                self.max
            )));
        }
        self.check_within(Self::round_up(self.min)?)
    }

    fn round_up(size: u64) -> Result<u64, Refusal> {
        let rounded = size.checked_next_multiple_of(MEBIBYTE);
        // off_t is signed.
        let rounded = rounded.filter(|size| i64::try_from(*size).is_ok());
        rounded.ok_or_else(|| {
            Refusal::Range(format!(
                "{size} bytes are more than the maximum size of a file"
            ))
        })
    }

    fn check_within(self, size: u64) -> Result<u64, Refusal> {
        if self.contains(size) {
            return Ok(size);
        }
        Err(Refusal::Range(format!(
            "no size from {} to {} bytes is a whole number of MiB and large enough for the file system; \
             hint: request {size} bytes",
            self.min, self.max
        )))
    }
}

/// Returns the minimum size in bytes of a volume with these capabilities.
pub(crate) fn min_size(usages: &[Capability]) -> u64 {
    let min = |usage: &Capability| {
        usage
            .mount
            .as_ref()
            .map_or(MEBIBYTE, |it| it.fstype.min_device_bytes())
    };
    usages.iter().map(min).max().unwrap_or(MEBIBYTE)
}

#[cfg(test)]
mod tests {
    use crust_proto::csi::v1::CapacityRange;
    use crust_state::info::AccessMode;

    use super::*;

    fn block() -> [Capability; 1] {
        [Capability {
            mode: AccessMode::SingleNodeWriter,
            mount: None,
        }]
    }

    fn range(required_bytes: i64, limit_bytes: i64) -> Result<SizeRange, Refusal> {
        SizeRange::from_request(Some(&CapacityRange {
            required_bytes,
            limit_bytes,
        }))
    }

    fn size(required_bytes: i64, limit_bytes: i64) -> Option<u64> {
        let range = range(required_bytes, limit_bytes).ok()?;
        range.new_size(&block()).ok()
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
    fn invalid_limits_are_an_invalid_argument() {
        for (least, most) in [(-1, 0), (0, -1), (2, 1)] {
            assert!(
                matches!(range(least, most), Err(Refusal::Field(_))),
                "{least} {most}"
            );
        }
    }

    #[test]
    fn a_volume_grows_and_never_shrinks() {
        let grown = |least, most| range(least, most).unwrap().expanded_size(8 << 20).ok();
        assert_eq!(grown(1, 0), Some(8 << 20));
        assert_eq!(grown(8 << 20, 8 << 20), Some(8 << 20));
        assert_eq!(grown((8 << 20) + 1, 0), Some(9 << 20));
        assert_eq!(grown((8 << 20) + 1, (8 << 20) + 2), None);
        assert_eq!(grown(0, 4 << 20), None);
        assert_eq!(grown(1, 4 << 20), None);
    }
}
