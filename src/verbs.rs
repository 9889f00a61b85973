//! `runcrust crust …`: the CLI that a volume's `runtime-cli` names (KEP-2857).
//!
//! Success is exit 0 with one JSON object on standard output; of verbs for people, with that where
//! `--json` asks for it. Failure is a non-zero exit, nothing on standard output, and one line on
//! standard error: `{"error": {"code": "<gRPC code name>", "message": "…"}}`.

mod answer;
mod doctor;
mod driver;
mod explain;
mod gc;
mod inspect;
mod list;

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
    Config, CrustDirectory, StateDirectory, TargetPath, logging, sentence, timeouts,
};
use crust_volume::{Context, GrpcCode, VolumeError};
use serde_json::{Value, json};

use answer::{Answer, Form};

use crate::report::{FAILURE, SUCCESS};

/// Volumes whose mount is deferred to the container runtime (KEP-2857)
#[derive(Debug, Parser)]
#[command(name = "runcrust crust", version, disable_help_subcommand = true)]
struct CrustArgs {
    #[command(subcommand)]
    asked: Asked,
}

#[derive(Debug, Subcommand)]
enum Asked {
    #[command(flatten)]
    Verb(Verb),
    /// Show what a create of a bundle would come to, and do nothing
    Explain(explain::ExplainArgs),
    /// Look at what this node needs for volumes, and say what to do where it isn't there; changes
    /// nothing, and fails where a check does
    Doctor(doctor::DoctorArgs),
}

/// What is done to volumes, or asked of them.
#[derive(Debug, Subcommand)]
enum Verb {
    /// Stage a volume for the pod that has this target path
    Stage(driver::StageArgs),
    /// Remove what was staged at a target path; waits until the device is free
    Unstage {
        /// `target_path` of CSI `NodePublishVolume`
        target_path: OsString,
    },
    /// Show how full a volume in use is, and how it fares
    Stats {
        /// `target_path` of CSI `NodePublishVolume`
        target_path: OsString,
    },
    /// Grow a volume to its device's size; one that isn't in use yet, with its mount
    Resize(driver::ResizeArgs),
    /// Stage a volume and mount it in a sandbox that runs
    Publish(driver::PublishArgs),
    /// Show what this runtime can do on this host
    Capabilities,
    /// Show what is staged, and who has it
    List(Form),
    /// Show everything that is known of one volume
    Inspect(inspect::InspectArgs),
    /// Remove what nobody can need any more, and say what may be needed
    Gc(gc::GcArgs),
}

impl Verb {
    /// Nothing is changed, and no log begun.
    const fn only_looks(&self) -> bool {
        match self {
            Self::List(_) | Self::Inspect(_) => true,
            Self::Gc(arguments) => arguments.dry_run,
            _ => false,
        }
    }
}

/// A failure as the caller is told.
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
        let message = sentence(error);
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

/// The verbs, as a subcommand.
pub(crate) fn command() -> clap::Command {
    <CrustArgs as clap::CommandFactory>::command().name("crust")
}

/// Runs the verb after the word `crust`, which is at `at` in argv.
pub(crate) fn run(argv: &[OsString], at: usize, config: Result<Config, ConfigError>) -> u8 {
    let name = OsString::from("runcrust crust");
    let words = &argv[at + 1..];
    let parsed = match alone(words) {
        Some(verb) => Ok(CrustArgs {
            asked: Asked::Verb(verb),
        }),
        None => CrustArgs::try_parse_from(std::iter::once(&name).chain(words)),
    };
    let outcome = match parsed {
        Err(asked) if !asked.use_stderr() => {
            // --help and --version.
            let _ = write!(std::io::stdout(), "{asked}");
            return SUCCESS;
        }
        Err(error) => Err(Failure::invalid(plain(&error))),
        Ok(CrustArgs { asked }) => answer(asked, argv.first(), config),
    };
    match outcome {
        Ok(answer) => match writeln!(std::io::stdout(), "{answer}") {
            Ok(()) if !answer.is_of_a_failure() => SUCCESS,
            Ok(()) => FAILURE,
            // What was done is done.
            Err(error) => failed(&Failure {
                code: GrpcCode::Internal,
                message: format!("write the answer to stdout: {error}"),
            }),
        },
        Err(failure) => failed(&failure),
    }
}

