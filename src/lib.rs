//! runcrust is an OCI runtime wrapper. It mounts deferred CSI volumes inside the pod's sandbox (KEP-2857) and passes
//! everything else through to runc, crun or youki.
//!
//! A create takes these steps: parse argv ([`invocation`]), read the bundle's config ([`oci`]), plan the mounts
//! ([`plan`]), rewrite the config ([`rewrite`]) and exec the [`delegate`].

// This library only serves the program: its documentation is built with the private modules.
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
use crust_blockfs::device::LoopDeviceCache;
use crust_state::config::{ConfigError, ConfigFile, DelegateSettings};
use crust_state::{Config, CrustDirectory, DelegateKind, logging, timeouts};

use delegate::Delegate;
use invocation::{Command, CreateCommand, Invocation, OwnSubcommand};
use report::{ErrorReporter, FAILURE};
use start::CreateCall;

/// Runs the command line `argv`, which includes `argv[0]`.
///
/// Returns the exit code. Doesn't return if it execs the delegate.
#[must_use]
pub fn main(argv: &[OsString]) -> u8 {
    let config = ConfigFile::find(argv.first());
    let delegate = find_delegate(argv, config.as_ref());
    // Even without a delegate the caller reads errors from the log that the command line names.
    let kind = delegate.as_ref().map_or(DelegateKind::Runc, Delegate::kind);
    let invocation = invocation::parse(kind, argv);
    if let Ok(Command::Own(own, index)) = invocation.command {
        // These work without a delegate, so that volumes in use stay manageable after the delegate was removed.
        return match own {
            OwnSubcommand::Crust => verbs::run(argv, index, parse_config(config)),
            OwnSubcommand::Install | OwnSubcommand::Uninstall => installer::run(argv, index),
        };
    }
    let reporter = ErrorReporter::new(kind, &invocation.globals, create_bundle(&invocation));
    reporter.install_panic_hook();
    let Err(error) = exec_delegate(argv, invocation, config, delegate, &reporter);
    reporter.report_fatal(&error);
    FAILURE
}

/// Returns the command line of runcrust's own subcommands, for manual pages and shell completions. All other
/// subcommands are the delegate's.
#[must_use]
pub fn command() -> clap::Command {
    installer::command().subcommand(verbs::command())
}

/// Finds the delegate. Reads only `delegate` and `delegate_kind` of the configuration, so that a mistake in another key
/// doesn't keep containers from being stopped. Fails if the file isn't TOML.
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

/// Parses the whole configuration. Most calls don't need it.
fn parse_config(file: Result<Option<ConfigFile>, ConfigError>) -> Result<Config, ConfigError> {
    file?.map_or_else(|| Ok(Config::default()), |file| file.config())
}

/// Prepares a create or an update if `invocation` is one, and execs the delegate. Doesn't fork: a child process would
/// have another pid than `LISTEN_PID`, and no parent-death signal.
fn exec_delegate(
    argv: &[OsString],
    invocation: Invocation,
    config: Result<Option<ConfigFile>, ConfigError>,
    delegate: Result<Delegate>,
    reporter: &ErrorReporter,
) -> Result<Infallible> {
    // This check comes first: without a delegate, `invocation` was parsed with a guessed grammar.
    let delegate = delegate?;
    let create = match invocation.command? {
        Command::Create(create) => create,
        Command::Update(update) => {
            let config = parse_config(config);
            let extended = update::keep_device_rules(argv, &update, &invocation.globals, config);
            return Ok(delegate.exec(extended.as_deref().unwrap_or(argv))?);
        }
        Command::Own(..) | Command::PassThrough => return Ok(delegate.exec(argv)?),
    };
    let config = parse_config(config)?;
    logging::start(config.log.as_deref());
    let crust = CrustDirectory::new(&config);
    let _lock = start::prepare(CreateCall {
        command: &create,
        globals: &invocation.globals,
        config: &config,
        crust: &crust,
        delegate_kind: delegate.kind(),
        argv0: argv.first(),
        deadline: Deadline::after(timeouts::CREATE),
        loop_devices: &LoopDeviceCache::default(),
        reporter,
    })?;
    // The container may get this terminal.
    logging::clear_progress();
    Ok(delegate.exec(argv)?)
}

/// Returns the bundle of a create; `None` for any other command.
fn create_bundle(invocation: &Invocation) -> Option<&std::path::Path> {
    match &invocation.command {
        Ok(Command::Create(CreateCommand { bundle, .. })) => Some(bundle),
        _ => None,
    }
}
