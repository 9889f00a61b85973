//! The command line, and what asks a running agent: it knows the agent's interface, and nothing else of it.
//!
//! | room | what is there |
//! |---|---|
//! | `args` | what may be said |
//! | `get`, `run`, `events`, `logs`, `exec`, `delete` | the commands |
//! | `client` | the agent, over its socket |
//! | `print`, `table`, `age` | objects as kubectl prints them, of documents alone |
//! | `resource`, `wanted`, `pod` | kinds and objects as people type them |
//! | `event`, `manifests`, `output` | events as objects; files; standard output |

mod admit;
mod age;
mod args;
mod client;
mod delete;
mod event;
mod events;
mod exec;
mod get;
mod logs;
mod manifests;
mod output;
mod pod;
mod print;
mod resource;
mod run;
mod table;
mod wanted;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use crust_state::sentence;

use crate::settings::{SOCKET, Settings, socket};
use args::Asked;
use client::Client;
use output::OutputError;

/// A node agent that does kubelet's part of deferred mounts (KEP-2857), without an API server
#[derive(Debug, Parser)]
#[command(name = "crustlet", version, disable_help_subcommand = true)]
pub(crate) struct Cli {
    /// The socket of a running agent; where one is to listen is said by serve's --listen
    #[arg(long, value_name = "PATH", value_parser = socket, default_value = SOCKET, global = true)]
    pub(crate) socket: PathBuf,
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
    #[command(flatten)]
    Ask(Asked),
}

/// Asks the agent that listens there.
pub(crate) fn ask(asked: Asked, socket: &Path) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let ended = match runtime {
        Ok(runtime) => runtime.block_on(answer(asked, socket)),
        Err(error) => Err(error.into()),
    };
    match ended {
        Ok(code) => code,
        Err(error) if is_unread(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::tell(format!("crustlet: {}\n", sentence(error.as_ref())));
            ExitCode::FAILURE
        }
    }
}

/// Who has read enough of it misses nothing.
fn is_unread(error: &anyhow::Error) -> bool {
    let output = error.downcast_ref::<OutputError>();
    output.is_some_and(OutputError::is_unread)
}

async fn answer(asked: Asked, socket: &Path) -> Result<ExitCode> {
    if let Asked::Exec(asked) = &asked
        && (asked.stdin || asked.tty)
    {
        return Err(exec::Interactive.into());
    }
    let client = Client::connect(socket).await?;
    match asked {
        Asked::Get(asked) => get::get(&asked, &client).await?,
        Asked::Run(asked) => run::run(&asked, &client).await?,
        Asked::Events(asked) => events::events(&asked, &client).await?,
        Asked::Logs(asked) => logs::logs(asked, &client).await?,
        Asked::Exec(asked) => return exec::exec(asked, &client).await,
        Asked::Delete(asked) => delete::delete(&asked, &client).await?,
    }
    Ok(ExitCode::SUCCESS)
}
