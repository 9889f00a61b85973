//! A model of youki's command line parser: clap itself, with the options that youki 0.7.0 and its crate liboci-cli
//! 0.7.0 declare.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Parser, Subcommand};

use super::{VersionModel, owned};
use crate::invocation::{CreateCommand, CreateVerb};

#[derive(Parser)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "youki declares its options like this"
)]
#[command(version = "0.7.0", disable_version_flag = true)]
struct Youki {
    #[arg(short, long, overrides_with("log"))]
    log: Option<PathBuf>,
    #[arg(long)]
    debug: bool,
    #[arg(long)]
    log_format: Option<String>,
    #[arg(short, long)]
    root: Option<PathBuf>,
    #[arg(short, long)]
    systemd_cgroup: bool,
    #[arg(long)]
    systemd_log: bool,
    #[arg(long)]
    log_level: Option<String>,
    #[command(subcommand)]
    command: Option<YoukiCommand>,
    #[arg(short, long)]
    version: bool,
}

#[derive(Subcommand)]
enum YoukiCommand {
    Create(Container),
    Run {
        #[command(flatten)]
        container: Container,
        #[arg(long)]
        no_subreaper: bool,
        #[arg(long)]
        keep: bool,
        #[arg(short, long)]
        detach: bool,
    },
}

#[derive(Args)]
struct Container {
    #[arg(short, long, default_value = ".")]
    bundle: PathBuf,
    #[arg(short, long)]
    console_socket: Option<PathBuf>,
    #[arg(short, long)]
    pid_file: Option<PathBuf>,
    #[arg(long)]
    no_pivot: bool,
    #[arg(long)]
    no_new_keyring: bool,
    #[arg(long, default_value = "0")]
    preserve_fds: i32,
    #[arg(value_parser = NonEmptyStringValueParser::new(), required = true)]
    id: String,
}

pub(super) fn models() -> Vec<(&'static str, VersionModel)> {
    vec![("youki 0.7.0", Box::new(created))]
}

fn created(arguments: &[&[u8]]) -> Option<CreateCommand> {
    let argv = std::iter::once(OsString::from("youki"));
    let argv = argv.chain(arguments.iter().map(|argument| owned(argument)));
    let youki = Youki::try_parse_from(argv).ok()?;
    if youki.version {
        return None;
    }
    let (verb, container) = match youki.command? {
        YoukiCommand::Create(container) => (CreateVerb::Create, container),
        YoukiCommand::Run { container, .. } => (CreateVerb::Run, container),
    };
    Some(CreateCommand {
        verb,
        bundle: container.bundle,
        config: None,
        id: container.id.into(),
    })
}
