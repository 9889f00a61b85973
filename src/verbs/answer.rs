//! The answers of verbs. Those that CSI drivers call print one JSON object; those that people call print the same in
//! words and tables, unless they are asked for the object.

use std::fmt::{self, Display};

use crust_state::printable::{Columns, printable, printable_json};
use serde_json::Value;

/// The form of an answer.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(super) struct Form {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A report with a form for people, which is how it is displayed (lines, without the last newline), and one for
/// programs.
pub(super) trait Report: Display {
    /// Returns the form for programs, one object.
    fn json(&self) -> Value;
}

/// The text that a verb prints.
#[derive(Debug)]
pub(super) struct Answer {
    text: String,
    /// Whether the verb is to fail although it has an answer.
    is_of_a_failure: bool,
}

impl Answer {
    /// Returns a report in the form that was asked for.
    pub(super) fn new(report: &impl Report, form: Form) -> Self {
        if form.json {
            return report.json().into();
        }
        Self::saying(report.to_string())
    }

    /// Returns the same answer, with the exit code of a failure.
    pub(super) fn of_a_failure(self) -> Self {
        Self {
            is_of_a_failure: true,
            ..self
        }
    }

    /// Whether the exit code is that of a failure.
    pub(super) const fn is_of_a_failure(&self) -> bool {
        self.is_of_a_failure
    }

    const fn saying(text: String) -> Self {
        Self {
            text,
            is_of_a_failure: false,
        }
    }
}

impl From<Value> for Answer {
    fn from(object: Value) -> Self {
        Self::saying(printable_json(&object.to_string()).into_owned())
    }
}

impl Display for Answer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

/// The number of blanks between two columns.
const GAP: usize = 2;

/// A table; rows may have more cells than others.
#[derive(Debug, Default)]
pub(super) struct Table(Vec<Vec<String>>);

impl Table {
    /// Adds a row. Nothing that a name or a message holds can start a line or tell a terminal
    /// anything.
    pub(super) fn row<T: Display>(&mut self, cells: impl IntoIterator<Item = T>) {
        let cells = cells
            .into_iter()
            .map(|cell| printable(&cell.to_string()).into_owned());
        self.0.push(cells.collect());
    }
}

impl Display for Table {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = Columns::new(GAP, 0).lines(&self.0);
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
    fn columns_are_as_wide_as_their_cells_and_nothing_trails() {
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
    fn a_name_starts_no_line_and_tells_a_terminal_nothing() {
        let mut table = Table::default();
        table.row(["pv\n\u{1b}[2J\u{202e}", "é"]);
        assert_eq!(table.to_string(), "pv\\n\\u{1b}[2J\\u{202e}  é");
    }
}
