//! Combines the tokens of a command line into a command.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use super::cursor::{Cursor, Token, quote_argument};
use super::grammar::{Flag, FlagRole, Scope};
use super::{
    Ambiguity, Command, CreateCommand, CreateVerb, DelegateKind, GlobalFlags, InvocationError,
    LogFormat, OwnSubcommand, UpdateCommand, clap4, getopt, goflag,
};

pub(super) fn parse(
    kind: DelegateKind,
    argv: &[OsString],
    globals: &mut GlobalFlags,
) -> Result<Command, InvocationError> {
    let mut cursor = Cursor::new(argv);
    let mut help = HelpFlags::default();
    let index = loop {
        match next_token(kind, &mut cursor, Scope::Global) {
            Token::Flag(flag, value) => match flag.role {
                // runc parses the other flags first. crun and youki print the help or the version at once, and exit.
                FlagRole::Help if kind != DelegateKind::Runc => return Ok(Command::PassThrough),
                FlagRole::Help => help.add(value),
                _ => globals.set(flag, value),
            },
            Token::Positional(index) => break index,
            Token::End | Token::Rejected => return Ok(Command::PassThrough),
            Token::Ambiguity(index, ambiguity) => {
                return ambiguous_before_subcommand(argv, index, ambiguity);
            }
        }
    };
    let Some(word) = argv.get(index) else {
        return Ok(Command::PassThrough);
    };
    if help.is_requested() {
        return Ok(Command::PassThrough);
    }
    if let Some(own) = OwnSubcommand::from_name(word) {
        return Ok(Command::Own(own, index));
    }
    match CreateVerb::from_name(word) {
        Some(verb) => parse_create(kind, verb, cursor, globals),
        None if kind == DelegateKind::Crun && word == "update" => Ok(parse_update(cursor)),
        None => Ok(Command::PassThrough),
    }
}

/// Parses crun's `update`. Of all delegates only crun drops device rules in it (see [`crate::update`]). A command line
/// that can't be parsed is passed through, since it can't create a container.
fn parse_update(mut cursor: Cursor<'_>) -> Command {
    let (mut resources, mut id) = (None, None);
    let mut after_flags = 0;
    loop {
        match getopt::next_token(&mut cursor, Scope::Update) {
            Token::Flag(flag, _) if flag.role == FlagRole::Help => return Command::PassThrough,
            Token::Flag(flag, value) => {
                if flag.role == FlagRole::Resources {
                    resources = value;
                }
                after_flags = cursor.next_index();
            }
            Token::Positional(index) if id.is_none() => id = cursor.argument(index),
            Token::End => break,
            Token::Positional(_) | Token::Rejected | Token::Ambiguity(..) => {
                return Command::PassThrough;
            }
        }
    }
    match (resources, id) {
        (Some(resources), Some(id)) => Command::Update(UpdateCommand {
            resources: resources.to_os_string(),
            id: id.to_os_string(),
            after_flags,
        }),
        _ => Command::PassThrough,
    }
}

/// Handles an ambiguous argument before the subcommand, which may or may not take the next argument as its value.
///
/// Fails only if a [`CreateVerb`] comes after the argument. Otherwise the command line can't create a container,
/// however it is parsed.
fn ambiguous_before_subcommand(
    argv: &[OsString],
    index: usize,
    ambiguity: Ambiguity,
) -> Result<Command, InvocationError> {
    let later = argv.get(index + 1..).unwrap_or_default();
    match later.iter().find_map(|word| CreateVerb::from_name(word)) {
        Some(verb) => {
            let argument = quote_argument(argv, index);
            Err(InvocationError::BeforeSubcommand {
                argument,
                verb: verb.name(),
                ambiguity,
            })
        }
        None => Ok(Command::PassThrough),
    }
}

fn parse_create(
    kind: DelegateKind,
    verb: CreateVerb,
    mut cursor: Cursor<'_>,
    globals: &mut GlobalFlags,
) -> Result<Command, InvocationError> {
    let from = cursor.next_index();
    let mut help = HelpFlags::default();
    let (mut bundle, mut config, mut id, mut positionals) = (None, None, None, 0_usize);
    let mut rejected = false;
    loop {
        match next_token(kind, &mut cursor, Scope::Create(verb)) {
            Token::Flag(flag, value) => match flag.role {
                FlagRole::Help if kind != DelegateKind::Runc => return Ok(Command::PassThrough),
                FlagRole::Help => help.add(value),
                FlagRole::Bundle => bundle = value,
                FlagRole::Config => config = value,
                _ => globals.set(flag, value),
            },
            Token::Positional(index) => {
                positionals += 1;
                id = id.or_else(|| cursor.argument(index));
            }
            Token::End => break,
            Token::Rejected if kind != DelegateKind::Runc => return Ok(Command::PassThrough),
            // If an ambiguous argument follows, some versions may still accept the command line.
            Token::Rejected => rejected = true,
            Token::Ambiguity(index, ambiguity) => {
                return ambiguous_after_subcommand(verb, cursor.argv(), index, ambiguity);
            }
        }
    }
    if help.is_requested() || positionals > max_positionals(kind, verb) {
        return Ok(Command::PassThrough);
    }
    let Some(id) = id.filter(|_| !rejected) else {
        return without_id(kind, verb, cursor.argv(), from);
    };
    let Some((bundle, config)) = bundle_and_config(kind, bundle, config) else {
        return Ok(Command::PassThrough);
    };
    Ok(Command::Create(CreateCommand {
        verb,
        bundle,
        config,
        id: id.to_os_string(),
    }))
}

