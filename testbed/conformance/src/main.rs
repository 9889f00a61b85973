//! `make conformance`: tests whether a container runtime does what KEP-2857 requires, requirement by requirement
//! (docs/conformance.md).
//!
//! It uses only the protocol, so that any runtime can be tested: the crust directory's files, OCI bundles with CRI's
//! annotations, the OCI command line, and the program that `runtime-cli` names. It uses neither runcrust's
//! configuration nor its records. Of the test harness it uses the parts that are independent of runcrust (`Bundle`,
//! `LoopDevice`, `MountWatcher`, `SubPath`, `TestDir`, `volume`), never `Handler` and `Node`. Containers are driven by
//! [`scene::Container`], which sees only what the command line reports.

// A requirement that is not met panics; the suite then continues with the next one.
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

/// The exit code for a mistake on the command line, and for a machine on which no volume can be created.
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
    if let Err(reason) = runner::can_run_here(&options.suite) {
        eprintln!("conformance: cannot create a volume on this machine: {reason}");
        return ExitCode::from(UNUSABLE);
    }
    let mut report = Report::new(&options);
    runner::run(&options, |requirement, result| {
        report.add(requirement, result);
    });
    report.finish()
}
