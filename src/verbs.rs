//! `runcrust crust …`: the CLI that a volume's `runtime-cli` names (KEP-2857), and subcommands for operators.
//!
//! On success it exits with 0 and prints one JSON object to standard output. The subcommands for operators print text
//! unless `--json` is given. On failure it exits with a non-zero code, prints nothing to standard output, and prints
//! one line to standard error: `{"error": {"code": "<gRPC code name>", "message": "…"}}`.

mod doctor;
mod driver;
mod explain;
mod gc;
mod inspect;
mod list;
mod output;

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Parser, Subcommand};
use crust_blockfs::Deadline;
use crust_blockfs::device::LoopDeviceCache;
use crust_state::config::ConfigError;
use crust_state::printable::printable_json;
use crust_state::{
    Config, CrustDirectory, StateDirectory, TargetPath, error_message, logging, timeouts,
};
use crust_volume::{Context, GrpcCode, VolumeError};
use serde_json::{Value, json};

use output::{CommandOutput, OutputFormat};

use crate::report::{FAILURE, SUCCESS};

/// Manage volumes whose mount is deferred to the container runtime (KEP-2857)
#[derive(Debug, Parser)]
#[command(name = "runcrust crust", version, disable_help_subcommand = true)]
struct CrustArgs {
    #[command(subcommand)]
    command: CrustCommand,
}

#[derive(Debug, Subcommand)]
enum CrustCommand {
    #[command(flatten)]
    Verb(VolumeVerb),
    /// Show what a create of a bundle would do, without doing it
    Explain(explain::ExplainArgs),
    /// Check this node for problems with volumes, and suggest fixes; changes nothing, and exits with
    /// an error if a check fails
    Doctor(doctor::DoctorArgs),
    /// Hold the mount of a share, which is open as standard input, until its users have ended
    #[command(hide = true, name = crust_volume::HOLD_MOUNT)]
    HoldMount(HoldMountArgs),
}

#[derive(Debug, clap::Args)]
#[allow(
    clippy::doc_markdown,
    reason = "clap prints the comments as help, without markup"
)]
struct HoldMountArgs {
    /// The process that makes the mount
    #[arg(long)]
    creator: i32,
    /// target_path of CSI NodePublishVolume
    target_path: OsString,
    /// The id of the sandbox; for a container without one, its own id
    sandbox: String,
}

#[allow(
    clippy::doc_markdown,
    reason = "clap prints the comments as help, without markup"
)]
#[derive(Debug, Subcommand)]
enum VolumeVerb {
    /// Stage a volume for the pod that has this target path
    Stage(driver::StageArgs),
    /// Remove the volume that is staged at a target path; waits until its device is free
    Unstage {
        /// target_path of CSI NodePublishVolume
        target_path: OsString,
    },
    /// Show usage and health of a mounted volume
    Stats {
        /// target_path of CSI NodePublishVolume
        target_path: OsString,
    },
    /// Grow a volume to the size of its device; a volume that isn't mounted grows with its next mount
    Resize(driver::ResizeArgs),
    /// Stage a volume and mount it in a running sandbox
    Publish(driver::PublishArgs),
    /// Show the capabilities of this runtime on this host
    Capabilities,
    /// List the staged volumes and their users
    List(OutputFormat),
    /// Show all details of one volume
    Inspect(inspect::InspectArgs),
    /// Remove stale state; list what was removed, what was kept and why
    Gc(gc::GcArgs),
}

impl VolumeVerb {
    /// Returns whether the verb changes nothing. Such a verb doesn't write to the log either.
    const fn is_read_only(&self) -> bool {
        match self {
            Self::List(_) | Self::Inspect(_) => true,
            Self::Gc(arguments) => arguments.dry_run,
            _ => false,
        }
    }
}

/// An error as it is reported to the caller.
#[derive(Debug)]
struct Failure {
    code: GrpcCode,
    message: String,
}

