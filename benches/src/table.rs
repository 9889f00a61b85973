//! The Markdown table of docs/performance.md.

use crate::measure::{Measure, Quantity};

const HEAD: [&str; 6] = ["row", "case", "measured", "spread", "target", "reached"];

/// The cells of a line.
pub(crate) type Cells = [String; 6];

/// Formats a result of a row.
pub(crate) fn line(row: &str, measure: &Measure) -> Cells {
    let (summary, unit) = (measure.summary(), measure.unit);
    let spread = format!(
        "{} … {}",
        Quantity(summary.low, unit),
        Quantity(summary.high, unit)
    );
    [
        row.to_owned(),
        measure.case.clone(),
        Quantity(summary.median, unit).to_string(),
        // A single count has no spread.
        if measure.samples.len() > 1 {
            spread
        } else {
            String::new()
        },
        measure
            .target
            .map(|target| target.format(unit))
            .unwrap_or_default(),
        match measure.is_met() {
            Some(true) => "yes".to_owned(),
            Some(false) => "no".to_owned(),
            None => String::new(),
        },
    ]
}

/// Formats a result without the table: `case: measured (target ≤ ×1.500, reached: no)`.
pub(crate) fn summary([_, case, measured, _, target, reached]: &Cells) -> String {
    let target = match (target.as_str(), reached.as_str()) {
        ("", _) => String::new(),
        (target, reached) => format!(" (target {target}, reached: {reached})"),
    };
    format!("{case}: {measured}{target}")
}

/// Formats the table with aligned columns.
pub(crate) fn text(lines: &[Cells]) -> String {
    let head = HEAD.map(str::to_owned);
    let widths: [usize; 6] = std::array::from_fn(|column| {
        let cells = std::iter::once(&head)
            .chain(lines)
            .map(|line| &line[column]);
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    });
    let rule: Cells = std::array::from_fn(|column| "-".repeat(widths[column]));
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
    use crate::measure::{Target, Unit};

    #[test]
    fn results_are_lines_and_an_aligned_table() {
        let samples = vec![1.0, 2.0, 3.0];
        let many = Measure::with_target("state", Unit::Ratio, samples, Target::AtMost(1.5));
        let one = Measure::new("size", Unit::Size, vec![1.25]);
        let lines = [line("passthrough", &many), line("binary", &one)];
        assert_eq!(
            lines.each_ref().map(summary),
            [
                "state: ×2.000 (target ≤ ×1.500, reached: no)",
                "size: 1.25 MB"
            ]
        );
        let table = text(&lines);
        let expected = "\
| row         | case  | measured | spread          | target   | reached |
| ----------- | ----- | -------- | --------------- | -------- | ------- |
| passthrough | state | ×2.000   | ×1.500 … ×2.500 | ≤ ×1.500 | no      |
| binary      | size  | 1.25 MB  |                 |          |         |
";
        assert_eq!(table, expected);
    }
}
