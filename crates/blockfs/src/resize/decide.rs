//! Decides to which size a file system grows, given its size, the size of its device, and the limits. All functions are
//! pure.

use serde::{Deserialize, Serialize};

use crate::fstypes::FileSystemSize;

/// The minimum and the maximum size that a caller asks for (CSI's `CapacityRange`). Both are in bytes, and each may be
/// unset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "RecordedLimits", try_from = "RecordedLimits")]
pub struct SizeLimits {
    min: u64,
    max: Option<u64>,
}

/// The error for a minimum that is larger than the maximum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the minimum of {min} bytes is larger than the maximum of {max}; hint: correct the limits; 0 means no limit"
)]
pub struct InvalidLimits {
    min: u64,
    max: u64,
}

impl SizeLimits {
    /// Makes limits from a minimum and a maximum in bytes. 0 means no limit. Fails if the minimum is larger than the
    /// maximum.
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

    /// Returns the minimum in bytes; 0 if it is unset.
    #[must_use]
    pub const fn min(self) -> u64 {
        self.min
    }

    /// Returns the maximum in bytes; `None` if it is unset.
    #[must_use]
    pub const fn max(self) -> Option<u64> {
        self.max
    }
}

/// The form of limits in records. 0 means no limit.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RecordedLimits {
    min_bytes: u64,
    max_bytes: u64,
}

impl From<SizeLimits> for RecordedLimits {
    fn from(limits: SizeLimits) -> Self {
        Self {
            min_bytes: limits.min,
            max_bytes: limits.max.unwrap_or(0),
        }
    }
}

impl TryFrom<RecordedLimits> for SizeLimits {
    type Error = InvalidLimits;

    fn try_from(limits: RecordedLimits) -> Result<Self, InvalidLimits> {
        Self::new(limits.min_bytes, limits.max_bytes)
    }
}

/// The decision whether a file system grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResizeDecision {
    /// The file system keeps its size.
    Stay,
    /// The file system grows to this size in bytes.
    Grow(u64),
}

/// The reason why the file system can't have any size within the limits. All sizes are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnreachableSize {
    /// The device is smaller than the minimum. The volume hasn't been expanded, or the node doesn't see the new size
    /// yet.
    #[error(
        "it has {device} bytes, fewer than the {min} asked for; hint: expand the volume in the \
         storage system first; if that is done, make the node read the device's size again (rescan the device, \
         or use cryptsetup resize or losetup --set-capacity)"
    )]
    DeviceTooSmall {
        /// Size of the device.
        device: u64,
        /// Minimum that was asked for.
        min: u64,
    },
    /// The file system is larger than the maximum. A mounted file system isn't shrunk.
    #[error(
        "its file system has {present} bytes, more than the limit of {max}, and runcrust doesn't shrink it; \
         hint: use a limit of at least {present}, or none"
    )]
    Shrink {
        /// Size of the file system.
        present: u64,
        /// Maximum that was asked for.
        max: u64,
    },
    /// The device is smaller than its file system.
    #[error(
        "it has {device} bytes, fewer than its file system's {present}; hint: give the device its former \
         size before anything is written to the end of the file system"
    )]
    DeviceShrank {
        /// Size of the device.
        device: u64,
        /// Size of the file system.
        present: u64,
    },
    /// The file system's size is a multiple of its blocks, and no multiple is between the minimum and the maximum.
    #[error(
        "its file system can have {possible} bytes, but no size from {min} to {max}; hint: use \
         a larger limit"
    )]
    NothingBetween {
        /// Largest possible size of the file system below the maximum.
        possible: u64,
        /// Minimum that was asked for.
        min: u64,
        /// Maximum that was asked for.
        max: u64,
    },
    /// The minimum is larger than the file system's format allows.
    #[error(
        "its file system can have {format_max} bytes at most, fewer than the {min} asked for{hint}"
    )]
    AboveFormatMax {
        /// Maximum size of a file system with this format.
        format_max: u64,
        /// Minimum that was asked for.
        min: u64,
        /// Hint that depends on the file system's type. It starts with `; hint: `, or is empty.
        hint: &'static str,
    },
    /// The file system can't be resized to the device's size, because that is too small for its type.
    #[error(
        "its file system has {present} bytes and can't be resized to less than {format_min}; hint: expand \
         the volume to at least {format_min} bytes"
    )]
    BelowFormatMin {
        /// Size of the file system.
        present: u64,
        /// Minimum size in a resize of this type.
        format_min: u64,
    },
}

