//! The message of an error, as users read it.

use std::error::Error;

use crate::printable::one_line;

/// The largest length in bytes of the causes in a message. They may contain paths or annotations of any length.
const MAX_CAUSES: usize = 8 * 1024;

/// Returns the message of an error with all its causes: `what: why: why; hint: next step`, on one line.
///
/// A cause is left out if the text before it ends with the same words. The hints of all causes come last, because
/// callers search the message for the cause. The middle of causes longer than 8 KiB is left out.
#[must_use]
pub fn error_message(error: &(dyn Error + 'static)) -> String {
    const HINT: &str = "hint: ";
    let (mut causes, mut hints) = (String::new(), String::new());
    let mut next = Some(error);
    while let Some(cause) = next {
        next = cause.source();
        let text = one_line(&cause.to_string());
        let (what, hint) = match text.find(HINT) {
            Some(at) => (&text[..at], &text[at + HINT.len()..]),
            None => (text.as_str(), ""),
        };
        let what = what.trim_end_matches([' ', ';', ',', '.', ':']);
        if !what.is_empty() && !causes.ends_with(what) {
            join(&mut causes, ": ", what);
        }
        if !hint.is_empty() && !hints.contains(hint) {
            join(&mut hints, "; ", hint);
        }
    }
    let causes = without_the_middle(causes);
    match hints.as_str() {
        "" => causes,
        // A question mark ends the sentence already.
        hints if causes.ends_with('?') => format!("{causes} {HINT}{hints}"),
        hints => format!("{causes}; {HINT}{hints}"),
    }
}

fn join(text: &mut String, separator: &str, more: &str) {
    if !text.is_empty() {
        text.push_str(separator);
    }
    text.push_str(more);
}

/// Removes the middle of a long text. Its start names the volume, and its end has the reason.
fn without_the_middle(text: String) -> String {
    if text.len() <= MAX_CAUSES {
        return text;
    }
    let (half, length) = (MAX_CAUSES / 2, text.len());
    let is_boundary = |at: &usize| text.is_char_boundary(*at);
    let start = (0..=half).rfind(is_boundary).unwrap_or_default();
    let end = (length - half..length).find(is_boundary).unwrap_or(length);
    format!("{}…{}", &text[..start], &text[end..])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An error with an optional cause.
    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Link {
        text: &'static str,
        #[source]
        cause: Option<Box<Link>>,
    }

    fn message(chain: &[&'static str]) -> String {
        let innermost_first = chain.iter().rev();
        let error = innermost_first
            .fold(None, |cause, text| Some(Box::new(Link { text, cause })))
            .unwrap();
        error_message(error.as_ref())
    }

    #[test]
    fn causes_come_first_and_hints_last() {
        for (chain, expected) in [
            (&["alone"][..], "alone"),
            (
                &["volume v", "open(\"/x\"); hint: is it there?", "ENOENT"],
                "volume v: open(\"/x\"): ENOENT; hint: is it there?",
            ),
            (&["above", "what: cause", "cause"], "above: what: cause"),
            (&["a. hint: a2", "b\nhint: b2"], "a: b; hint: a2; b2"),
            (&["a; hint: same", "b; hint: same"], "a: b; hint: same"),
            (&["one\n\ttwo \r\n three\n"], "one two three"),
            (&["two  blanks stay"], "two  blanks stay"),
            (&["pv\u{202e}1: \u{1b}[2J"], "pv\\u{202e}1: \\u{1b}[2J"),
        ] {
            assert_eq!(message(chain), expected);
        }
    }

    #[test]
    fn the_middle_of_long_causes_is_left_out() {
        let long: &'static str = "ü".repeat(1 << 20).leak();
        let text = message(&["volume v", long, "ENAMETOOLONG; hint: a shorter one"]);
        assert!(text.starts_with("volume v: ü"), "{text}");
        assert!(text.contains("ü…ü"), "{text}");
        assert!(
            text.ends_with("ü: ENAMETOOLONG; hint: a shorter one"),
            "{text}"
        );
        assert!(text.len() < MAX_CAUSES + 100, "{}", text.len());
        let longest = &long[..MAX_CAUSES];
        assert_eq!(message(&[longest]), longest);
    }
}
