//! The name that the kernel knows a block device by.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The number of a block device; `7:3` as text and in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct DeviceNumber {
    major: u32,
    minor: u32,
}

impl DeviceNumber {
    /// From its parts.
    #[must_use]
    pub const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }

    /// Which driver.
    #[must_use]
    pub const fn major(self) -> u32 {
        self.major
    }

    /// Which of its devices.
    #[must_use]
    pub const fn minor(self) -> u32 {
        self.minor
    }
}

/// A text that should have been `major:minor`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a device number; expected major:minor, as 7:3")]
pub struct NotADeviceNumber(pub String);

impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

impl FromStr for DeviceNumber {
    type Err = NotADeviceNumber;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // u32's own parser takes "+7".
        let number = |digits: &str| {
            let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
            digits.parse().ok().filter(|_| plain)
        };
        text.split_once(':')
            .and_then(|(major, minor)| Some(Self::new(number(major)?, number(minor)?)))
            .ok_or_else(|| NotADeviceNumber(text.to_owned()))
    }
}

impl From<DeviceNumber> for String {
    fn from(number: DeviceNumber) -> Self {
        number.to_string()
    }
}

impl TryFrom<String> for DeviceNumber {
    type Error = NotADeviceNumber;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_they_are_written() {
        let number = DeviceNumber::new(259, 1_048_575);
        assert_eq!(number.to_string(), "259:1048575");
        assert_eq!("259:1048575".parse(), Ok(number));
    }

    #[test]
    fn nothing_else_is_a_number() {
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
                Err(NotADeviceNumber(text.to_owned()))
            );
        }
    }
}