/// Decides on the largest size that the device, the file system and the limits allow.
///
/// If the growth is limited by the device, the device's size is compared with the minimum. The file system may be a
/// little smaller, because it can't use the end of the device; expanding the volume doesn't change that.
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
    if size.max_bytes < min {
        return Err(UnreachableSize::AboveFormatMax {
            format_max: size.max_bytes,
            min,
            hint: size.max_bytes_hint,
        });
    }
    let ceiling = limits.max().map_or(device, |max| max.min(device));
    let ceiling = ceiling.min(size.max_bytes);
    let target = ceiling - ceiling % size.block_size;
    let target = target.max(present);
    check_limits(device, target, limits)?;
    if target == present {
        return Ok(ResizeDecision::Stay);
    }
    if target >= size.min_bytes {
        return Ok(ResizeDecision::Grow(target));
    }
    if min > present {
        let format_min = size.min_bytes;
        return Err(UnreachableSize::BelowFormatMin {
            present,
            format_min,
        });
    }
    Ok(ResizeDecision::Stay)
}

/// Fails if `possible`, the largest size that the file system can have, isn't within the limits.
pub(super) fn check_limits(
    device: u64,
    possible: u64,
    limits: SizeLimits,
) -> Result<(), UnreachableSize> {
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

    /// The size of an ext4 or xfs.
    const SIZE: FileSystemSize = FileSystemSize {
        bytes: 100 * MIB,
        block_size: NonZeroU64::new(4096).unwrap(),
        min_bytes: 0,
        max_bytes: u64::MAX,
        max_bytes_hint: "; hint",
    };

    fn decide_with(device: u64, min: u64, max: u64) -> Result<ResizeDecision, UnreachableSize> {
        decide(device, SIZE, SizeLimits::new(min, max).unwrap())
    }

    #[test]
    fn without_limits_a_file_system_fills_the_whole_blocks() {
        assert_eq!(decide_with(100 * MIB, 0, 0), Ok(ResizeDecision::Stay));
        assert_eq!(
            decide_with(200 * MIB, 0, 0),
            Ok(ResizeDecision::Grow(200 * MIB))
        );
        assert_eq!(
            decide_with(200 * MIB + 4095, 0, 0),
            Ok(ResizeDecision::Grow(200 * MIB))
        );
        assert_eq!(
            decide_with(100 * MIB + 4095, 0, 0),
            Ok(ResizeDecision::Stay)
        );
    }

    #[test]
    fn a_device_of_exactly_the_minimum_is_large_enough() {
        assert_eq!(
            decide_with(200 * MIB, 200 * MIB, 0),
            Ok(ResizeDecision::Grow(200 * MIB))
        );
        assert_eq!(
            decide_with(200 * MIB, 200 * MIB, 200 * MIB),
            Ok(ResizeDecision::Grow(200 * MIB))
        );
        // The file system can't use the end of the device.
        let odd = 200 * MIB + 512;
        for max in [0, odd, odd + 1] {
            assert_eq!(
                decide_with(odd, odd, max),
                Ok(ResizeDecision::Grow(200 * MIB)),
                "{max}"
            );
        }
        let (device, min) = (200 * MIB, 200 * MIB + 1);
        let error = UnreachableSize::DeviceTooSmall { device, min };
        assert_eq!(decide_with(device, min, 0), Err(error));
    }

    #[test]
    fn a_maximum_below_the_device_size_limits_the_growth() {
        assert_eq!(
            decide_with(200 * MIB, 0, 150 * MIB + 5),
            Ok(ResizeDecision::Grow(150 * MIB))
        );
        let exact = decide_with(200 * MIB, 150 * MIB, 150 * MIB);
        assert_eq!(exact, Ok(ResizeDecision::Grow(150 * MIB)));
        assert_eq!(
            decide_with(200 * MIB, 0, 100 * MIB),
            Ok(ResizeDecision::Stay)
        );
        let (min, max) = (150 * MIB + 1, 150 * MIB + 2);
        let error = UnreachableSize::NothingBetween {
            possible: 150 * MIB,
            min,
            max,
        };
        assert_eq!(decide_with(200 * MIB, min, max), Err(error));
    }

    #[test]
    fn a_file_system_is_never_shrunk() {
        let (present, max) = (100 * MIB, 100 * MIB - 1);
        assert_eq!(
            decide_with(200 * MIB, 0, max),
            Err(UnreachableSize::Shrink { present, max })
        );
        let device = 100 * MIB - 4096;
        let error = UnreachableSize::DeviceShrank { device, present };
        assert_eq!(decide_with(device, 0, 0), Err(error));
    }

    #[test]
    fn a_file_system_that_is_large_enough_keeps_its_size() {
        assert_eq!(
            decide_with(100 * MIB, 50 * MIB, 0),
            Ok(ResizeDecision::Stay)
        );
        assert_eq!(
            decide_with(100 * MIB, 50 * MIB, 100 * MIB),
            Ok(ResizeDecision::Stay)
        );
    }

    #[test]
    fn only_growth_beyond_the_maximum_of_the_format_is_refused() {
        let size = FileSystemSize {
            max_bytes: 150 * MIB,
            ..SIZE
        };
        let decide_with = |min| decide(200 * MIB, size, SizeLimits::new(min, 0).unwrap());
        assert_eq!(decide_with(0), Ok(ResizeDecision::Grow(150 * MIB)));
        assert_eq!(decide_with(150 * MIB), Ok(ResizeDecision::Grow(150 * MIB)));
        let (format_max, min, hint) = (150 * MIB, 150 * MIB + 1, SIZE.max_bytes_hint);
        assert_eq!(
            decide_with(min),
            Err(UnreachableSize::AboveFormatMax {
                format_max,
                min,
                hint,
            })
        );
    }

    #[test]
    fn a_btrfs_keeps_its_size_below_the_minimum_for_a_resize() {
        let size = FileSystemSize {
            min_bytes: 256 * MIB,
            ..SIZE
        };
        let decide_with = |device, min| decide(device, size, SizeLimits::new(min, 0).unwrap());
        assert_eq!(decide_with(200 * MIB, 0), Ok(ResizeDecision::Stay));
        assert_eq!(decide_with(200 * MIB, 100 * MIB), Ok(ResizeDecision::Stay));
        assert_eq!(
            decide_with(256 * MIB, 200 * MIB),
            Ok(ResizeDecision::Grow(256 * MIB))
        );
        let error = UnreachableSize::BelowFormatMin {
            present: 100 * MIB,
            format_min: 256 * MIB,
        };
        assert_eq!(decide_with(200 * MIB, 150 * MIB), Err(error));
    }

    #[test]
    fn the_minimum_is_checked_only_below_the_maximum() {
        let check = |possible, min, max| {
            check_limits(200 * MIB, possible, SizeLimits::new(min, max).unwrap())
        };
        assert_eq!(check(150 * MIB, 150 * MIB, 160 * MIB), Ok(()));
        assert_eq!(check(199 * MIB, 200 * MIB, 0), Ok(()));
        assert_eq!(check(199 * MIB, 200 * MIB, 200 * MIB), Ok(()));
        assert!(check(149 * MIB, 150 * MIB, 160 * MIB).is_err());
    }

    #[test]
    fn zero_means_no_limit_and_the_limits_are_ordered() {
        let limits =
            |min, max| SizeLimits::new(min, max).map(|limits| (limits.min(), limits.max()));
        assert_eq!(limits(0, 0), Ok((0, None)));
        assert_eq!(limits(7, 0), Ok((7, None)));
        assert_eq!(limits(7, 7), Ok((7, Some(7))));
        assert_eq!(limits(8, 7), Err(InvalidLimits { min: 8, max: 7 }));
    }
}
