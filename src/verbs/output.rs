//! Output of the subcommands. Those that CSI drivers call print one JSON object. Those for operators print text and
//! tables, or with `--json` one JSON object.

use std::fmt::{self, Display};

use crust_state::printable::{Columns, printable, printable_json};
use serde_json::Value;

#[derive(Debug, Clone, Copy, clap::Args)]
pub(super) struct OutputFormat {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A value that is printed as text or as JSON. `Display` writes the text without its last newline.
pub(super) trait Printable: Display {
    /// Returns the value as one JSON object.
    fn json(&self) -> Value;
}

#[derive(Debug)]
pub(super) struct CommandOutput {
    text: String,
    is_failure: bool,
}

impl CommandOutput {
    /// Formats a value as text or as JSON.
    pub(super) fn new(value: &impl Printable, format: OutputFormat) -> Self {
        if format.json {
            return value.json().into();
        }
        Self::from_text(value.to_string())
    }

    /// Sets the exit code to failure. The output is still printed.
    pub(super) fn with_failure(self) -> Self {
        Self {
            is_failure: true,
            ..self
        }
    }

    /// Returns whether the exit code reports a failure.
    pub(super) const fn is_failure(&self) -> bool {
        self.is_failure
    }

    const fn from_text(text: String) -> Self {
        Self {
            text,
            is_failure: false,
        }
    }
}

impl From<Value> for CommandOutput {
    fn from(object: Value) -> Self {
        Self::from_text(printable_json(&object.to_string()).into_owned())
    }
}

impl Display for CommandOutput {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

/// The number of spaces between two columns.
const COLUMN_GAP: usize = 2;

/// A table. Its rows may differ in the number of cells.
#[derive(Debug, Default)]
pub(super) struct Table(Vec<Vec<String>>);

impl Table {
    /// Adds a row. Control characters in the cells are escaped, so that a name or a message can neither start a new
    /// line nor control the terminal.
    pub(super) fn row<T: Display>(&mut self, cells: impl IntoIterator<Item = T>) {
        let cells = cells
            .into_iter()
            .map(|cell| printable(&cell.to_string()).into_owned());
        self.0.push(cells.collect());
    }
}

impl Display for Table {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = Columns::new(COLUMN_GAP, 0).lines(&self.0);
        for (index, line) in text.lines().enumerate() {
            let end = if index == 0 { "" } else { "\n" };
            write!(formatter, "{end}{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_fit_their_cells_and_lines_have_no_trailing_spaces() {
        let mut table = Table::default();
        table.row(["VOLUME", "STATE", "WHY"]);
        table.row(["pv-1", "in use", ""]);
        table.row(["größer", "staged", "long words that nothing follows"]);
        table.row(["a note that takes the whole line"]);
        let expected = "VOLUME  STATE   WHY\n\
                        pv-1    in use\n\
                        größer  staged  long words that nothing follows\n\
                        a note that takes the whole line";
        assert_eq!(table.to_string(), expected);
        assert_eq!(Table::default().to_string(), "");
    }

    #[test]
    fn control_characters_are_escaped() {
        let mut table = Table::default();
        table.row(["pv\n\u{1b}[2J\u{202e}", "é"]);
        assert_eq!(table.to_string(), "pv\\n\\u{1b}[2J\\u{202e}  é");
    }
}
