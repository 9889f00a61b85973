//! Sizes in the form of Kubernetes' quantities, such as `64Mi`.

/// The reason why a text isn't a size.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a whole number of bytes with a suffix, such as 64Mi, 2Gi or 500M")]
pub(crate) struct ParseSizeError(String);

/// The suffixes by the power of their base.
const DECIMAL: [&str; 7] = ["", "k", "M", "G", "T", "P", "E"];
const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// Parses a size in bytes: a positive whole number with one of Kubernetes' suffixes, or without. Quantities with a
/// fraction or an exponent are errors.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, ParseSizeError> {
    let invalid = || ParseSizeError(text.to_owned());
    let end = text.find(|letter: char| !letter.is_ascii_digit());
    let (number, suffix) = text.split_at(end.unwrap_or(text.len()));
    let number: u64 = number.parse().map_err(|_| invalid())?;
    let bytes = unit(suffix).and_then(|unit| number.checked_mul(unit));
    bytes.filter(|bytes| *bytes > 0).ok_or_else(invalid)
}

/// Returns the number of bytes that a suffix stands for.
fn unit(suffix: &str) -> Option<u64> {
    let power = |suffixes: &[&str], base: u64| {
        let power = suffixes.iter().position(|it| *it == suffix)?;
        base.checked_pow(u32::try_from(power).ok()?)
    };
    power(&DECIMAL, 1000).or_else(|| power(&BINARY, 1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed_as_in_kubernetes() {
        for (text, expected) in [
            ("1", 1),
            ("1048576", 1 << 20),
            ("5k", 5000),
            ("64Mi", 64 << 20),
            ("500M", 500_000_000),
            ("2Gi", 2 << 30),
            ("15Ei", 15 << 60),
            ("18E", 18_000_000_000_000_000_000),
        ] {
            assert_eq!(parse_bytes(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn other_texts_are_not_sizes() {
        for text in [
            "",
            "0",
            "0Gi",
            "Mi",
            "-1",
            "+1",
            "1.5Gi",
            "1e9",
            "1 Mi",
            " 1",
            "64mi",
            "64MiB",
            "64KI",
            "16Ei",
            "99999999999999999999",
            "٣Mi",
        ] {
            let error = parse_bytes(text).unwrap_err();
            assert_eq!(error, ParseSizeError(text.to_owned()));
        }
    }
}
