//! runcrust: an OCI runtime wrapper that mounts deferred CSI volumes inside the pod's sandbox
//! (KEP-2857) and hands everything else to runc or crun untouched.
//!
//! argv → [`invocation`] → bundle ([`oci`]) → [`plan`] → [`rewrite`] → exec of the [`delegate`].

// This is a program's library: its documentation is built with the private modules.
#![allow(rustdoc::private_intra_doc_links)]
#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod delegate;
mod doctor;
mod explain;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod installer;
mod invocation;
mod matching;
mod node;
mod oci;
mod plan;
mod programs;
mod report;
mod rewrite;
mod role;
mod start;
mod update;
mod users;
mod verbs;

use std::convert::Infallible;
use std::ffi::OsString;

use anyhow::Result;
use crust_blockfs::Deadline;
use crust_blockfs::device::Neighbours;
use crust_state::config::{ConfigError, ConfigFile, DelegateSettings};
use crust_state::{Config, CrustDirectory, DelegateKind, limits, logging};

use delegate::Delegate;
use invocation::{Command, CreateCommand, Invocation, OwnSubcommand};
use report::{ErrorReporter, FAILURE};
use start::Job;

/// Does what `argv` asks for. Returns the exit code, unless the delegate takes this program's place.
#[must_use]
pub fn main(argv: &[OsString]) -> u8 {
    let config = ConfigFile::of(argv.first());
    let delegate = find_delegate(argv, config.as_ref());
    // Without a delegate there is still a caller, who reads the log that the command line names.
    let kind = delegate.as_ref().map_or(DelegateKind::Runc, Delegate::kind);
    let invocation = invocation::parse(kind, argv);
    if let Ok(Command::Own(own, at)) = invocation.command {
        // Volumes that are in use need answers even where the delegate is gone.
        return match own {
            OwnSubcommand::Crust => verbs::run(argv, at, read(config)),
            OwnSubcommand::Install | OwnSubcommand::Uninstall => installer::run(argv, at),
        };
    }
    let report = ErrorReporter::new(kind, &invocation.globals, bundle_of(&invocation));
    report.install_panic_hook();
    let Err(error) = become_delegate(argv, invocation, config, delegate);
    report.fatal(&error);
    FAILURE
}

/// runcrust's own subcommands, for manuals and completions; everything else is the delegate's.
#[must_use]
pub fn command() -> clap::Command {
    installer::command().subcommand(verbs::command())
}

/// Finds the delegate by the configuration's two keys for it alone: a mistake in another key must keep no container
/// from being stopped. A file that isn't TOML can't be read at all.
fn find_delegate(
    argv: &[OsString],
    config: Result<&Option<ConfigFile>, &ConfigError>,
) -> Result<Delegate> {
    let configured = match config {
        Ok(None) => DelegateSettings::default(),
        Ok(Some(file)) => file.delegate()?,
        Err(_) => Config::load_delegate(argv.first())?,
    };
    Ok(Delegate::find(&configured)?)
}

/// All of the configuration, which most calls don't need.
fn read(file: Result<Option<ConfigFile>, ConfigError>) -> Result<Config, ConfigError> {
    file?.map_or_else(|| Ok(Config::default()), |file| file.config())
}

/// Prepares what needs it and execs the delegate in this process's place: a fork would lose
/// `LISTEN_PID` and the parent-death signal.
fn become_delegate(
    argv: &[OsString],
    invocation: Invocation,
    config: Result<Option<ConfigFile>, ConfigError>,
    delegate: Result<Delegate>,
) -> Result<Infallible> {
    // Without it the command line can't be understood: what it means is up to the delegate.
    let delegate = delegate?;
    let start = match invocation.command? {
        Command::Create(start) => start,
        Command::Update(update) => {
            let kept = update::keep_device_rules(argv, &update, &invocation.globals, read(config));
            return Ok(delegate.exec(kept.as_deref().unwrap_or(argv))?);
        }
        Command::Own(..) | Command::PassThrough => return Ok(delegate.exec(argv)?),
    };
    let config = read(config)?;
    logging::start(config.log.as_deref());
    let crust = CrustDirectory::new(&config);
    let _lock = start::prepare(Job {
        start: &start,
        globals: &invocation.globals,
        config: &config,
        crust: &crust,
        kind: delegate.kind(),
        argv0: argv.first(),
        deadline: Deadline::after(limits::CREATE),
        neighbours: &Neighbours::default(),
    })?;
    Ok(delegate.exec(argv)?)
}

fn bundle_of(invocation: &Invocation) -> Option<&std::path::Path> {
    match &invocation.command {
        Ok(Command::Create(CreateCommand { bundle, .. })) => Some(bundle),
        _ => None,
    }
}
