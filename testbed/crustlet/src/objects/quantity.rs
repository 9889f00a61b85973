//! Kubernetes' amounts: `10Gi`, `1.5G`, `1e9`.

use std::fmt;

/// A text that is no amount of bytes.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is no amount of bytes, as 10Gi or 1500M is")]
pub(crate) struct NotAQuantity(String);

/// By what a suffix multiplies.
const SUFFIXES: [(&str, u128); 13] = [
    ("", 1),
    ("k", 1000),
    ("M", 1000_u128.pow(2)),
    ("G", 1000_u128.pow(3)),
    ("T", 1000_u128.pow(4)),
    ("P", 1000_u128.pow(5)),
    ("E", 1000_u128.pow(6)),
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("Pi", 1 << 50),
    ("Ei", 1 << 60),
];

/// So many bytes, rounded up as Kubernetes does; `1500m` are two.
pub(crate) fn bytes(text: &str) -> Result<i64, NotAQuantity> {
    read(text, 1).ok_or_else(|| NotAQuantity(text.to_owned()))
}

/// So many thousandths, rounded up: `1500m` and `1.5` are 1500. Processors are counted so.
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
    if let Some((_, times)) = SUFFIXES.iter().find(|(it, _)| *it == suffix) {
        return Some(*times);
    }
    let exponent = suffix.strip_prefix(['e', 'E'])?;
    let exponent: u32 = exponent.parse().ok()?;
    10_u128.checked_pow(exponent).filter(|_| exponent <= 18)
}

/// Bytes as Kubernetes writes them: by the largest binary suffix that leaves none over.
pub(crate) struct Bytes(pub(crate) i64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let binary = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
        let mut number = self.0;
        let mut suffix = 0;
        while number != 0 && number % 1024 == 0 && suffix + 1 < binary.len() {
            number /= 1024;
            suffix += 1;
        }
        write!(f, "{number}{}", binary[suffix])
    }
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
}