fn ambiguous_after_subcommand(
    verb: CreateVerb,
    argv: &[OsString],
    index: usize,
    ambiguity: Ambiguity,
) -> Result<Command, InvocationError> {
    Err(InvocationError::AfterSubcommand {
        argument: quote_argument(argv, index),
        verb: verb.name(),
        ambiguity,
    })
}

/// Handles a command line without an id, or with a flag that is rejected. The delegate reports the error itself,
/// unless some version takes a flag as the id ([`Ambiguity::Separator`]).
fn without_id(
    kind: DelegateKind,
    verb: CreateVerb,
    argv: &[OsString],
    from: usize,
) -> Result<Command, InvocationError> {
    match goflag::separator_after_flags(argv, from) {
        Some(index) if kind == DelegateKind::Runc => {
            ambiguous_after_subcommand(verb, argv, index, Ambiguity::Separator)
        }
        _ => Ok(Command::PassThrough),
    }
}

impl GlobalFlags {
    fn set(&mut self, flag: &Flag, value: Option<&OsStr>) {
        let given = value.filter(|value| !value.is_empty());
        match flag.role {
            FlagRole::Root => self.root = given.map(OsStr::to_os_string),
            FlagRole::Log => self.log = given.map(PathBuf::from),
            FlagRole::LogFormat if value.is_some_and(|value| value == "json") => {
                self.log_format = LogFormat::Json;
            }
            FlagRole::LogFormat => self.log_format = LogFormat::Text,
            FlagRole::Help
            | FlagRole::Bundle
            | FlagRole::Config
            | FlagRole::Resources
            | FlagRole::Other => {}
        }
    }
}

fn next_token<'a>(kind: DelegateKind, cursor: &mut Cursor<'a>, scope: Scope) -> Token<'a> {
    match kind {
        DelegateKind::Runc => goflag::next_token(cursor, scope),
        DelegateKind::Crun => getopt::next_token(cursor, scope),
        DelegateKind::Youki => clap4::next_token(cursor, scope),
    }
}

/// Returns the largest number of positional arguments that the delegate accepts: one, or two for `restore` in crun
/// (`crun_assert_n_args(…, 1, 2)`).
const fn max_positionals(kind: DelegateKind, verb: CreateVerb) -> usize {
    match (kind, verb) {
        (DelegateKind::Crun, CreateVerb::Restore) => 2,
        _ => 1,
    }
}

/// Returns the paths of the bundle and the config; `None` if the delegate will reject them.
///
/// runc treats an empty path as not given. crun gets ENOENT for it from realpath(3), and clap rejects it. crun compares
/// the config's path with `config.json` before it makes it absolute, so exactly `config.json` means the bundle's. To
/// runc it is a path like any other.
fn bundle_and_config(
    kind: DelegateKind,
    bundle: Option<&OsStr>,
    config: Option<&OsStr>,
) -> Option<(PathBuf, Option<PathBuf>)> {
    let given = |path: &&OsStr| !path.is_empty();
    let (bundle, config) = match kind {
        DelegateKind::Runc => (bundle.filter(given), config.filter(given)),
        DelegateKind::Crun | DelegateKind::Youki
            if [bundle, config]
                .iter()
                .flatten()
                .any(|path| path.is_empty()) =>
        {
            return None;
        }
        DelegateKind::Crun => (bundle, config.filter(|path| *path != "config.json")),
        DelegateKind::Youki => (bundle, config),
    };
    Some((
        bundle.map_or_else(|| ".".into(), PathBuf::from),
        config.map(PathBuf::from),
    ))
}

/// The `--help` and `--version` flags of a runc command line.
///
/// If any of them is `=false`, the call counts as a real one: inspecting a bundle needlessly is harmless.
#[derive(Default)]
struct HelpFlags {
    any_on: bool,
    any_off: bool,
}

impl HelpFlags {
    fn add(&mut self, value: Option<&OsStr>) {
        let off = value.is_some_and(|value| goflag::parse_bool(value.as_bytes()) == Some(false));
        self.any_off |= off;
        self.any_on |= !off;
    }

    /// Returns whether the caller asks only for help or the version.
    const fn is_requested(&self) -> bool {
        self.any_on && !self.any_off
    }
}
