//! The table, as Markdown: docs/performance.md has it.

use crate::measure::{Measure, Told};

const HEAD: [&str; 6] = ["row", "case", "measured", "spread", "reach", "reached"];

/// The cells of a line.
pub(crate) type Line = [String; 6];

/// A row's measure.
pub(crate) fn line(row: &str, measure: &Measure) -> Line {
    let (summary, unit) = (measure.summary(), measure.unit);
    let spread = format!("{} … {}", Told(summary.low, unit), Told(summary.high, unit));
    [
        row.to_owned(),
        measure.case.clone(),
        Told(summary.median, unit).to_string(),
        // What was counted once has none.
        if measure.samples.len() > 1 {
            spread
        } else {
            String::new()
        },
        measure
            .reach
            .map(|reach| reach.told(unit))
            .unwrap_or_default(),
        match measure.is_reached() {
            Some(true) => "yes".to_owned(),
            Some(false) => "no".to_owned(),
            None => String::new(),
        },
    ]
}

/// All of it, with its columns in line.
pub(crate) fn text(lines: &[Line]) -> String {
    let head = HEAD.map(str::to_owned);
    let widths: [usize; 6] = std::array::from_fn(|column| {
        let cells = std::iter::once(&head)
            .chain(lines)
            .map(|line| &line[column]);
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    });
    let rule: Line = std::array::from_fn(|column| "-".repeat(widths[column]));
    let all = [head, rule].into_iter().chain(lines.iter().cloned());
    let all = all.map(|line| {
        let cells = line.iter().zip(widths);
        let cells = cells.map(|(cell, width)| format!(" {cell:<width$} |"));
        format!("|{}\n", cells.collect::<Vec<_>>().concat())
    });
    all.collect::<Vec<_>>().concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::{Reach, Unit};

    #[test]
    fn columns_stand_in_line() {
        let samples = vec![1.0, 2.0, 3.0];
        let many = Measure::to_reach("state", Unit::Ratio, samples, Reach::AtMost(1.5));
        let one = Measure::told("size", Unit::Size, vec![1.25]);
        let table = text(&[line("passthrough", &many), line("binary", &one)]);
        let expected = "\
| row         | case  | measured | spread          | reach    | reached |
| ----------- | ----- | -------- | --------------- | -------- | ------- |
| passthrough | state | ×2.000   | ×1.500 … ×2.500 | ≤ ×1.500 | no      |
| binary      | size  | 1.25 MB  |                 |          |         |
";
        assert_eq!(table, expected);
    }
}
