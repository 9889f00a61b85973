//! How the delegates read their command lines, found out from the delegates themselves: rows of
//! arguments, and which configuration each makes a delegate open.
//!
//! `make grammar` writes what the installed delegates do to `src/invocation/observed/`, where
//! runcrust's own tests hold its reader against it; the suite `grammar` holds both against the
//! programs.

mod lab;
mod options;
mod spellings;
mod table;
mod vectors;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use self::lab::{Lab, Seen};
pub use self::table::{Row, Table, text};
pub use self::vectors::{Extent, Section, sections};
use crate::{Delegate, Node, Run, Runtime};

/// The first line of `--version`: what a table is of.
pub fn version(delegate: Delegate) -> String {
    let run = Run::of(Runtime::bare(delegate).command().arg("--version")).success();
    run.stdout.lines().next().unwrap_or_default().to_owned()
}

/// Whose grammar runcrust reads command lines by, where this is the delegate: by its file's name, a youki's in
/// runc's place.
fn flavour(delegate: Delegate) -> &'static str {
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

/// Returns every command line that is tried with a program that stands in a delegate's place, a youki too.
pub fn every_row(delegate: Delegate) -> Vec<Vec<String>> {
    let sections = sections(delegate, Extent::Product).into_iter();
    sections.flat_map(|section| section.rows).collect()
}

/// Where the committed table of a delegate is written.
pub fn path(delegate: Delegate) -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../src/invocation");
    sources.join(format!("observed/{delegate}.txt"))
}

/// What a bare delegate does with each row, in the table's words.
pub fn observe_delegate(delegate: Delegate, rows: &[Vec<String>]) -> Vec<String> {
    let node = Node::new(delegate);
    let seen = observe(node.dir().path(), &Runtime::bare(delegate), rows);
    seen.iter().map(Seen::outcome).collect()
}

/// What runcrust does with each row, in the table's words.
pub fn observe_runcrust(delegate: Delegate, rows: &[Vec<String>]) -> Vec<String> {
    let node = Node::new(delegate);
    // A delegate that does nothing, and succeeds. Its name says what it is.
    let stub = node.dir().subdir("stub").join(flavour(delegate));
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

/// Runs every row: on each processor some, in a laboratory of its own.
fn observe(base: &Path, runtime: &Runtime, rows: &[Vec<String>]) -> Vec<Seen> {
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let seen = Mutex::new(vec![None; rows.len()]);
    thread::scope(|scope| {
        for worker in 0..workers {
            let (next, seen) = (&next, &seen);
            scope.spawn(move || {
                let lab = Lab::new(&base.join(format!("lab-{worker}")));
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(row) = rows.get(at) else { break };
                    let result = lab.run(runtime, row);
                    seen.lock().unwrap_or_else(PoisonError::into_inner)[at] = Some(result);
                }
            });
        }
    });
    let seen = seen.into_inner().unwrap_or_else(PoisonError::into_inner);
    seen.into_iter().flatten().collect()
}
