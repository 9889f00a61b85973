//! Tables, laid out as kubectl lays them out.

use crust_state::printable::{Columns, printable};

/// Blanks between two columns.
const GAP: usize = 3;

/// Least width of a column with its gap.
const LEAST: usize = 6;

/// A table that rows come to one after the other.
#[derive(Debug)]
pub(super) struct Table(Columns);

impl Default for Table {
    fn default() -> Self {
        Self(Columns::new(GAP, LEAST))
    }
}

impl Table {
    /// Returns the rows as lines.
    pub(super) fn lines(&mut self, rows: &[Vec<String>]) -> String {
        let rows: Vec<Vec<String>> = rows
            .iter()
            .map(|row| row.iter().map(|cell| plain(cell)).collect())
            .collect();
        self.0.lines(&rows)
    }
}

/// Returns the first line of a text, with controls as kubectl prints them and format characters,
/// which it prints raw, escaped.
fn plain(cell: &str) -> String {
    let end = cell.find(['\n', '\r', '\x0c']);
    let (line, more) = end.map_or((cell, ""), |end| (&cell[..end], "..."));
    let mut plain = String::with_capacity(cell.len());
    for letter in line.chars() {
        match letter {
            '\x1b' => plain.push_str("^["),
            letter if letter.is_control() => plain.push(' '),
            letter => plain.push(letter),
        }
    }
    printable(&plain).into_owned() + more
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cells: &[&str]) -> Vec<String> {
        cells.iter().map(|&it| it.to_owned()).collect()
    }

    #[test]
    fn columns_are_three_blanks_apart_and_six_wide_at_least() {
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
    fn what_comes_later_is_below_what_was_wider() {
        let mut table = Table::default();
        assert_eq!(table.lines(&[row(&["long-name", "x"])]), "long-name   x\n");
        assert_eq!(table.lines(&[row(&["a", "x"])]), "a           x\n");
        assert_eq!(
            table.lines(&[row(&["a-longer-name", "x"])]),
            "a-longer-name   x\n"
        );
    }

    #[test]
    fn a_cell_is_one_line_and_no_escape() {
        let rows = [row(&["one\ntwo", "\x1b[31mred\tand\u{202e}"])];
        let expected = "one...   ^[[31mred and\\u{202e}\n";
        assert_eq!(Table::default().lines(&rows), expected);
    }
}
