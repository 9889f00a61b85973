//! The options, which `make bench` passes in the environment.

use std::env;
use std::fmt;
use std::str::FromStr;

use crate::effort::Effort;
use crate::rows::{ROWS, Row};

const USAGE: &str = "\
usage: [NAME=VALUE…] runcrust-benches

  ROWS    names of rows, separated by blanks (all)
  ROUNDS  rounds of each measurement (each row's own number)
  CALLS   calls of the daemon before its memory is measured (20000)
  PODS    pods of the row `pods` (100)";

pub(crate) struct Options {
    pub(crate) rows: Vec<&'static Row>,
    pub(crate) effort: Effort,
}

/// An error in the options.
#[derive(Debug)]
pub(crate) struct Usage(String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = ROWS.iter().map(|row| row.name).collect();
        write!(f, "{}\n\n{USAGE}\n\nrows: {}", self.0, names.join(" "))
    }
}

impl Options {
    pub(crate) fn read() -> Result<Self, Usage> {
        Ok(Self {
            rows: rows(&variable("ROWS").unwrap_or_default())?,
            effort: Effort {
                rounds: number("ROUNDS")?,
                calls: number("CALLS")?.unwrap_or(20_000),
                pods: number("PODS")?.unwrap_or(100),
            },
        })
    }
}

/// Returns the rows with these names in the table's order, or all rows if there are no names.
fn rows(names: &str) -> Result<Vec<&'static Row>, Usage> {
    let names: Vec<&str> = names.split_whitespace().collect();
    let is_one = |name: &str| ROWS.iter().any(|row| row.name == name);
    if let Some(unknown) = names.iter().find(|name| !is_one(name)) {
        return Err(Usage(format!("{unknown}: unknown row")));
    }
    let wanted = |row: &&Row| names.is_empty() || names.contains(&row.name);
    Ok(ROWS.iter().filter(wanted).collect())
}

/// Parses a number that must be at least 1.
fn number(name: &str) -> Result<Option<usize>, Usage> {
    let Some(text) = variable(name) else {
        return Ok(None);
    };
    let number = usize::from_str(&text).ok().filter(|number| *number > 0);
    match number {
        None => Err(Usage(format!("{name}={text}: not a number greater than 0"))),
        number => Ok(number),
    }
}

/// Reads a variable. make sets those that were not given to an empty value.
fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_named_in_any_order_and_no_name_means_all() {
        let names = |given| -> Vec<&str> {
            let rows = rows(given).unwrap();
            rows.iter().map(|row| row.name).collect()
        };
        assert_eq!(names("create passthrough"), ["passthrough", "create"]);
        assert_eq!(names(" ").len(), ROWS.len());
        let error = rows("passthrough nowhere").err().unwrap();
        assert!(error.to_string().starts_with("nowhere: unknown row"));
    }

    #[test]
    fn the_names_of_rows_are_unique() {
        for (index, row) in ROWS.iter().enumerate() {
            assert!(ROWS[..index].iter().all(|other| other.name != row.name));
        }
    }
}