impl Failure {
    fn invalid(error: impl std::fmt::Display) -> Self {
        Self {
            code: GrpcCode::InvalidArgument,
            message: error.to_string(),
        }
    }

    fn not_found(message: String) -> Self {
        Self {
            code: GrpcCode::NotFound,
            message,
        }
    }

    fn internal(error: &(dyn std::error::Error + 'static)) -> Self {
        let message = error_message(error);
        Self {
            code: GrpcCode::Internal,
            message,
        }
    }
}

impl From<VolumeError> for Failure {
    fn from(error: VolumeError) -> Self {
        Self {
            code: error.code(),
            message: error.to_string(),
        }
    }
}

/// Returns the command line of `crust`, as a subcommand of runcrust.
pub(crate) fn command() -> clap::Command {
    <CrustArgs as clap::CommandFactory>::command().name("crust")
}

/// Runs `runcrust crust …`, and returns the exit code. `index` is the index of the word `crust` in `argv`.
pub(crate) fn run(argv: &[OsString], index: usize, config: Result<Config, ConfigError>) -> u8 {
    let name = OsString::from("runcrust crust");
    let arguments = &argv[index + 1..];
    let parsed = match parse_stage(arguments) {
        Some(verb) => Ok(CrustArgs {
            command: CrustCommand::Verb(verb),
        }),
        None => CrustArgs::try_parse_from(std::iter::once(&name).chain(arguments)),
    };
    let result = match parsed {
        Err(help) if !help.use_stderr() => {
            // --help and --version.
            let _ = write!(std::io::stdout(), "{help}");
            return SUCCESS;
        }
        Err(error) => Err(Failure::invalid(one_line(&error))),
        Ok(CrustArgs { command }) => execute(command, argv.first(), config),
    };
    logging::clear_progress();
    match result {
        Ok(output) => match writeln!(std::io::stdout(), "{output}") {
            Ok(()) if !output.is_failure() => SUCCESS,
            Ok(()) => FAILURE,
            // The verb has succeeded, but the caller can't know that without the output.
            Err(error) => report_failure(&Failure {
                code: GrpcCode::Internal,
                message: format!("write the result to stdout: {error}"),
            }),
        },
        Err(failure) => report_failure(&failure),
    }
}

/// Fast path for `stage`: parses only its arguments. Building clap's parser for all verbs takes as long as staging a
/// volume. Returns `None` for any other verb, and if clap has something to print (an error, `--help`): the full parser
/// prints that.
fn parse_stage(arguments: &[OsString]) -> Option<VolumeVerb> {
    #[derive(Parser)]
    struct StageOnly {
        #[command(flatten)]
        stage: driver::StageArgs,
    }
    if arguments.first()? != "stage" {
        return None;
    }
    let parsed = StageOnly::try_parse_from(arguments).ok()?;
    Some(VolumeVerb::Stage(parsed.stage))
}

/// Prints a failure to standard error, and returns the exit code.
fn report_failure(Failure { code, message }: &Failure) -> u8 {
    let line = json!({"error": {"code": code.as_str(), "message": message}});
    let _ = writeln!(std::io::stderr(), "{}", printable_json(&line.to_string()));
    FAILURE
}

/// Returns clap's message in one line, without its "error: ".
fn one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").trim_start_matches("error: ").to_owned()
}

/// Executes a command. Only `doctor` runs without a valid configuration.
fn execute(
    command: CrustCommand,
    argv0: Option<&OsString>,
    config: Result<Config, ConfigError>,
) -> Result<CommandOutput, Failure> {
    let required =
        |config: Result<Config, ConfigError>| config.map_err(|error| Failure::internal(&error));
    match command {
        CrustCommand::Verb(verb) => run_verb(verb, argv0, &required(config)?),
        CrustCommand::Explain(arguments) => explain::run(arguments, argv0, &required(config)?),
        CrustCommand::Doctor(arguments) => Ok(doctor::run(&arguments, argv0, config)),
        CrustCommand::HoldMount(arguments) => {
            let target = target(arguments.target_path)?;
            crust_volume::hold_mount(
                &required(config)?,
                &target,
                &arguments.sandbox,
                arguments.creator,
            )?;
            Ok(json!({}).into())
        }
    }
}

