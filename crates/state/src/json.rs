//! Values in a JSON text, and where they are in it, for edits that keep every other byte.
//!
//! The text is checked once, as a whole. After that a value is found by its brackets and quotes. Nothing is allocated,
//! and nothing recurses: the time is proportional to the length of the text, however deep it goes.

use std::ops::Range;

use serde::Deserialize;
use serde_json::value::RawValue;

/// White space as RFC 8259 defines it. `char::is_whitespace` accepts more.
pub const WHITE_SPACE: [char; 4] = [' ', '\t', '\n', '\r'];

/// A value as it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Json<'a>(&'a str);

impl<'a> Json<'a> {
    /// Returns the first value of `text`, once that is checked. What comes after it is not read.
    pub fn first_of(text: &'a str) -> Result<Self, serde_json::Error> {
        let mut deserializer = serde_json::Deserializer::from_str(text);
        let value = <&RawValue>::deserialize(&mut deserializer)?;
        Ok(Self(value.get()))
    }

    /// Wraps the text of one value that has been checked.
    #[must_use]
    pub const fn of(text: &'a str) -> Self {
        Self(text)
    }

    /// Returns the text of the value.
    #[must_use]
    pub const fn text(self) -> &'a str {
        self.0
    }

    /// Returns whether the two are one value at one place of one text, and not only equal.
    #[must_use]
    pub fn is(self, other: Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }

    /// Returns whether it is `null`.
    #[must_use]
    pub fn is_null(self) -> bool {
        self.0 == "null"
    }

    /// Returns whether it is an array.
    #[must_use]
    pub fn is_array(self) -> bool {
        self.0.starts_with('[')
    }

    /// Returns whether it is an object.
    #[must_use]
    pub fn is_object(self) -> bool {
        self.0.starts_with('{')
    }

    /// Returns whether it is neither an array nor an object.
    #[must_use]
    pub fn is_scalar(self) -> bool {
        !self.is_array() && !self.is_object()
    }

    /// Returns what is between the quotes of a string, still escaped. `None` is another value.
    #[must_use]
    pub fn quoted(self) -> Option<&'a str> {
        self.0.strip_prefix('"')?.strip_suffix('"')
    }

    /// Returns the elements of an array. Another value has none.
    #[must_use]
    pub fn elements(self) -> Elements<'a> {
        Elements(self.0.strip_prefix('[').unwrap_or_default())
    }

    /// Returns the members of an object in their order, also those with equal keys. Another value has none.
    #[must_use]
    pub fn members(self) -> Members<'a> {
        Members(self.0.strip_prefix('{').unwrap_or_default())
    }

    /// Returns the range of the value in `text`, which it borrows from.
    #[must_use]
    pub fn span(self, text: &str) -> Range<usize> {
        // Addresses only, nothing is read through them.
        let start = self.0.as_ptr().addr().wrapping_sub(text.as_ptr().addr());
        start..start.wrapping_add(self.0.len())
    }
}

/// The elements of an array.
#[derive(Debug, Clone)]
pub struct Elements<'a>(&'a str);

impl<'a> Iterator for Elements<'a> {
    type Item = Json<'a>;

    fn next(&mut self) -> Option<Json<'a>> {
        next_value(&mut self.0)
    }
}

/// The members of an object.
#[derive(Debug, Clone)]
pub struct Members<'a>(&'a str);

impl<'a> Iterator for Members<'a> {
    /// The key, a string, and the value.
    type Item = (Json<'a>, Json<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let key = next_value(&mut self.0)?;
        Some((key, next_value(&mut self.0)?))
    }
}

/// Returns the next value after white space, commas and colons. `None` is the bracket that closes the list.
fn next_value<'a>(rest: &mut &'a str) -> Option<Json<'a>> {
    let text = rest.trim_start_matches([' ', '\t', '\n', '\r', ',', ':']);
    let (value, behind) = text.split_at_checked(end_of_value(text.as_bytes()))?;
    *rest = behind;
    (!value.is_empty()).then_some(Json(value))
}

