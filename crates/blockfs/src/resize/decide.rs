//! Decides the size that a file system grows to, by its own size, the device's and the limits. Pure.

use serde::{Deserialize, Serialize};

use crate::fstypes::FileSystemSize;

/// CSI's `CapacityRange`: a least and a largest size in bytes, each of which may be unset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Bytes", try_from = "Bytes")]
pub struct SizeLimits {
    min: u64,
    max: Option<u64>,
}

/// The error for limits that no size meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("at least {min} and at most {max} bytes: no size is both; hint: 0 is no limit")]
pub struct InvalidLimits {
    min: u64,
    max: u64,
}

impl SizeLimits {
    /// Makes limits of a least and a largest size in bytes; 0 is no limit.
    pub const fn new(min: u64, max: u64) -> Result<Self, InvalidLimits> {
        if max == 0 {
            return Ok(Self { min, max: None });
        }
        if min > max {
            return Err(InvalidLimits { min, max });
        }
        let max = Some(max);
        Ok(Self { min, max })
    }

    /// Returns the least size in bytes; 0 is as good as unset.
    #[must_use]
    pub const fn min(self) -> u64 {
        self.min
    }

    /// Returns the largest size in bytes; `None` if it is unset.
    #[must_use]
    pub const fn max(self) -> Option<u64> {
        self.max
    }
}

/// SizeLimits in the form of records.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Bytes {
    min_bytes: u64,
    max_bytes: u64,
}

impl From<SizeLimits> for Bytes {
    fn from(limits: SizeLimits) -> Self {
        Self {
            min_bytes: limits.min,
            max_bytes: limits.max.unwrap_or(0),
        }
    }
}

impl TryFrom<Bytes> for SizeLimits {
    type Error = InvalidLimits;

    fn try_from(bytes: Bytes) -> Result<Self, InvalidLimits> {
        Self::new(bytes.min_bytes, bytes.max_bytes)
    }
}

/// The decision about a file system's size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResizeDecision {
    /// It is as large as it can be.
    Stay,
    /// Grow to so many bytes.
    Grow(u64),
}

/// The reason why no size is possible. All sizes are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnreachableSize {
    /// The volume hasn't been expanded, or the node doesn't know of it yet.
    #[error(
        "it has {device} bytes, fewer than the {min} asked for; hint: expand the volume on the \
         storage side first; if that is done, have the node look at the device again (rescan it, \
         or cryptsetup resize, losetup --set-capacity)"
    )]
    DeviceTooSmall {
        /// The device has.
        device: u64,
        /// Were asked for.
        min: u64,
    },
    /// A mounted file system doesn't shrink.
    #[error(
        "its file system has {present} bytes, more than the limit of {max}, and isn't shrunk; \
         hint: ask with a limit of at least {present}, or none"
    )]
    Shrink {
        /// The file system has.
        present: u64,
        /// Was the limit.
        max: u64,
    },
    /// The device shrank below its file system.
    #[error(
        "it has {device} bytes, fewer than its file system's {present}; hint: give the device its \
         size back before anything is written to its end"
    )]
    DeviceShrank {
        /// The device has.
        device: u64,
        /// The file system has.
        present: u64,
    },
    /// The file system doesn't come in every size.
    #[error(
        "its file system can have {possible} bytes, but no size from {min} to {max}; hint: ask \
         with a larger limit"
    )]
    NothingBetween {
        /// The largest possible size within the limit.
        possible: u64,
        /// Were asked for.
        min: u64,
        /// Was the limit.
        max: u64,
    },
    /// The file system's own format ends below it.
    #[error("its file system can have {most} bytes at most, fewer than the {min} asked for{hint}")]
    AboveMost {
        /// Maximum size of the file system.
        most: u64,
        /// Minimum size asked for.
        min: u64,
        /// What to do, by the file system's type.
        hint: &'static str,
    },
    /// The file system is below the size from which it can grow.
    #[error(
        "its file system has {present} bytes and isn't resized to less than {least}; hint: expand \
         the volume to that at least"
    )]
    BelowLeast {
        /// The file system has.
        present: u64,
        /// What resizes to at least.
        least: u64,
    },
}

