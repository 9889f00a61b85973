//! Kubernetes' quantities, such as `10Gi`, `1.5G` and `1e9`.

use std::fmt;

/// The error of a text that is not a quantity of bytes.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not a valid quantity of bytes, such as 10Gi or 1500M")]
pub(crate) struct QuantityError(String);

/// The suffixes of a base, in the order of the base's ascending powers.
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
    fn multiplier(&self, suffix: &str) -> Option<u128> {
        let power = self.names.iter().position(|name| *name == suffix)?;
        let base = u128::try_from(self.base).ok()?;
        base.checked_pow(u32::try_from(power).ok()?)
    }

    /// Formats a number with the largest suffix that leaves no remainder.
    fn format(&self, mut number: i64) -> String {
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

/// Parses an amount of bytes. It is rounded up, as in Kubernetes: `1500m` is 2.
pub(crate) fn bytes(text: &str) -> Result<i64, QuantityError> {
    parse(text, 1).ok_or_else(|| QuantityError(text.to_owned()))
}

/// Parses a quantity in thousandths, as CPUs are counted. It is rounded up: `1500m` and `1.5` are 1500.
pub(crate) fn milli_value(text: &str) -> Option<i64> {
    parse(text, 1000)
}

fn parse(text: &str, scale: u128) -> Option<i64> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let end = text.find(|letter: char| !(letter.is_ascii_digit() || letter == '.'));
    let (number, suffix) = text.split_at(end.unwrap_or(text.len()));
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    // More digits would overflow below, and no real amount has more than 19.
    if whole.len() + fraction.len() > 19 || (whole.is_empty() && fraction.is_empty()) {
        return None;
    }
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    let (multiplier, mut divisor) = match suffix {
        "m" => (1, 1000),
        _ => (multiplier(suffix)?, 1),
    };
    divisor *= 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let scaled = digits.checked_mul(multiplier)?.checked_mul(scale)?;
    i64::try_from(scaled.div_ceil(divisor)).ok()
}

fn multiplier(suffix: &str) -> Option<u128> {
    let multiplier = DECIMAL.multiplier(suffix);
    if let Some(multiplier) = multiplier.or_else(|| BINARY.multiplier(suffix)) {
        return Some(multiplier);
    }
    let exponent = suffix.strip_prefix(['e', 'E'])?;
    let exponent: u32 = exponent.parse().ok()?;
    10_u128.checked_pow(exponent).filter(|_| exponent <= 18)
}

/// An amount of bytes. It is formatted as in Kubernetes, with the largest binary suffix that leaves no remainder.
pub(crate) struct Bytes(pub(crate) i64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&BINARY.format(self.0))
    }
}

/// Formats an amount of bytes as an API server does, with the largest suffix of its base that leaves no remainder.
/// Decimal quantities with an exponent or a fraction are returned unchanged, and so are invalid ones.
pub(crate) fn canonical(text: &str) -> String {
    let Ok(bytes) = bytes(text) else {
        return text.to_owned();
    };
    if text.ends_with('i') {
        return BINARY.format(bytes);
    }
    let is_decimal = text.ends_with(|last: char| last.is_ascii_digit() || "kMGTPE".contains(last));
    if !is_decimal || text.contains(['e', '.']) {
        return text.to_owned();
    }
    DECIMAL.format(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_parsed_as_in_kubernetes() {
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
            assert_eq!(bytes(text), Err(QuantityError(text.to_owned())), "{text}");
        }
    }

    #[test]
    fn cpus_are_counted_in_thousandths() {
        let cases = [
            ("2", Some(2000)),
            ("1.5", Some(1500)),
            ("250m", Some(250)),
            ("0.0001", Some(1)),
            ("x", None),
        ];
        for (text, expected) in cases {
            assert_eq!(milli_value(text), expected, "{text}");
        }
    }

    #[test]
    fn bytes_are_formatted_with_a_suffix() {
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
    fn canonical_amounts_are_those_of_an_api_server() {
        for (text, expected) in [
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
            assert_eq!(canonical(text), expected, "{text}");
        }
    }
}
