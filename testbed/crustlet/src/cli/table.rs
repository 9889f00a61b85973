//! Tables in kubectl's layout.

use crust_state::printable::{Columns, printable};

/// The number of spaces between two columns.
const COLUMN_GAP: usize = 3;

/// The least width of a column, with its gap.
const MIN_COLUMN_WIDTH: usize = 6;

/// A table whose rows are printed one after another. Columns never get narrower.
#[derive(Debug)]
pub(super) struct Table(Columns);

impl Default for Table {
    fn default() -> Self {
        Self(Columns::new(COLUMN_GAP, MIN_COLUMN_WIDTH))
    }
}

impl Table {
    /// Formats rows as lines.
    pub(super) fn lines(&mut self, rows: &[Vec<String>]) -> String {
        let rows: Vec<Vec<String>> = rows
            .iter()
            .map(|row| row.iter().map(|cell| escape(cell)).collect())
            .collect();
        self.0.lines(&rows)
    }
}

/// Returns the first line of a cell. Control characters are shown as kubectl shows them. Format characters, which
/// kubectl prints unchanged, are escaped.
fn escape(cell: &str) -> String {
    let end = cell.find(['\n', '\r', '\x0c']);
    let (line, ellipsis) = end.map_or((cell, ""), |end| (&cell[..end], "..."));
    let mut escaped = String::with_capacity(cell.len());
    for letter in line.chars() {
        match letter {
            '\x1b' => escaped.push_str("^["),
            letter if letter.is_control() => escaped.push(' '),
            letter => escaped.push(letter),
        }
    }
    printable(&escaped).into_owned() + ellipsis
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cells: &[&str]) -> Vec<String> {
        cells.iter().map(|&cell| cell.to_owned()).collect()
    }

    #[test]
    fn columns_have_a_gap_and_a_minimum_width() {
        let rows = [
            row(&["NAME", "N", "AGE"]),
            row(&["a-long-name", "1", "5s"]),
            row(&["ü", "", ""]),
        ];
        assert_eq!(
            Table::default().lines(&rows),
            "NAME          N     AGE\n\
             a-long-name   1     5s\n\
             ü                   \n"
        );
    }

    #[test]
    fn later_rows_keep_the_widths_of_earlier_ones() {
        let mut table = Table::default();
        assert_eq!(table.lines(&[row(&["long-name", "x"])]), "long-name   x\n");
        assert_eq!(table.lines(&[row(&["a", "x"])]), "a           x\n");
        assert_eq!(
            table.lines(&[row(&["a-longer-name", "x"])]),
            "a-longer-name   x\n"
        );
    }

    #[test]
    fn a_cell_is_one_line_without_escape_sequences() {
        let rows = [row(&["one\ntwo", "\x1b[31mred\tand\u{202e}"])];
        let expected = "one...   ^[[31mred and\\u{202e}\n";
        assert_eq!(Table::default().lines(&rows), expected);
    }
}
