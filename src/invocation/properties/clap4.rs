//! A model of how youki reads a command line: clap itself, with what youki 0.7.0 and its crate liboci-cli 0.7.0 tell
//! it of their options.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Parser, Subcommand};

use super::{Model, owned};
use crate::invocation::{Start, Verb};

#[derive(Parser)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "as youki declares its options"
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
    word: Option<Word>,
    #[arg(short, long)]
    version: bool,
}

#[derive(Subcommand)]
enum Word {
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

pub(super) fn models() -> Vec<(&'static str, Model)> {
    vec![("youki 0.7.0", Box::new(starts))]
}

fn starts(arguments: &[&[u8]]) -> Option<Start> {
    let argv = std::iter::once(OsString::from("youki"));
    let argv = argv.chain(arguments.iter().map(|argument| owned(argument)));
    let youki = Youki::try_parse_from(argv).ok()?;
    if youki.version {
        return None;
    }
    let (verb, container) = match youki.word? {
        Word::Create(container) => (Verb::Create, container),
        Word::Run { container, .. } => (Verb::Run, container),
    };
    Some(Start {
        verb,
        bundle: container.bundle,
        config: None,
        id: container.id.into(),
    })
}
