//! Kubernetes quantities: `10Gi`, `1.5G`, `1e9`.

use std::fmt;

/// A text that is no amount of bytes.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is no amount of bytes, as 10Gi or 1500M is")]
pub(crate) struct NotAQuantity(String);

/// The suffixes of one base, each of which is the base times the one before.
struct Suffixes {
    base: i64,
    names: [&'static str; 7],
}

const DECIMAL: Suffixes = Suffixes {
    base: 1000,
    names: ["", "k", "M", "G", "T", "P", "E"],
};

const BINARY: Suffixes = Suffixes {
    base: 1024,
    names: ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"],
};

impl Suffixes {
    /// Returns what a suffix multiplies by.
    fn multiplier(&self, suffix: &str) -> Option<u128> {
        let power = self.names.iter().position(|name| *name == suffix)?;
        let base = u128::try_from(self.base).ok()?;
        base.checked_pow(u32::try_from(power).ok()?)
    }

    /// Returns a number with the largest suffix that leaves no remainder.
    fn write(&self, mut number: i64) -> String {
        let mut names = self.names.iter().peekable();
        let mut name = names.next().copied().unwrap_or_default();
        while number != 0
            && number % self.base == 0
            && let Some(larger) = names.next()
        {
            number /= self.base;
            name = larger;
        }
        format!("{number}{name}")
    }
}

/// Parses an amount of bytes, and rounds it up as Kubernetes does: `1500m` is 2.
pub(crate) fn bytes(text: &str) -> Result<i64, NotAQuantity> {
    read(text, 1).ok_or_else(|| NotAQuantity(text.to_owned()))
}

/// Parses an amount in thousandths, as processors are counted, and rounds it up: `1500m` and `1.5` are 1500.
pub(crate) fn thousandths(text: &str) -> Option<i64> {
    read(text, 1000)
}

fn read(text: &str, scale: u128) -> Option<i64> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let end = text.find(|it: char| !(it.is_ascii_digit() || it == '.'));
    let (number, suffix) = text.split_at(end.unwrap_or(text.len()));
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    // What no amount in use has would overflow below.
    if whole.len() + fraction.len() > 19 || (whole.is_empty() && fraction.is_empty()) {
        return None;
    }
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    let (times, mut below) = match suffix {
        "m" => (1, 1000),
        _ => (multiplier(suffix)?, 1),
    };
    below *= 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let scaled = digits.checked_mul(times)?.checked_mul(scale)?;
    i64::try_from(scaled.div_ceil(below)).ok()
}

fn multiplier(suffix: &str) -> Option<u128> {
    let named = DECIMAL.multiplier(suffix);
    if let Some(times) = named.or_else(|| BINARY.multiplier(suffix)) {
        return Some(times);
    }
    let exponent = suffix.strip_prefix(['e', 'E'])?;
    let exponent: u32 = exponent.parse().ok()?;
    10_u128.checked_pow(exponent).filter(|_| exponent <= 18)
}

/// An amount of bytes as Kubernetes writes it, with the largest binary suffix that leaves no remainder.
pub(crate) struct Bytes(pub(crate) i64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&BINARY.write(self.0))
    }
}

/// Returns an amount of bytes as an API server writes it: with the largest suffix of its own base that leaves no
/// remainder. Decimal texts with an exponent or a fraction, and those that are no amounts, stay as they are.
pub(crate) fn canonical(text: &str) -> String {
    let Ok(bytes) = bytes(text) else {
        return text.to_owned();
    };
    if text.ends_with('i') {
        return BINARY.write(bytes);
    }
    let is_decimal = text.ends_with(|last: char| last.is_ascii_digit() || "kMGTPE".contains(last));
    if !is_decimal || text.contains(['e', '.']) {
        return text.to_owned();
    }
    DECIMAL.write(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_what_kubernetes_says_they_are() {
        let cases = [
            ("0", 0),
            ("5", 5),
            ("1k", 1000),
            ("1Ki", 1024),
            ("10Gi", 10 << 30),
            ("1.5Gi", 3 << 29),
            ("1.5", 2),
            ("1500m", 2),
            ("1e3", 1000),
            ("2E2", 200),
            ("1E", 1_000_000_000_000_000_000),
            ("+7M", 7_000_000),
            ("7Ei", 7 << 60),
        ];
        for (text, expected) in cases {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
        for text in [
            "",
            "Gi",
            "1 Gi",
            "-1",
            "1gi",
            "1e99",
            "9Ei",
            "1.2.3",
            "0x10",
            "99999999999999999999",
        ] {
            assert_eq!(bytes(text), Err(NotAQuantity(text.to_owned())), "{text}");
        }
    }

    #[test]
    fn processors_are_counted_in_thousandths() {
        let cases = [
            ("2", Some(2000)),
            ("1.5", Some(1500)),
            ("250m", Some(250)),
            ("0.0001", Some(1)),
            ("x", None),
        ];
        for (text, expected) in cases {
            assert_eq!(thousandths(text), expected, "{text}");
        }
    }

    #[test]
    fn bytes_are_written_short_and_read_back() {
        for (number, text) in [
            (0, "0"),
            (1, "1"),
            (1 << 30, "1Gi"),
            (3 << 29, "1536Mi"),
            (1_000_000, "1000000"),
        ] {
            assert_eq!(Bytes(number).to_string(), text);
            assert_eq!(bytes(text), Ok(number));
        }
    }

    #[test]
    fn amounts_are_as_an_api_server_writes_them() {
        for (written, told) in [
            ("1Gi", "1Gi"),
            ("1024Mi", "1Gi"),
            ("1.5Gi", "1536Mi"),
            ("1000M", "1G"),
            ("5000000000", "5G"),
            ("1234567", "1234567"),
            ("1e9", "1e9"),
            ("0", "0"),
            ("much", "much"),
        ] {
            assert_eq!(canonical(written), told, "{written}");
        }
    }
}
