//! The name that the kernel knows a block device by.

use std::fmt;
use std::str::FromStr;

/// Major and minor number. Paths of one device are many (`/dev/disk/by-id/…`); this is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceNumber {
    /// The driver's number.
    pub major: u32,
    /// The device's number with its driver.
    pub minor: u32,
}

impl fmt::Display for DeviceNumber {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.major, self.minor)
    }
}

/// A string that isn't `major:minor`.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} isn't a device number (major:minor)")]
pub struct NotADeviceNumber(String);

impl FromStr for DeviceNumber {
    type Err = NotADeviceNumber;

    fn from_str(text: &str) -> Result<Self, NotADeviceNumber> {
        let numbers = text.split_once(':').and_then(|(major, minor)| {
            Some(Self {
                major: major.parse().ok()?,
                minor: minor.parse().ok()?,
            })
        });
        numbers.ok_or_else(|| NotADeviceNumber(text.to_owned()))
    }
}

impl TryFrom<String> for DeviceNumber {
    type Error = NotADeviceNumber;

    fn try_from(text: String) -> Result<Self, NotADeviceNumber> {
        text.parse()
    }
}

impl From<DeviceNumber> for String {
    fn from(number: DeviceNumber) -> Self {
        number.to_string()
    }
}
