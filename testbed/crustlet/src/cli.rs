//! The command line, and the commands that ask a running agent over its interface.
//!
//! | module | contents |
//! |---|---|
//! | `args` | the arguments of the commands |
//! | `get`, `run`, `events`, `container`, `delete`, `admit` | the commands; `container` has `logs` and `exec` |
//! | `client` | the agent, over its socket |
//! | `print`, `table`, `age` | objects as kubectl prints them |
//! | `resource`, `selection` | kinds and objects as people type them |
//! | `io` | manifests, standard output, standard error |

mod admit;
mod age;
mod args;
mod client;
mod container;
mod delete;
mod events;
mod get;
mod io;
mod print;
mod resource;
mod run;
mod selection;
mod table;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use crust_serve::flags::socket;
use crust_state::sentence;
use tokio::runtime::{Builder, Runtime};

use crate::settings::{SOCKET, Settings};
use args::AgentCommand;
use client::Client;
use io::OutputError;

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

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the agent
    Serve(Box<Settings>),
    /// Show which volumes of pods a policy has deferred, without an agent
    Admit(admit::Admit),
    #[command(flatten)]
    Ask(AgentCommand),
}

/// Runs a command that asks the agent at a socket.
pub(crate) fn ask(asked: AgentCommand, socket: &Path) -> ExitCode {
    let ended = match runtime() {
        Ok(runtime) => runtime.block_on(answer(asked, socket)),
        Err(error) => Err(error.into()),
    };
    match ended {
        Ok(code) => code,
        Err(error) if is_unread(&error) => ExitCode::SUCCESS,
        Err(error) => {
            io::tell(format!("crustlet: {}\n", sentence(error.as_ref())));
            ExitCode::FAILURE
        }
    }
}

/// Returns a runtime with a thread for the connection. A command waits for whoever reads its output, a pager or a
/// terminal (Ctrl-S), on the main thread; the agent closes connections whose clients don't answer HTTP/2's pings.
fn runtime() -> std::io::Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
}

/// Returns whether an error is the end of the output's reader, which has read what it wanted.
fn is_unread(error: &anyhow::Error) -> bool {
    let output = error.downcast_ref::<OutputError>();
    output.is_some_and(OutputError::is_unread)
}

async fn answer(asked: AgentCommand, socket: &Path) -> Result<ExitCode> {
    if let AgentCommand::Exec(asked) = &asked
        && (asked.stdin || asked.tty)
    {
        return Err(container::Interactive.into());
    }
    let client = Client::connect(socket).await?;
    match asked {
        AgentCommand::Get(asked) => get::get(&asked, &client).await?,
        AgentCommand::Run(asked) => run::run(&asked, &client).await?,
        AgentCommand::Events(asked) => events::events(&asked, &client).await?,
        AgentCommand::Logs(asked) => container::logs(asked, &client).await?,
        AgentCommand::Exec(asked) => return container::exec(asked, &client).await,
        AgentCommand::Delete(asked) => delete::delete(&asked, &client).await?,
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixListener;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// Longer than an acknowledgement takes.
    const PATIENCE: Duration = Duration::from_secs(20);

    /// Types and flags of HTTP/2 frames (RFC 9113, section 6).
    const SETTINGS: u8 = 4;
    const PING: u8 = 6;
    const ACKNOWLEDGES: u8 = 1;

    /// Serves one connection as far as a PING, which is sent when `due` says so, and its acknowledgement.
    fn ping(listener: &UnixListener, due: &mpsc::Receiver<()>) -> std::io::Result<()> {
        let (mut stream, _) = listener.accept()?;
        stream.write_all(&[0, 0, 0, SETTINGS, 0, 0, 0, 0, 0])?;
        // The preface (RFC 9113, section 3.4).
        stream.read_exact(&mut [0; 24])?;
        due.recv().map_err(std::io::Error::other)?;
        stream.write_all(&[0, 0, 8, PING, 0, 0, 0, 0, 0])?;
        stream.write_all(b"anything")?;
        loop {
            let mut header = [0; 9];
            stream.read_exact(&mut header)?;
            let length = usize::from(header[1]) << 8 | usize::from(header[2]);
            stream.read_exact(&mut vec![0; length])?;
            if header[3] == PING && header[4] == ACKNOWLEDGES {
                return Ok(());
            }
        }
    }

    #[test]
    fn a_command_blocked_on_its_reader_answers_pings() {
        let place = tempfile::tempdir().unwrap();
        let socket = place.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let (send, due) = mpsc::channel();
        let (tell, told) = mpsc::channel();
        thread::spawn(move || tell.send(ping(&listener, &due)));
        runtime().unwrap().block_on(async {
            let _client = Client::connect(&socket).await.unwrap();
            send.send(()).unwrap();
            // Blocks the thread, as a write to a full pipe does.
            let pinged = told.recv_timeout(PATIENCE);
            pinged.expect("the PING is acknowledged").unwrap();
        });
    }
}
