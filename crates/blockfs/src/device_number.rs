//! The numbers by which the kernel identifies a block device: its device number, and the sequence number of its disk.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The number of a block device, written `7:3` as text and in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct DeviceNumber {
    major: u32,
    minor: u32,
}

impl DeviceNumber {
    /// Creates a device number from its major and minor number.
    #[must_use]
    pub const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }

    /// Returns the major number, which identifies the driver.
    #[must_use]
    pub const fn major(self) -> u32 {
        self.major
    }

    /// Returns the minor number, which identifies one of the driver's devices.
    #[must_use]
    pub const fn minor(self) -> u32 {
        self.minor
    }
}

/// The error of parsing a text that is not `major:minor`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a device number; expected major:minor, such as 7:3")]
pub struct ParseDeviceNumberError(pub String);

impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

impl FromStr for DeviceNumber {
    type Err = ParseDeviceNumberError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.split_once(':')
            .and_then(|(major, minor)| Some(Self::new(decimal(major)?, decimal(minor)?)))
            .ok_or_else(|| ParseDeviceNumberError(text.to_owned()))
    }
}

impl From<DeviceNumber> for String {
    fn from(number: DeviceNumber) -> Self {
        number.to_string()
    }
}

impl TryFrom<String> for DeviceNumber {
    type Error = ParseDeviceNumberError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

/// The sequence number of a disk (`/sys/block/<disk>/diskseq`, Linux 5.15).
///
/// The kernel reuses a device number once its disk is gone, but doesn't reuse a sequence number before the next boot. A
/// loop device gets a new one each time that a file is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskSeq(u64);

impl DiskSeq {
    pub(crate) const fn new(number: u64) -> Self {
        Self(number)
    }
}

/// The error of parsing a text that is not the sequence number of a disk.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the sequence number of a disk; expected a decimal number of 64 bits")]
pub struct ParseDiskSeqError(String);

impl fmt::Display for DiskSeq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for DiskSeq {
    type Err = ParseDiskSeqError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        decimal(text)
            .map(Self)
            .ok_or_else(|| ParseDiskSeqError(text.to_owned()))
    }
}

/// Parses a number that consists of digits alone. `T`'s own parser also accepts a sign, as in `+7`.
fn decimal<T: FromStr>(text: &str) -> Option<T> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_number_round_trips_through_text() {
        let number = DeviceNumber::new(259, 1_048_575);
        assert_eq!(number.to_string(), "259:1048575");
        assert_eq!("259:1048575".parse(), Ok(number));
    }

    #[test]
    fn any_other_text_is_not_a_device_number() {
        for text in [
            "",
            "7",
            "7:",
            ":3",
            "7:3:1",
            "+7:3",
            "7: 3",
            "a:b",
            "4294967296:0",
        ] {
            assert_eq!(
                text.parse::<DeviceNumber>(),
                Err(ParseDeviceNumberError(text.to_owned()))
            );
        }
    }

    #[test]
    fn a_disk_sequence_number_consists_of_digits() {
        let last = u64::MAX.to_string();
        for text in ["0", "50058", &last] {
            let number: DiskSeq = text.parse().expect(text);
            assert_eq!(number.to_string(), text);
        }
        for text in ["", "+7", "-1", " 7", "7\n", "0x7", "18446744073709551616"] {
            assert_eq!(
                text.parse::<DiskSeq>(),
                Err(ParseDiskSeqError(text.to_owned()))
            );
        }
    }
}
