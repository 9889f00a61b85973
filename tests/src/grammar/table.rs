//! The table of rows, as a text file.

use std::fmt::Write as _;

use super::watched::configurations;
use super::{Section, version};
use crate::Delegate;

/// One row of a table.
#[derive(Debug, Clone)]
pub struct Row {
    /// The arguments after the program's name.
    pub arguments: Vec<String>,
    /// The delegate's outcome: `-` if it opens no configuration. Otherwise the configuration that it opens, and its log
    /// if it writes one: `A/config.json > A/log.json json`.
    pub delegate: String,
    /// runcrust's outcome, in the same form as `delegate`, or `refuse`.
    pub runcrust: String,
}

/// The table of a delegate.
#[derive(Debug, Clone)]
pub struct Table {
    /// The first line of the delegate's `--version`.
    pub version: String,
    pub rows: Vec<Row>,
}

/// The outcome if runcrust fails before it reads a configuration.
pub(super) const REFUSED: &str = "refuse";

const VERSION: &str = "# delegate: ";

impl Table {
    /// Returns the committed table of a delegate. It is compiled in, because tests also run where the sources are
    /// missing.
    pub fn for_delegate(delegate: Delegate) -> Self {
        let text = match delegate {
            Delegate::Runc => include_str!("../../../src/invocation/observed/runc.txt"),
            Delegate::Crun => include_str!("../../../src/invocation/observed/crun.txt"),
        };
        let version = text.lines().find_map(|line| line.strip_prefix(VERSION));
        let lines = text
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'));
        Self {
            version: version.unwrap_or_default().to_owned(),
            rows: lines.map(Row::parse).collect(),
        }
    }
}

impl Row {
    fn parse(line: &str) -> Self {
        let mut columns = line.split(" | ");
        let arguments = words(columns.next().unwrap_or_default());
        let delegate = columns.next().unwrap_or_default().to_owned();
        Self {
            runcrust: columns.next().unwrap_or(&delegate).to_owned(),
            arguments,
            delegate,
        }
    }

    /// Reports whether runcrust agrees with a version of the delegate about this row: it opens the same configuration,
    /// or refuses the call.
    pub fn agrees_with(&self, delegate_outcome: &str) -> bool {
        let configuration = |outcome: &str| outcome.split(" > ").next().map(str::to_owned);
        delegate_outcome == "-"
            || self.runcrust == REFUSED
            || configuration(delegate_outcome) == configuration(&self.runcrust)
    }
}

/// Formats a table.
pub fn text(
    delegate: Delegate,
    sections: &[Section],
    delegate_outcomes: &[String],
    runcrust_outcomes: &[String],
) -> String {
    let mut text = format!(
        "# How {delegate} reads its command line. Written by `make grammar`.\n\
         {VERSION}{}\n\
         # configurations: {}\n\
         # arguments | the configuration that it opens > its log and the log's format | runcrust, if different\n",
        version(delegate),
        quoted(&configurations()),
    );
    let mut outcomes = delegate_outcomes.iter().zip(runcrust_outcomes);
    for section in sections {
        let _ = write!(text, "\n# {}\n", section.title);
        for (row, (delegate, runcrust)) in section.rows.iter().zip(&mut outcomes) {
            let runcrust = if runcrust == delegate {
                String::new()
            } else {
                format!(" | {runcrust}")
            };
            let _ = writeln!(text, "{} | {delegate}{runcrust}", quoted(row));
        }
    }
    text
}

/// Splits a row into words: `a 'b c' ''` becomes `a`, `b c` and an empty word.
pub(super) fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (index, part) in text.split('\'').enumerate() {
        if index % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    words
}

/// Joins words into a row, with quotes where [`words`] needs them.
pub(super) fn quoted<'a>(words: impl IntoIterator<Item = &'a String>) -> String {
    let quote = |word: &'a String| {
        if word.is_empty() || word.contains(char::is_whitespace) {
            format!("'{word}'")
        } else {
            word.clone()
        }
    };
    words.into_iter().map(quote).collect::<Vec<_>>().join(" ")
}
