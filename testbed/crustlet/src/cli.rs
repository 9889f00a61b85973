//! The command line, and the commands that call a running agent.
//!
//! | module | contents |
//! |---|---|
//! | `args` | the arguments of the commands |
//! | `get`, `run`, `events`, `container`, `delete`, `admit` | the commands; `container` has `logs` and `exec` |
//! | `client` | the client of the agent's API |
//! | `print`, `table`, `age` | objects as kubectl prints them |
//! | `resource`, `selection` | resource types, and the objects that the arguments select |
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
use crust_serve::flags::parse_socket_path;
use crust_state::error_message;
use tokio::runtime::{Builder, Runtime};

use crate::settings::{SOCKET, Settings};
use args::AgentCommand;
use client::Client;
use io::OutputError;

/// A node agent that does kubelet's part of deferred mounts (KEP-2857), without an API server
#[derive(Debug, Parser)]
#[command(name = "crustlet", version, disable_help_subcommand = true)]
pub(crate) struct Cli {
    /// Socket of the running agent, as set by "crustlet serve --listen"
    #[arg(long, value_name = "PATH", value_parser = parse_socket_path, default_value = SOCKET, global = true)]
    pub(crate) socket: PathBuf,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the agent
    Serve(Box<Settings>),
    /// Show which volumes a policy would defer, without an agent
    Admit(admit::Admit),
    #[command(flatten)]
    Agent(AgentCommand),
}

/// Runs a command of the agent that listens on a socket.
pub(crate) fn run_agent_command(command: AgentCommand, socket: &Path) -> ExitCode {
    let result = match runtime() {
        Ok(runtime) => runtime.block_on(execute(command, socket)),
        Err(error) => Err(error.into()),
    };
    match result {
        Ok(code) => code,
        Err(error) if is_reader_gone(&error) => ExitCode::SUCCESS,
        Err(error) => {
            io::eprint(format!("crustlet: {}\n", error_message(error.as_ref())));
            ExitCode::FAILURE
        }
    }
}

/// Creates a runtime with a thread for the connection. The main thread blocks while the reader of the output, such as a
/// pager or a terminal (Ctrl-S), doesn't read. Meanwhile the other thread answers HTTP/2 pings, because the agent
/// closes connections without an answer.
fn runtime() -> std::io::Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
}

/// Returns whether an error means that the reader of the output has ended, which is not a failure.
fn is_reader_gone(error: &anyhow::Error) -> bool {
    let output = error.downcast_ref::<OutputError>();
    output.is_some_and(OutputError::is_reader_gone)
}

async fn execute(command: AgentCommand, socket: &Path) -> Result<ExitCode> {
    if let AgentCommand::Exec(args) = &command
        && (args.stdin || args.tty)
    {
        return Err(container::InteractiveExec.into());
    }
    let client = Client::connect(socket).await?;
    match command {
        AgentCommand::Get(args) => get::get(&args, &client).await?,
        AgentCommand::Run(args) => run::run(&args, &client).await?,
        AgentCommand::Events(args) => events::events(&args, &client).await?,
        AgentCommand::Logs(args) => container::logs(args, &client).await?,
        AgentCommand::Exec(args) => return container::exec(args, &client).await,
        AgentCommand::Delete(args) => delete::delete(&args, &client).await?,
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

    /// The longest wait for an acknowledgement.
    const ACK_TIMEOUT: Duration = Duration::from_secs(20);

    /// Types and flags of HTTP/2 frames (RFC 9113, section 6).
    const SETTINGS: u8 = 4;
    const PING: u8 = 6;
    const ACK: u8 = 1;

    /// Serves one connection: sends a PING when `start` receives a message, and waits for its acknowledgement.
    fn serve_ping(listener: &UnixListener, start: &mpsc::Receiver<()>) -> std::io::Result<()> {
        let (mut stream, _) = listener.accept()?;
        stream.write_all(&[0, 0, 0, SETTINGS, 0, 0, 0, 0, 0])?;
        // The connection preface (RFC 9113, section 3.4).
        stream.read_exact(&mut [0; 24])?;
        start.recv().map_err(std::io::Error::other)?;
        stream.write_all(&[0, 0, 8, PING, 0, 0, 0, 0, 0])?;
        stream.write_all(b"anything")?;
        loop {
            let mut header = [0; 9];
            stream.read_exact(&mut header)?;
            let length = usize::from(header[1]) << 8 | usize::from(header[2]);
            stream.read_exact(&mut vec![0; length])?;
            if header[3] == PING && header[4] == ACK {
                return Ok(());
            }
        }
    }

    #[test]
    fn a_command_with_blocked_output_answers_pings() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let (start_ping, start) = mpsc::channel();
        let (finish, finished) = mpsc::channel();
        thread::spawn(move || finish.send(serve_ping(&listener, &start)));
        runtime().unwrap().block_on(async {
            let _client = Client::connect(&socket).await.unwrap();
            start_ping.send(()).unwrap();
            // Blocks the thread, as a write to a full pipe does.
            let result = finished.recv_timeout(ACK_TIMEOUT);
            result.expect("the PING is acknowledged").unwrap();
        });
    }
}
