//! A table of rows as a text file.

use std::fmt::Write as _;

use super::lab::configurations;
use super::{Section, version};
use crate::Delegate;

/// One line.
#[derive(Debug, Clone)]
pub struct Row {
    /// The arguments after the program's name.
    pub arguments: Vec<String>,
    /// What the delegate does: `-`, or the configuration that it reads, and its log.
    pub delegate: String,
    /// What runcrust does: the same, something else, or `refuse`.
    pub runcrust: String,
}

/// A delegate's table.
#[derive(Debug, Clone)]
pub struct Table {
    /// The first line of the delegate's `--version`.
    pub version: String,
    /// Its lines.
    pub rows: Vec<Row>,
}

/// runcrust ends with an error before it reads a configuration.
pub(super) const REFUSED: &str = "refuse";

const VERSION: &str = "# delegate: ";

impl Table {
    /// The committed table of a delegate, as it was when this was built: tests are also run where
    /// the sources aren't.
    pub fn of(delegate: Delegate) -> Self {
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

    /// Whether runcrust sees what the delegate does, be it this one or another version of it: the
    /// same configuration, or it refuses the call.
    pub fn sees(&self, delegate_does: &str) -> bool {
        let configuration = |outcome: &str| outcome.split(" > ").next().map(str::to_owned);
        delegate_does == "-"
            || self.runcrust == REFUSED
            || configuration(delegate_does) == configuration(&self.runcrust)
    }
}

/// The text of a table.
pub fn text(
    delegate: Delegate,
    sections: &[Section],
    delegate_does: &[String],
    runcrust_does: &[String],
) -> String {
    let mut text = format!(
        "# How {delegate} reads its command line. Written by `make grammar`.\n\
         {VERSION}{}\n\
         # configurations: {}\n\
         # arguments | the configuration it opens > its log, and the form | runcrust, where not the same\n",
        version(delegate),
        quoted(&configurations()),
    );
    let mut outcomes = delegate_does.iter().zip(runcrust_does);
    for section in sections {
        let _ = write!(text, "\n# {}\n", section.title);
        for (row, (theirs, ours)) in section.rows.iter().zip(&mut outcomes) {
            let ours = if ours == theirs {
                String::new()
            } else {
                format!(" | {ours}")
            };
            let _ = writeln!(text, "{} | {theirs}{ours}", quoted(row));
        }
    }
    text
}

/// `a 'b c' ''` → `a`, `b c`, nothing.
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

/// The way back.
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
