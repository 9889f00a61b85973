//! Text that is safe for terminals and logs, even if a tenant or a driver chose parts of it.
//!
//! A target path may contain any byte except NUL. If it were printed raw, an escape sequence would move the cursor of
//! the terminal, a line end would forge a line of a log, and U+202E would reverse the rest of the line, so that a
//! reader takes one volume for another (CVE-2021-42574). All output for people is escaped by this module.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Escapes all characters that aren't printable: U+202E becomes `\u{202e}`, and a line end `\n`.
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, |letter, out| out.extend(letter.escape_default()))
}

/// Escapes all characters of a JSON document that aren't printable: U+202E becomes `\u202e`. The document has to be on
/// one line. The result is the same document, because outside of strings, JSON has no such characters except line ends.
#[must_use]
pub fn printable_json(document: &str) -> Cow<'_, str> {
    escaped(document, |letter, out| {
        let mut units = [0; 2];
        for unit in letter.encode_utf16(&mut units) {
            // Writing to a string can't fail.
            let _ = write!(out, "\\u{unit:04x}");
        }
    })
}

/// Returns the text as one line. White space that contains line ends or tabs becomes one space. Other characters that
/// aren't printable are escaped.
#[must_use]
pub fn one_line(text: &str) -> String {
    let is_break = |letter: char| letter.is_control() && letter.is_whitespace();
    let parts = text.split(is_break);
    let mut line = String::with_capacity(text.len());
    for part in parts.filter(|part| !part.trim().is_empty()) {
        if line.is_empty() {
            line.push_str(part);
        } else {
            line.truncate(line.trim_end().len());
            line.push(' ');
            line.push_str(part.trim_start());
        }
    }
    line.truncate(line.trim_end().len());
    match printable(&line) {
        Cow::Borrowed(_) => line,
        Cow::Owned(escaped) => escaped,
    }
}

fn escaped(text: &str, escape: impl Fn(char, &mut String)) -> Cow<'_, str> {
    let Some(first) = text.find(|letter| !is_printable(letter)) else {
        return Cow::Borrowed(text);
    };
    let mut out = String::with_capacity(text.len() + 16);
    out.push_str(&text[..first]);
    for letter in text[first..].chars() {
        if is_printable(letter) {
            out.push(letter);
        } else {
            escape(letter, &mut out);
        }
    }
    Cow::Owned(out)
}

/// Returns whether a terminal shows the character itself, at its position. These aren't printable: control and format
/// characters (Unicode's Cc and Cf: bidirectional controls, zero-width characters, tags), other line and paragraph
/// ends, spaces other than U+0020, and unassigned code points.
fn is_printable(letter: char) -> bool {
    if letter.is_ascii() {
        return matches!(letter, ' '..='~');
    }
    // A character is printable if `Debug` of a string doesn't escape it: the standard library has a table of the
    // current Unicode version. `letter` is put after an `a`, because a combining mark at the start of a string is
    // escaped.
    let mut buffer = [b'a'; 5];
    let length = letter.encode_utf8(&mut buffer[1..]).len();
    let text = str::from_utf8(&buffer[..=length]).unwrap_or_default();
    text.escape_debug().nth(1) == Some(letter)
}

/// The columns of a table for people. A column is as wide as its widest cell and never gets narrower, so that later
/// rows are aligned with those that were printed before.
#[derive(Debug, Clone)]
pub struct Columns {
    /// The number of spaces between two columns.
    gap: usize,
    /// The smallest width of a column with its gap.
    min_width: usize,
    widths: Vec<usize>,
}

impl Columns {
    /// Returns columns with `gap` spaces between them. Each is at least `min_width` characters wide with its gap.
    #[must_use]
    pub const fn new(gap: usize, min_width: usize) -> Self {
        Self {
            gap,
            min_width,
            widths: Vec::new(),
        }
    }

    /// Formats rows as lines. Rows may have different numbers of cells. The last cell of a row doesn't affect the width
    /// of its column.
    pub fn lines(&mut self, rows: &[Vec<String>]) -> String {
        for row in rows {
            let count = row.len().saturating_sub(1);
            let columns = self.widths.len().max(count);
            self.widths.resize(columns, self.min_width);
            for (width, cell) in self.widths.iter_mut().zip(&row[..count]) {
                *width = (*width).max(cell.chars().count() + self.gap);
            }
        }
        let mut text = String::new();
        for row in rows {
            let Some((last, others)) = row.split_last() else {
                continue;
            };
            for (cell, width) in others.iter().zip(&self.widths) {
                // Writing to a string can't fail.
                let _ = write!(text, "{cell:width$}");
            }
            text += last;
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_control_a_terminal_are_escaped() {
        for (text, expected) in [
            ("pv-1 \\ \"größer\" 卷 ё e\u{301} 🙂", None),
            ("", None),
            ("\u{1b}[2J", Some("\\u{1b}[2J")),
            ("a\r\n\tb", Some("a\\r\\n\\tb")),
            ("\u{7f}\u{85}\u{9b}1m", Some("\\u{7f}\\u{85}\\u{9b}1m")),
            ("a\u{202e}b", Some("a\\u{202e}b")),
            (
                "\u{202a}\u{202b}\u{202c}\u{202d}",
                Some("\\u{202a}\\u{202b}\\u{202c}\\u{202d}"),
            ),
            (
                "\u{2066}\u{2067}\u{2068}\u{2069}",
                Some("\\u{2066}\\u{2067}\\u{2068}\\u{2069}"),
            ),
            (
                "\u{200e}\u{200f}\u{61c}",
                Some("\\u{200e}\\u{200f}\\u{61c}"),
            ),
            (
                "\u{200b}\u{200c}\u{200d}\u{2060}\u{feff}",
                Some("\\u{200b}\\u{200c}\\u{200d}\\u{2060}\\u{feff}"),
            ),
            (
                "\u{ad}\u{180e}\u{fff9}\u{e0041}",
                Some("\\u{ad}\\u{180e}\\u{fff9}\\u{e0041}"),
            ),
            ("\u{2028}\u{2029}\u{a0}", Some("\\u{2028}\\u{2029}\\u{a0}")),
        ] {
            assert_eq!(printable(text), expected.unwrap_or(text), "{text:?}");
            let is_borrowed = matches!(printable(text), Cow::Borrowed(_));
            assert_eq!(is_borrowed, expected.is_none(), "{text:?}");
        }
    }

    #[test]
    fn an_escaped_json_document_has_the_same_value() {
        let texts = [
            "pv-1 größer",
            "a\u{202e}b\u{7f}\u{9b}",
            "\u{e0041}",
            "\n\\\"\u{2028}",
        ];
        for text in texts {
            let document = serde_json::json!({ text: [text] });
            let plain = document.to_string();
            let printed = printable_json(&plain);
            assert!(printed.chars().all(is_printable), "{printed:?}");
            let again: serde_json::Value = serde_json::from_str(&printed).unwrap();
            assert_eq!(again, document);
        }
        assert_eq!(
            printable_json("\"\u{202e}\u{e0041}\""),
            "\"\\u202e\\udb40\\udc41\""
        );
    }

    #[test]
    fn lines_are_joined_with_one_space() {
        for (text, expected) in [
            ("one\n\ttwo \r\n three\n", "one two three"),
            ("\n \n", ""),
            ("two  blanks stay", "two  blanks stay"),
            (" a \u{1b}[1m\u{202e}\nb", " a \\u{1b}[1m\\u{202e} b"),
        ] {
            assert_eq!(one_line(text), expected, "{text:?}");
        }
    }
}
