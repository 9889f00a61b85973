//! JSON values and their positions in a text, for edits that keep all other bytes.
//!
//! The whole text is checked once. After that, values are found by their brackets and quotes, without allocations and
//! without recursion. The time is proportional to the length of the text, and doesn't depend on its depth.

use std::ops::Range;

use serde::Deserialize;
use serde_json::value::RawValue;

/// White space as RFC 8259 defines it. `char::is_whitespace` accepts more characters.
pub const WHITE_SPACE: [char; 4] = [' ', '\t', '\n', '\r'];

/// The text of a JSON value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Json<'a>(&'a str);

impl<'a> Json<'a> {
    /// Parses the first value of `text`, and returns its text. The rest of `text` isn't read.
    pub fn parse_first(text: &'a str) -> Result<Self, serde_json::Error> {
        let mut deserializer = serde_json::Deserializer::from_str(text);
        let value = <&RawValue>::deserialize(&mut deserializer)?;
        Ok(Self(value.get()))
    }

    /// Wraps the text of a value. It has to be valid JSON, without white space around it.
    #[must_use]
    pub const fn from_checked(text: &'a str) -> Self {
        Self(text)
    }

    #[must_use]
    pub const fn text(self) -> &'a str {
        self.0
    }

    /// Returns whether both are the same value at the same position of the same text. Equal values at different
    /// positions aren't.
    #[must_use]
    pub fn is_same(self, other: Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }

    #[must_use]
    pub fn is_null(self) -> bool {
        self.0 == "null"
    }

    #[must_use]
    pub fn is_array(self) -> bool {
        self.0.starts_with('[')
    }

    #[must_use]
    pub fn is_object(self) -> bool {
        self.0.starts_with('{')
    }

    /// Returns whether the value is neither an array nor an object.
    #[must_use]
    pub fn is_scalar(self) -> bool {
        !self.is_array() && !self.is_object()
    }

    /// Returns the text between the quotes of a string, with its escapes; `None` if the value isn't a string.
    #[must_use]
    pub fn quoted(self) -> Option<&'a str> {
        self.0.strip_prefix('"')?.strip_suffix('"')
    }

    /// Returns the elements of an array. Other values have none.
    #[must_use]
    pub fn elements(self) -> Elements<'a> {
        Elements(self.0.strip_prefix('[').unwrap_or_default())
    }

    /// Returns the members of an object in their order. Those with equal keys are all returned. Other values have none.
    #[must_use]
    pub fn members(self) -> Members<'a> {
        Members(self.0.strip_prefix('{').unwrap_or_default())
    }

    /// Returns the range of bytes of the value in `text`. The value has to be a part of `text`.
    #[must_use]
    pub fn span(self, text: &str) -> Range<usize> {
        // Only the addresses are used. Nothing is read through them.
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
    /// The key, which is a string, and the value.
    type Item = (Json<'a>, Json<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let key = next_value(&mut self.0)?;
        Some((key, next_value(&mut self.0)?))
    }
}

/// Returns the next value after white space, commas and colons; `None` at the closing bracket.
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
        let array = Json::parse_first(text).unwrap();
        array.elements().map(Json::text).collect()
    }

    #[test]
    fn nested_brackets_and_quotes_do_not_end_an_element() {
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
        let object = Json::parse_first(r#"{"a" : [1,{"b":2}],"":"", "a":null }"#).unwrap();
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
        assert_eq!(Json::parse_first("[1]").unwrap().members().next(), None);
    }

    #[test]
    fn the_end_of_a_string_is_found_at_each_offset() {
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
    fn a_deeply_nested_array_is_skipped_without_recursion() {
        let deep = "[".repeat(100_000) + &"]".repeat(100_000);
        let text = format!("[{deep},1]");
        assert_eq!(elements(&text), [&deep, "1"]);
    }
}
