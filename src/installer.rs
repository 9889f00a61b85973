//! `runcrust install` and `runcrust uninstall`: the handler in a container engine's configuration.
//!
//! Standard output has the files' differences, and what was done. Exit 0: it is done, or there is nothing to do. Exit
//! 1: it isn't, and one sentence on standard error says why. Exit 2: a mistake on the command line.

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
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Add runcrust to a container engine's configuration, as a handler
    Install(Install),
    /// Remove what install added, unless volumes are in use
    Uninstall(Uninstall),
}

/// Returns the command line of both verbs.
pub(crate) fn command() -> clap::Command {
    InstallerArgs::command()
}

/// Runs the verb that is at `at` in argv.
pub(crate) fn run(argv: &[OsString], at: usize) -> u8 {
    const USAGE: u8 = 2;
    if at != 1 {
        let flags = "flags of install and uninstall come after the word";
        let _ = writeln!(std::io::stderr(), "runcrust: {flags}");
        return USAGE;
    }
    let verb = match parsed(&argv[at..]) {
        Ok(verb) => verb,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { USAGE } else { SUCCESS };
        }
    };
    let done = match &verb {
        Verb::Install(install) => install.run(argv.first()),
        Verb::Uninstall(uninstall) => uninstall.run(),
    };
    match done {
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

fn parsed(arguments: &[OsString]) -> Result<Verb, clap::Error> {
    let name = OsString::from("runcrust");
    let InstallerArgs { verb } =
        InstallerArgs::try_parse_from(std::iter::once(&name).chain(arguments))?;
    let mistake = match &verb {
        Verb::Install(install) => install.mistake(),
        Verb::Uninstall(uninstall) => uninstall.mistake(),
    };
    match mistake {
        Some(mistake) => Err(command().error(ErrorKind::ArgumentConflict, mistake)),
        None => Ok(verb),
    }
}