/// The largest size that device, file system and limits allow.
///
/// Where it is the device that ends the growth, `min` is met by the device: what the file system
/// can't use of its end is nothing that a caller could expand.
pub(super) fn decide(
    device: u64,
    size: FileSystemSize,
    limits: SizeLimits,
) -> Result<ResizeDecision, UnreachableSize> {
    let (present, min) = (size.bytes, limits.min());
    if device < min {
        return Err(UnreachableSize::DeviceTooSmall { device, min });
    }
    if let Some(max) = limits.max().filter(|max| *max < present) {
        return Err(UnreachableSize::Shrink { present, max });
    }
    if device < present {
        return Err(UnreachableSize::DeviceShrank { device, present });
    }
    if size.most < min {
        return Err(UnreachableSize::AboveMost {
            most: size.most,
            min,
            hint: size.hint_above,
        });
    }
    let ceiling = limits.max().map_or(device, |max| max.min(device));
    let ceiling = ceiling.min(size.most);
    let target = ceiling - ceiling % size.block;
    let target = target.max(present);
    check(device, target, limits)?;
    if target == present {
        return Ok(ResizeDecision::Stay);
    }
    if target >= size.least {
        return Ok(ResizeDecision::Grow(target));
    }
    if min > present {
        let least = size.least;
        return Err(UnreachableSize::BelowLeast { present, least });
    }
    Ok(ResizeDecision::Stay)
}