fn run_verb(
    verb: VolumeVerb,
    argv0: Option<&OsString>,
    config: &Config,
) -> Result<CommandOutput, Failure> {
    if !verb.is_read_only() {
        logging::start(config.log.as_deref());
    }
    let crust = CrustDirectory::new(config);
    // A read-only verb doesn't create the state directory.
    let state = StateDirectory::open_lazily(&config.state_dir)
        .map_err(|error| Failure::internal(&error))?;
    // crust_ops allows a CLI 30 seconds. unstage waits for processes that are being killed.
    let limit = match verb {
        VolumeVerb::Publish(_) => timeouts::CREATE,
        VolumeVerb::Gc(_) => Duration::from_secs(30),
        _ => Duration::from_secs(10),
    };
    let deadline = Deadline::after(limit);
    let context = Context {
        config,
        crust: &crust,
        state: &state,
        deadline,
        loop_devices: &LoopDeviceCache::default(),
    };
    Ok(match verb {
        VolumeVerb::Stage(arguments) => driver::stage(&context, arguments)?.into(),
        VolumeVerb::Unstage { target_path } => {
            driver::unstage(&context, &target(target_path)?)?.into()
        }
        VolumeVerb::Stats { target_path } => driver::stats(&context, &target(target_path)?)?.into(),
        VolumeVerb::Resize(arguments) => driver::resize(&context, arguments)?.into(),
        VolumeVerb::Publish(arguments) => {
            driver::publish(&context, arguments, &runtime_cli(argv0)?)?.into()
        }
        VolumeVerb::Capabilities => driver::capabilities(config)?.into(),
        VolumeVerb::List(format) => list::list(&context, format)?,
        VolumeVerb::Inspect(arguments) => inspect::inspect(&context, &arguments)?,
        VolumeVerb::Gc(arguments) => gc::gc(&context, &arguments),
    })
}

/// Returns the path that is recorded as `runtime-cli` of the volumes that this call mounts.
fn runtime_cli(argv0: Option<&OsString>) -> Result<PathBuf, Failure> {
    crate::programs::invocation_path(argv0).map_err(|error| Failure::internal(error.as_ref()))
}

/// Returns a path as a JSON string, with bytes that aren't UTF-8 replaced.
fn path_json(path: impl AsRef<Path>) -> Value {
    path.as_ref().to_string_lossy().into()
}

fn target(path: OsString) -> Result<TargetPath, Failure> {
    TargetPath::new(path).map_err(Failure::invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parser_for_stage_agrees_with_the_full_parser() {
        let lines = [
            "stage /k --device /dev/a --fstype ext4",
            "stage /k --device=/dev/a --fstype xfs --option a --option=b --fs-group 7 --read-only",
            "stage --fstype ext4 --device /dev/a --device-node -- /k",
            "stage /k --device /dev/a --fstype ext4 --access-mode SINGLE_NODE_SINGLE_WRITER",
            "stage /k --device /dev/a",
            "stage /k --device /dev/a --fstype ext4 --fs-group-change-policy Always",
            "stage --help",
            "stage --version",
            "stage",
            "--version stage",
            "list",
        ];
        let mut parsed_alone = 0;
        for line in lines {
            let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let name = OsString::from("crust");
            let full = CrustArgs::try_parse_from(std::iter::once(&name).chain(&arguments));
            let full = full.ok().map(|it| format!("{:?}", it.command));
            if let Some(verb) = parse_stage(&arguments) {
                assert_eq!(
                    Some(format!("{:?}", CrustCommand::Verb(verb))),
                    full,
                    "{line}"
                );
                parsed_alone += 1;
            } else if line.starts_with("stage") {
                assert_eq!(full, None, "{line}");
            }
        }
        assert_eq!(parsed_alone, 5);
    }
}