/// A driver stages each volume of a node, and to tell clap of every verb takes as long as to stage one: it is told of
/// this one. `None` where there is another, or anything to be said, which is said by all of them.
fn alone(words: &[OsString]) -> Option<Verb> {
    #[derive(Parser)]
    struct Alone {
        #[command(flatten)]
        stage: driver::StageArgs,
    }
    if words.first()? != "stage" {
        return None;
    }
    let parsed = Alone::try_parse_from(words).ok()?;
    Some(Verb::Stage(parsed.stage))
}

fn failed(Failure { code, message }: &Failure) -> u8 {
    let line = json!({"error": {"code": code.as_str(), "message": message}});
    let _ = writeln!(std::io::stderr(), "{}", printable_json(&line.to_string()));
    FAILURE
}

/// clap's message in one line, without its "error: ".
fn plain(error: &clap::Error) -> String {
    let text = error.to_string();
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").trim_start_matches("error: ").to_owned()
}

/// `argv0`: what this program was called by.
fn answer(
    asked: Asked,
    argv0: Option<&OsString>,
    config: Result<Config, ConfigError>,
) -> Result<Answer, Failure> {
    let needed =
        |config: Result<Config, ConfigError>| config.map_err(|error| Failure::internal(&error));
    match asked {
        Asked::Verb(verb) => dispatch(verb, argv0, &needed(config)?),
        Asked::Explain(arguments) => explain::run(arguments, argv0, &needed(config)?),
        Asked::Doctor(arguments) => Ok(doctor::run(&arguments, argv0, config)),
    }
}

fn dispatch(verb: Verb, argv0: Option<&OsString>, config: &Config) -> Result<Answer, Failure> {
    if !verb.only_looks() {
        logging::start(config.log.as_deref());
    }
    let crust = CrustDirectory::new(config);
    // Whoever only looks makes no directory.
    let state = StateDirectory::open_lazily(&config.state_dir)
        .map_err(|error| Failure::internal(&error))?;
    // crust_ops gives a CLI 30 seconds; unstage waits for processes that die.
    let limit = match verb {
        Verb::Publish(_) => timeouts::CREATE,
        Verb::Gc(_) => Duration::from_secs(30),
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
        Verb::Stage(arguments) => driver::stage(&context, arguments)?.into(),
        Verb::Unstage { target_path } => driver::unstage(&context, &target(target_path)?)?.into(),
        Verb::Stats { target_path } => driver::stats(&context, &target(target_path)?)?.into(),
        Verb::Resize(arguments) => driver::resize(&context, arguments)?.into(),
        Verb::Publish(arguments) => driver::publish(&context, arguments, &cli(argv0)?)?.into(),
        Verb::Capabilities => driver::capabilities(config)?.into(),
        Verb::List(form) => list::list(&context, form)?,
        Verb::Inspect(arguments) => inspect::inspect(&context, &arguments)?,
        Verb::Gc(arguments) => gc::gc(&context, &arguments),
    })
}

/// The program that answers for what this call mounts.
fn cli(argv0: Option<&OsString>) -> Result<PathBuf, Failure> {
    crate::programs::invocation_path(argv0).map_err(|error| Failure::internal(error.as_ref()))
}

/// JSON has no paths but those of UTF-8.
fn shown(path: impl AsRef<Path>) -> Value {
    path.as_ref().to_string_lossy().into()
}

fn target(path: OsString) -> Result<TargetPath, Failure> {
    TargetPath::new(path).map_err(Failure::invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verb_alone_is_understood_as_among_the_others() {
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
        let mut alone_too = 0;
        for line in lines {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let name = OsString::from("crust");
            let among = CrustArgs::try_parse_from(std::iter::once(&name).chain(&words));
            let among = among.ok().map(|it| format!("{:?}", it.asked));
            if let Some(verb) = alone(&words) {
                assert_eq!(Some(format!("{:?}", Asked::Verb(verb))), among, "{line}");
                alone_too += 1;
            } else if line.starts_with("stage") {
                assert_eq!(among, None, "{line}");
            }
        }
        assert_eq!(alone_too, 5);
    }
}