/// Whether a size is one that was asked for, when it was the largest to be had.
pub(super) fn check(device: u64, possible: u64, limits: SizeLimits) -> Result<(), UnreachableSize> {
    let min = limits.min();
    match limits.max() {
        Some(max) if max < device && possible < min => {
            Err(UnreachableSize::NothingBetween { possible, min, max })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// An ext4 or xfs.
    const SIZE: FileSystemSize = FileSystemSize {
        bytes: 100 * MIB,
        block: NonZeroU64::new(4096).unwrap(),
        least: 0,
        most: u64::MAX,
        hint_above: "; hint",
    };

    fn of(device: u64, min: u64, max: u64) -> Result<ResizeDecision, UnreachableSize> {
        decide(device, SIZE, SizeLimits::new(min, max).unwrap())
    }

    #[test]
    fn without_limits_it_grows_to_the_whole_blocks_of_its_device() {
        assert_eq!(of(100 * MIB, 0, 0), Ok(ResizeDecision::Stay));
        assert_eq!(of(200 * MIB, 0, 0), Ok(ResizeDecision::Grow(200 * MIB)));
        assert_eq!(
            of(200 * MIB + 4095, 0, 0),
            Ok(ResizeDecision::Grow(200 * MIB))
        );
        assert_eq!(of(100 * MIB + 4095, 0, 0), Ok(ResizeDecision::Stay));
    }

    #[test]
    fn a_device_that_is_just_large_enough_is_large_enough() {
        assert_eq!(
            of(200 * MIB, 200 * MIB, 0),
            Ok(ResizeDecision::Grow(200 * MIB))
        );
        assert_eq!(
            of(200 * MIB, 200 * MIB, 200 * MIB),
            Ok(ResizeDecision::Grow(200 * MIB))
        );
        // Not all of it can be used, by nobody's fault.
        let odd = 200 * MIB + 512;
        for max in [0, odd, odd + 1] {
            assert_eq!(
                of(odd, odd, max),
                Ok(ResizeDecision::Grow(200 * MIB)),
                "{max}"
            );
        }
        let (device, min) = (200 * MIB, 200 * MIB + 1);
        let error = UnreachableSize::DeviceTooSmall { device, min };
        assert_eq!(of(device, min, 0), Err(error));
    }

    #[test]
    fn a_limit_below_the_device_ends_the_growth() {
        assert_eq!(
            of(200 * MIB, 0, 150 * MIB + 5),
            Ok(ResizeDecision::Grow(150 * MIB))
        );
        let exact = of(200 * MIB, 150 * MIB, 150 * MIB);
        assert_eq!(exact, Ok(ResizeDecision::Grow(150 * MIB)));
        assert_eq!(of(200 * MIB, 0, 100 * MIB), Ok(ResizeDecision::Stay));
        let (min, max) = (150 * MIB + 1, 150 * MIB + 2);
        let error = UnreachableSize::NothingBetween {
            possible: 150 * MIB,
            min,
            max,
        };
        assert_eq!(of(200 * MIB, min, max), Err(error));
    }

    #[test]
    fn nothing_shrinks() {
        let (present, max) = (100 * MIB, 100 * MIB - 1);
        assert_eq!(
            of(200 * MIB, 0, max),
            Err(UnreachableSize::Shrink { present, max })
        );
        let device = 100 * MIB - 4096;
        let error = UnreachableSize::DeviceShrank { device, present };
        assert_eq!(of(device, 0, 0), Err(error));
    }

    #[test]
    fn one_that_is_large_enough_stays_whatever_the_device_has() {
        assert_eq!(of(100 * MIB, 50 * MIB, 0), Ok(ResizeDecision::Stay));
        assert_eq!(of(100 * MIB, 50 * MIB, 100 * MIB), Ok(ResizeDecision::Stay));
    }

    #[test]
    fn only_growth_beyond_the_format_is_refused() {
        let size = FileSystemSize {
            most: 150 * MIB,
            ..SIZE
        };
        let of = |min| decide(200 * MIB, size, SizeLimits::new(min, 0).unwrap());
        assert_eq!(of(0), Ok(ResizeDecision::Grow(150 * MIB)));
        assert_eq!(of(150 * MIB), Ok(ResizeDecision::Grow(150 * MIB)));
        let (most, min, hint) = (150 * MIB, 150 * MIB + 1, SIZE.hint_above);
        assert_eq!(of(min), Err(UnreachableSize::AboveMost { most, min, hint }));
    }

    #[test]
    fn a_small_btrfs_stays_below_the_size_from_which_it_can_grow() {
        let size = FileSystemSize {
            least: 256 * MIB,
            ..SIZE
        };
        let of = |device, min| decide(device, size, SizeLimits::new(min, 0).unwrap());
        assert_eq!(of(200 * MIB, 0), Ok(ResizeDecision::Stay));
        assert_eq!(of(200 * MIB, 100 * MIB), Ok(ResizeDecision::Stay));
        assert_eq!(
            of(256 * MIB, 200 * MIB),
            Ok(ResizeDecision::Grow(256 * MIB))
        );
        let error = UnreachableSize::BelowLeast {
            present: 100 * MIB,
            least: 256 * MIB,
        };
        assert_eq!(of(200 * MIB, 150 * MIB), Err(error));
    }

    #[test]
    fn the_result_is_judged_by_the_limits_not_the_devices_end() {
        let check = |got, min, max| check(200 * MIB, got, SizeLimits::new(min, max).unwrap());
        assert_eq!(check(150 * MIB, 150 * MIB, 160 * MIB), Ok(()));
        assert_eq!(check(199 * MIB, 200 * MIB, 0), Ok(()));
        assert_eq!(check(199 * MIB, 200 * MIB, 200 * MIB), Ok(()));
        assert!(check(149 * MIB, 150 * MIB, 160 * MIB).is_err());
    }

    #[test]
    fn limits_take_zero_as_none_and_must_not_cross() {
        let limits =
            |min, max| SizeLimits::new(min, max).map(|limits| (limits.min(), limits.max()));
        assert_eq!(limits(0, 0), Ok((0, None)));
        assert_eq!(limits(7, 0), Ok((7, None)));
        assert_eq!(limits(7, 7), Ok((7, Some(7))));
        assert_eq!(limits(8, 7), Err(InvalidLimits { min: 8, max: 7 }));
    }
}
