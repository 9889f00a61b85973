//! How the delegates parse their command lines, observed on the delegates themselves: rows of arguments, and the
//! configuration that a delegate opens for each row.
//!
//! `make grammar` writes the observations of the installed delegates to `src/invocation/observed/`. runcrust's unit
//! tests compare its parser with these files, and the suite `grammar` compares both with the programs.

mod options;
mod spellings;
mod table;
mod vectors;
mod watched;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

pub use self::table::{Row, Table, text};
pub use self::vectors::{Extent, Section, sections};
use self::watched::{Observation, WatchedDirectory};
use crate::{Delegate, Node, Run, Runtime};

/// Returns the first line of the delegate's `--version`, which identifies a table.
pub fn version(delegate: Delegate) -> String {
    let run = Run::capture(Runtime::bare(delegate).command().arg("--version")).success();
    run.stdout.lines().next().unwrap_or_default().to_owned()
}

/// Returns the name of the grammar that runcrust uses for this delegate. It depends on the program's file name, because
/// youki may be used in runc's place.
fn grammar_name(delegate: Delegate) -> &'static str {
    let program = delegate.program();
    let name = program.file_name().unwrap_or_default();
    if name
        .as_encoded_bytes()
        .windows(5)
        .any(|part| part == b"youki")
    {
        "youki"
    } else {
        delegate.name()
    }
}

/// Returns all command lines that are tried with the program in a delegate's place, which may be youki.
pub fn every_row(delegate: Delegate) -> Vec<Vec<String>> {
    let sections = sections(delegate, Extent::Product).into_iter();
    sections.flat_map(|section| section.rows).collect()
}

/// Returns the path of a delegate's committed table.
pub fn path(delegate: Delegate) -> PathBuf {
    // At run time in the guest, where the sources are not where the tests were built.
    let package = std::env::var_os("CARGO_MANIFEST_DIR");
    let package = package.unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let sources = Path::new(&package).join("../src/invocation");
    sources.join(format!("observed/{delegate}.txt"))
}

/// Runs each row with a bare delegate, and returns the outcomes in the table's format.
pub fn observe_delegate(delegate: Delegate, rows: &[Vec<String>]) -> Vec<String> {
    let node = Node::new(delegate);
    let seen = observe(node.dir().path(), &Runtime::bare(delegate), rows);
    seen.iter().map(Observation::outcome).collect()
}

/// Runs each row with runcrust, and returns the outcomes in the table's format.
pub fn observe_runcrust(delegate: Delegate, rows: &[Vec<String>]) -> Vec<String> {
    let node = Node::new(delegate);
    // A delegate that does nothing and succeeds. Its file name selects the grammar.
    let stub = node.dir().subdir("stub").join(grammar_name(delegate));
    fs::copy("/bin/true", &stub).expect("a copy of true");
    node.handler().set_delegate(&stub);
    let seen = observe(node.dir().path(), &node.handler().runtime(), rows);
    let outcomes = seen.iter().map(|seen| {
        if seen.reads.is_none() && !seen.success {
            table::REFUSED.to_owned()
        } else {
            seen.outcome()
        }
    });
    outcomes.collect()
}

/// Runs every row. The rows are distributed over one thread for each processor, each with its own directory of bundles.
fn observe(base: &Path, runtime: &Runtime, rows: &[Vec<String>]) -> Vec<Observation> {
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let seen = Mutex::new(vec![None; rows.len()]);
    thread::scope(|scope| {
        for worker in 0..workers {
            let (next, seen) = (&next, &seen);
            scope.spawn(move || {
                let directory = WatchedDirectory::new(&base.join(format!("lab-{worker}")));
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(row) = rows.get(at) else { break };
                    let result = directory.run(runtime, row);
                    seen.lock().unwrap_or_else(PoisonError::into_inner)[at] = Some(result);
                }
            });
        }
    });
    let seen = seen.into_inner().unwrap_or_else(PoisonError::into_inner);
    seen.into_iter().flatten().collect()
}
