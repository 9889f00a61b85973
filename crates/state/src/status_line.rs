//! A line on a terminal that shows what a command is doing.

use std::io::{self, IsTerminal as _, Write};

use rustix::termios::tcgetwinsize;

use crate::printable::printable;

/// The width that is assumed if the terminal doesn't report one, in columns.
const DEFAULT_WIDTH: usize = 80;

/// A line on standard error that is overwritten while a command works. The command removes it before it prints anything
/// else.
///
/// If standard error isn't a terminal, nothing is printed.
#[derive(Debug, Default)]
pub struct StatusLine {
    is_shown: bool,
}

impl StatusLine {
    /// Creates a status line that isn't shown yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { is_shown: false }
    }

    /// Shows `text` in place of what was shown before. The end of a text that is wider than the terminal is left out.
    /// Characters that aren't printable are escaped.
    pub fn show(&mut self, text: &str) {
        let stderr = io::stderr();
        if !stderr.is_terminal() {
            return;
        }
        let width = tcgetwinsize(&stderr).map_or(0, |size| usize::from(size.ws_col));
        // An error is ignored, because it could not be reported.
        let _ = stderr.lock().write_all(line(text, width).as_bytes());
        self.is_shown = true;
    }

    /// Removes the line from the terminal.
    pub fn clear(&mut self) {
        if std::mem::take(&mut self.is_shown) {
            let _ = io::stderr().lock().write_all(CLEAR_LINE.as_bytes());
        }
    }
}

impl Drop for StatusLine {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Moves the cursor to the start of its line and erases the line (`console_codes(4)`).
const CLEAR_LINE: &str = "\r\x1b[K";

/// Returns what replaces the current line of a terminal with `text`. The cursor stays at the end of the text, so that
/// the terminal doesn't wrap the line.
fn line(text: &str, width: usize) -> String {
    let width = if width == 0 { DEFAULT_WIDTH } else { width };
    let text = printable(text);
    let end = text.char_indices().nth(width - 1).map(|(index, _)| index);
    format!("{CLEAR_LINE}{}", &text[..end.unwrap_or(text.len())])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_replaces_the_line_and_is_not_wrapped() {
        for (text, width, expected) in [
            ("fsGroup", 8, "\r\x1b[KfsGroup"),
            ("fsGroups", 8, "\r\x1b[KfsGroup"),
            ("ü\u{202e}\n", 20, "\r\x1b[Kü\\u{202e}\\n"),
            ("é…ü", 3, "\r\x1b[Ké…"),
            ("", 1, "\r\x1b[K"),
            ("a", 1, "\r\x1b[K"),
        ] {
            assert_eq!(line(text, width), expected, "{text:?} {width}");
        }
        let unknown = line(&"x".repeat(100), 0);
        assert_eq!(unknown.len(), CLEAR_LINE.len() + DEFAULT_WIDTH - 1);
    }
}
