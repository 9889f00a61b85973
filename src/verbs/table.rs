//! Rows of cells for people: each column as wide as it has to be, no colours.

use std::fmt::{self, Display};

use crust_state::printable::{Columns, printable};

/// Blanks between two columns.
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
