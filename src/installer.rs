//! `runcrust install` and `runcrust uninstall`: add runcrust to a container engine's configuration as a handler, and
//! remove it.
//!
//! Both print the diffs of the files and the actions to standard output. Exit 0: done, or nothing to do. Exit 1:
//! failed, with one sentence on standard error that says why. Exit 2: an invalid command line.

mod engine_args;
mod install;
mod uninstall;

use std::ffi::OsString;
use std::io::Write as _;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use crust_state::error_message;

use install::Install;
use uninstall::Uninstall;

use crate::report::{FAILURE, SUCCESS};

/// An OCI runtime that mounts deferred CSI volumes inside the pod's sandbox (KEP-2857)
#[derive(Debug, Parser)]
#[command(name = "runcrust", version, disable_help_subcommand = true)]
struct InstallerArgs {
    #[command(subcommand)]
    verb: InstallerVerb,
}

#[derive(Debug, Subcommand)]
enum InstallerVerb {
    /// Add runcrust to a container engine's configuration, as a handler
    Install(Install),
    /// Remove what install added, unless volumes are in use
    Uninstall(Uninstall),
}

/// Returns the command line of both subcommands.
pub(crate) fn command() -> clap::Command {
    InstallerArgs::command()
}

/// Runs the subcommand at `index` of `argv`, and returns the exit code.
pub(crate) fn run(argv: &[OsString], index: usize) -> u8 {
    const USAGE_ERROR: u8 = 2;
    if index != 1 {
        let message = "give the flags after the subcommand: runcrust install [FLAGS], runcrust uninstall [FLAGS]";
        let _ = writeln!(std::io::stderr(), "runcrust: {message}");
        return USAGE_ERROR;
    }
    let verb = match parse(&argv[index..]) {
        Ok(verb) => verb,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() {
                USAGE_ERROR
            } else {
                SUCCESS
            };
        }
    };
    let result = match &verb {
        InstallerVerb::Install(install) => install.run(argv.first()),
        InstallerVerb::Uninstall(uninstall) => uninstall.run(),
    };
    match result {
        Ok(()) => SUCCESS,
        Err(error) => {
            let _ = writeln!(
                std::io::stderr(),
                "runcrust: {}",
                error_message(error.as_ref())
            );
            FAILURE
        }
    }
}

fn parse(arguments: &[OsString]) -> Result<InstallerVerb, clap::Error> {
    let name = OsString::from("runcrust");
    let InstallerArgs { verb } =
        InstallerArgs::try_parse_from(std::iter::once(&name).chain(arguments))?;
    let conflict = match &verb {
        InstallerVerb::Install(install) => install.conflict(),
        InstallerVerb::Uninstall(uninstall) => uninstall.conflict(),
    };
    match conflict {
        Some(conflict) => Err(command().error(ErrorKind::ArgumentConflict, conflict)),
        None => Ok(verb),
    }
}
