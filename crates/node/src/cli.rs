//! The command line.

mod admit;

use clap::{Parser, Subcommand};

use crate::settings::Settings;

/// A node agent that does kubelet's part of deferred mounts (KEP-2857), without an API server
#[derive(Debug, Parser)]
#[command(name = "crustlet", version)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What can be asked for.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the agent
    Serve(Box<Settings>),
    /// Show which volumes of pods a policy has deferred, without an agent
    Admit(admit::Admit),
}
