//! Text for terminals: names that a tenant or a driver chose are shown, never obeyed.
//!
//! A target path may hold any bytes but NUL. Printed raw, an escape sequence moves a terminal's
//! cursor, a line end forges a line of a log, and U+202E reverses the rest of the line, so that a
//! reader takes one volume for another (CVE-2021-42574). Everything that people read goes through
//! this module, and nothing else decides what is escaped.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Returns the text with every character that isn't printable as `\u{202e}` (a line end as `\n`).
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, |letter, out| out.extend(letter.escape_default()))
}

/// Returns a JSON document, on one line, with every character that isn't printable as `\u202e`.
/// It is the same document: outside of strings, JSON has no such characters but line ends.
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

/// Returns the text as one line: white space with line ends or tabs in it becomes one blank, and
/// what else isn't printable is escaped.
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

/// Whether a terminal shows the character, as itself and in its place. Neither controls nor format
/// characters (Unicode's Cc and Cf: bidirectional controls, zero-width ones, tags), other line and
/// paragraph ends, blanks other than U+0020, nor what no character has been assigned to.
fn is_printable(letter: char) -> bool {
    if letter.is_ascii() {
        return matches!(letter, ' '..='~');
    }
    // What `Debug` of a string leaves alone: the standard library keeps the table up to date with
    // Unicode. After another letter, since a combining mark is escaped where it has none to combine with.
    let mut buffer = [b'a'; 5];
    let length = letter.encode_utf8(&mut buffer[1..]).len();
    let text = str::from_utf8(&buffer[..=length]).unwrap_or_default();
    text.escape_debug().nth(1) == Some(letter)
}

/// The columns of a table for people. Each is as wide as it has to be, and never gets narrower, so that rows that come
/// later stand below those that were printed before.
#[derive(Debug, Clone)]
pub struct Columns {
    /// Blanks between two columns.
    gap: usize,
    /// Least width of a column with its gap.
    least: usize,
    widths: Vec<usize>,
}

impl Columns {
    /// Makes columns that are `gap` blanks apart, each at least `least` wide with its gap.
    #[must_use]
    pub const fn new(gap: usize, least: usize) -> Self {
        Self {
            gap,
            least,
            widths: Vec::new(),
        }
    }

    /// Returns the rows as lines. Rows may have more cells than others, and the last cell of a row takes no width.
    pub fn lines(&mut self, rows: &[Vec<String>]) -> String {
        let followed = |row: &'_ Vec<String>| row.len().saturating_sub(1);
        for row in rows {
            let count = followed(row);
            self.widths.resize(self.widths.len().max(count), self.least);
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
    fn what_a_terminal_would_obey_is_escaped() {
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
    fn json_stays_the_same_document() {
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
    fn lines_become_one() {
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
