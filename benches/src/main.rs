//! `make bench`: measures what runcrust costs, each row with a comparison, in one run on one machine
//! (docs/performance.md). Nothing passes or fails by a time; the table has a target for some rows.
//!
//! A row is a module of [`rows`]. It sets up what it needs, measures in paired rounds, and returns
//! [`measure::Measure`]s. Small C programs (`programs/`) take the times, and [`statistics`] computes the numbers.

// A row that can't be measured panics, and the others are measured.
#[cfg(panic = "abort")]
compile_error!("the benches have to be built with unwinding panics");

mod callers;
mod effort;
mod fixtures;
mod machine;
mod measure;
mod options;
mod programs;
mod rows;
mod starts;
mod statistics;
mod table;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use self::options::Options;

/// The exit code of a command that was called wrongly.
const UNUSABLE: u8 = 2;

fn main() -> ExitCode {
    let options = match Options::read() {
        Ok(options) => options,
        Err(usage) => {
            eprintln!("{usage}");
            return ExitCode::from(UNUSABLE);
        }
    };
    let machine = machine::describe();
    let mut failed = Vec::new();
    let mut lines = Vec::new();
    for row in &options.rows {
        eprintln!("{}: {}", row.name, row.about);
        match catch_unwind(AssertUnwindSafe(|| (row.run)(&options.effort))) {
            Ok(measures) => {
                for measure in measures {
                    let cells = table::line(row.name, &measure);
                    // The table is only complete at the end, half an hour later.
                    eprintln!("    {}", table::summary(&cells));
                    lines.push(cells);
                }
            }
            Err(_) => failed.push(row.name),
        }
    }
    print!("{machine}\n{}", table::text(&lines));
    if failed.is_empty() {
        return ExitCode::SUCCESS;
    }
    eprintln!("not measured: {}", failed.join(", "));
    ExitCode::FAILURE
}
