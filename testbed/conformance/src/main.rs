//! `make conformance`: whether a container runtime does what KEP-2857 asks of it, requirement by
//! requirement (docs/conformance.md).
//!
//! It asks by the protocol alone, so that any runtime can be asked: the crust directory's files,
//! OCI bundles with CRI's annotations, the OCI command line, and the program that `runtime-cli`
//! names. Nothing of runcrust's own is used for that, neither its configuration nor its records:
//! of the harness only what knows nothing of it (`Bundle`, `LoopDevice`, `MountWatcher`,
//! `SubPath`, `TestDir`, `volume`), never `Handler` and `Node`. Containers are driven by
//! [`scene::Container`], which sees of one what the command line tells.

// A requirement that isn't met panics, and the next one is looked at.
#[cfg(panic = "abort")]
compile_error!("conformance has to be built with unwinding panics");

mod groups;
mod options;
mod report;
mod requirement;
mod runner;
mod scene;
mod suite;

use std::process::ExitCode;

use self::options::{Options, Output};
use self::report::Report;

/// The exit code of a command that was called wrongly, or can't do its work on this machine.
const UNUSABLE: u8 = 2;

fn main() -> ExitCode {
    let options = match Options::read() {
        Ok(options) => options,
        Err(usage) => {
            eprintln!("{usage}");
            return ExitCode::from(UNUSABLE);
        }
    };
    if options.output == Output::List {
        report::list(&options.selection);
        return ExitCode::SUCCESS;
    }
    if let Err(why) = runner::can_run_here(&options.suite) {
        eprintln!("conformance can't run here: {why}");
        return ExitCode::from(UNUSABLE);
    }
    let mut report = Report::new(&options);
    runner::run(&options, |requirement, result| {
        report.add(requirement, result);
    });
    report.finish()
}
