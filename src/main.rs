//! runcrust: an OCI runtime wrapper that mounts deferred CSI volumes inside the pod's sandbox
//! (KEP-2857) and hands everything else to runc or crun untouched.
//!
//! argv → [`invocation`] → bundle ([`oci`]) → [`plan`] → [`rewrite`] → exec of the [`delegate`].

mod delegate;
mod invocation;
mod matching;
mod node;
mod oci;
mod plan;
mod report;
mod rewrite;
mod role;
mod start;
mod verbs;

use std::convert::Infallible;
use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use crust_state::{Config, logging};

use delegate::Delegate;
use invocation::{Command, Flavour, Invocation, Start};
use report::Report;

fn main() -> ExitCode {
    let argv: Vec<OsString> = std::env::args_os().collect();
    let setup = set_up(&argv);
    // Without a delegate there is still a caller, who reads the log that the command line names.
    let flavour = setup
        .as_ref()
        .map_or(Flavour::Runc, |(_, delegate)| delegate.flavour());
    let invocation = invocation::parse(flavour, &argv);
    if let Ok(Command::Crust { at }) = invocation.command {
        // Volumes that are in use need answers even where the delegate is gone.
        return verbs::run(&argv[at + 1..], Config::load(argv.first()));
    }
    let report = Report::new(flavour, &invocation.globals, bundle_of(&invocation));
    let Err(error) =
        setup.and_then(|(config, delegate)| become_delegate(&argv, invocation, &config, &delegate));
    report.fatal(&error);
    ExitCode::FAILURE
}

fn set_up(argv: &[OsString]) -> Result<(Config, Delegate)> {
    let config = Config::load(argv.first())?;
    let delegate = Delegate::find(config.delegate.as_deref())?;
    Ok((config, delegate))
}

/// Prepares what needs it and execs the delegate in this process's place: a fork would lose
/// `LISTEN_PID` and the parent-death signal.
fn become_delegate(
    argv: &[OsString],
    invocation: Invocation,
    config: &Config,
    delegate: &Delegate,
) -> Result<Infallible> {
    if let Command::Start(start) = invocation.command? {
        logging::start(config.log.as_deref());
        start::prepare(&start, &invocation.globals, config, argv.first())?;
    }
    Ok(delegate.exec(argv)?)
}

fn bundle_of(invocation: &Invocation) -> Option<&std::path::Path> {
    match &invocation.command {
        Ok(Command::Start(Start { bundle, .. })) => Some(bundle),
        _ => None,
    }
}