fn end_of_value(text: &[u8]) -> usize {
    match text.first() {
        Some(b'"') => end_of_string(text, 0),
        Some(b'{' | b'[') => end_of_list(text),
        _ => {
            let ends = |byte: &u8| b" \t\n\r,:]}".contains(byte);
            text.iter().position(ends).unwrap_or(text.len())
        }
    }
}

fn end_of_list(text: &[u8]) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while let Some(byte) = text.get(at) {
        match byte {
            b'"' => {
                at = end_of_string(text, at);
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth -= 1,
            _ => {}
        }
        at += 1;
        if depth == 0 {
            break;
        }
    }
    at
}

/// Returns the position after the quote that ends the string which begins at `start`.
fn end_of_string(text: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(rest) = text.get(at..) {
        let Some(next) = quote_or_escape(rest) else {
            break;
        };
        at += next;
        if text[at] == b'"' {
            return at + 1;
        }
        at += 2;
    }
    text.len()
}

/// Returns the position of the first quote or backslash. Most bytes of a config are in strings, so eight bytes are
/// compared at once. (memchr executes `cpuid` first, which takes longer than this in a virtual machine.)
fn quote_or_escape(text: &[u8]) -> Option<usize> {
    let (words, rest) = text.as_chunks();
    for (index, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let found = zeroes(word ^ repeated(b'"')) | zeroes(word ^ repeated(b'\\'));
        if found != 0 {
            return Some(8 * index + found.trailing_zeros() as usize / 8);
        }
    }
    let found = rest.iter().position(|byte| matches!(byte, b'"' | b'\\'))?;
    Some(text.len() - rest.len() + found)
}

const fn repeated(byte: u8) -> u64 {
    u64::from_le_bytes([byte; 8])
}

/// Returns a word with the highest bit of each byte that is zero in `word`. Only the lowest such bit is exact.
const fn zeroes(word: u64) -> u64 {
    word.wrapping_sub(repeated(1)) & !word & repeated(0x80)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elements(text: &str) -> Vec<&str> {
        let array = Json::first_of(text).unwrap();
        array.elements().map(Json::text).collect()
    }

    #[test]
    fn elements_are_found_whatever_is_in_them() {
        let text =
            " [ 1 ,\"a\\\"],[\\\\\",{\"]\":[ ] , \"b\" : {}},[[],[\"[\"]]\n,null,-0.5e+7 ] ,9";
        let expected = [
            "1",
            r#""a\"],[\\""#,
            r#"{"]":[ ] , "b" : {}}"#,
            r#"[[],["["]]"#,
            "null",
            "-0.5e+7",
        ];
        assert_eq!(elements(text), expected);
        assert_eq!(elements("[ ]"), Vec::<&str>::new());
        assert_eq!(elements("{\"a\":1}"), Vec::<&str>::new());
    }

    #[test]
    fn members_are_found_in_their_order() {
        let object = Json::first_of(r#"{"a" : [1,{"b":2}],"":"", "a":null }"#).unwrap();
        let members = object.members();
        let members: Vec<_> = members
            .map(|(key, value)| (key.text(), value.text()))
            .collect();
        let expected = [
            ("\"a\"", r#"[1,{"b":2}]"#),
            ("\"\"", "\"\""),
            ("\"a\"", "null"),
        ];
        assert_eq!(members, expected);
        assert_eq!(Json::first_of("[1]").unwrap().members().next(), None);
    }

    #[test]
    fn a_string_ends_wherever_its_quote_is() {
        for before in 0..20 {
            for after in 0..20 {
                for end in ["\"", "\\\"x\"", "\\\\\"", "\u{e9}\"", "!#\""] {
                    let string = format!("\"{}{end}", "a".repeat(before));
                    let text = format!("{string}{}", "\"]".repeat(after));
                    assert_eq!(end_of_string(text.as_bytes(), 0), string.len(), "{text}");
                }
            }
        }
        for open in ["\"", "\"abc", "\"\\", "\"abcdefg\\", "\"abcdefgh\\\""] {
            assert_eq!(end_of_string(open.as_bytes(), 0), open.len(), "{open}");
        }
    }

    #[test]
    fn depth_is_no_matter() {
        let deep = "[".repeat(100_000) + &"]".repeat(100_000);
        let text = format!("[{deep},1]");
        assert_eq!(elements(&text), [&deep, "1"]);
    }
}
