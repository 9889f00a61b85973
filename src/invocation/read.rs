//! From the steps of a walk to a command.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use super::grammar::{Flag, FlagRole, Scope};
use super::scan::{self, Token, Walk};
use super::{
    Ambiguity, Command, DelegateKind, Globals, InvocationError, LogFormat, OwnVerb, Start, Update,
    Verb, clap4, getopt, goflag,
};

pub(super) fn command(
    kind: DelegateKind,
    argv: &[OsString],
    globals: &mut Globals,
) -> Result<Command, InvocationError> {
    let mut walk = Walk::new(argv);
    let mut help = Help::default();
    let at = loop {
        match step(kind, &mut walk, Scope::Global) {
            Token::Flag(flag, value) => match flag.role {
                // runc reads the rest first; the others print and exit.
                FlagRole::Help if kind != DelegateKind::Runc => return Ok(Command::PassOn),
                FlagRole::Help => help.note(value),
                _ => globals.set(flag, value),
            },
            Token::Word(at) => break at,
            Token::End | Token::Rejected => return Ok(Command::PassOn),
            Token::Ambiguity(at, doubt) => return doubtful_global(argv, at, doubt),
        }
    };
    let Some(word) = argv.get(at) else {
        return Ok(Command::PassOn);
    };
    if help.wanted() {
        return Ok(Command::PassOn);
    }
    if let Some(own) = OwnVerb::from_word(word) {
        return Ok(Command::Own(own, at));
    }
    match Verb::from_word(word) {
        Some(verb) => read_start(kind, verb, walk, globals),
        None if kind == DelegateKind::Crun && word == "update" => Ok(read_update(walk)),
        None => Ok(Command::PassOn),
    }
}

/// Only crun's forgets a rule. What isn't understood is between the caller and crun: no container
/// comes of it.
fn read_update(mut walk: Walk<'_>) -> Command {
    let (mut resources, mut id) = (None, None);
    let mut after_flags = 0;
    loop {
        match getopt::step(&mut walk, Scope::Update) {
            Token::Flag(flag, _) if flag.role == FlagRole::Help => return Command::PassOn,
            Token::Flag(flag, value) => {
                if flag.role == FlagRole::Resources {
                    resources = value;
                }
                after_flags = walk.next_index();
            }
            Token::Word(at) if id.is_none() => id = walk.argument(at),
            Token::End => break,
            Token::Word(_) | Token::Rejected | Token::Ambiguity(..) => return Command::PassOn,
        }
    }
    match (resources, id) {
        (Some(resources), Some(id)) => Command::Update(Update {
            resources: resources.to_os_string(),
            id: id.to_os_string(),
            after_flags,
        }),
        _ => Command::PassOn,
    }
}

/// A global flag nobody knows may or may not take the next argument: it is an error only where
/// a verb comes after it; without one no reading makes a container.
fn doubtful_global(
    argv: &[OsString],
    at: usize,
    doubt: Ambiguity,
) -> Result<Command, InvocationError> {
    let later = argv.get(at + 1..).unwrap_or_default();
    match later.iter().find_map(|word| Verb::from_word(word)) {
        Some(verb) => {
            let argument = scan::shown(argv, at);
            Err(InvocationError::Global {
                argument,
                verb: verb.name(),
                doubt,
            })
        }
        None => Ok(Command::PassOn),
    }
}

fn read_start(
    kind: DelegateKind,
    verb: Verb,
    mut walk: Walk<'_>,
    globals: &mut Globals,
) -> Result<Command, InvocationError> {
    let from = walk.next_index();
    let mut help = Help::default();
    let (mut bundle, mut config, mut id, mut words) = (None, None, None, 0_usize);
    let mut rejected = false;
    loop {
        match step(kind, &mut walk, Scope::Verb(verb)) {
            Token::Flag(flag, value) => match flag.role {
                FlagRole::Help if kind != DelegateKind::Runc => return Ok(Command::PassOn),
                FlagRole::Help => help.note(value),
                FlagRole::Bundle => bundle = value,
                FlagRole::Config => config = value,
                _ => globals.set(flag, value),
            },
            Token::Word(at) => {
                words += 1;
                id = id.or_else(|| walk.argument(at));
            }
            Token::End => break,
            Token::Rejected if kind != DelegateKind::Runc => return Ok(Command::PassOn),
            // Not by every version, if there is more that they read in different ways.
            Token::Rejected => rejected = true,
            Token::Ambiguity(at, doubt) => return doubtful_start(verb, walk.argv(), at, doubt),
        }
    }
    if help.wanted() || words > most_words(kind, verb) {
        return Ok(Command::PassOn);
    }
    let Some(id) = id.filter(|_| !rejected) else {
        return without_id(kind, verb, walk.argv(), from);
    };
    let Some((bundle, config)) = paths(kind, bundle, config) else {
        return Ok(Command::PassOn);
    };
    Ok(Command::Start(Start {
        verb,
        bundle,
        config,
        id: id.to_os_string(),
    }))
}

fn doubtful_start(
    verb: Verb,
    argv: &[OsString],
    at: usize,
    doubt: Ambiguity,
) -> Result<Command, InvocationError> {
    Err(InvocationError::Start {
        argument: scan::shown(argv, at),
        verb: verb.name(),
        doubt,
    })
}

/// Nothing that can be an id, or a flag that can't be: the delegate has its own words for that,
/// unless it finds an id among the flags.
fn without_id(
    kind: DelegateKind,
    verb: Verb,
    argv: &[OsString],
    from: usize,
) -> Result<Command, InvocationError> {
    match goflag::end_of_flags(argv, from) {
        Some(at) if kind == DelegateKind::Runc => {
            doubtful_start(verb, argv, at, Ambiguity::Separator)
        }
        _ => Ok(Command::PassOn),
    }
}

impl Globals {
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

fn step<'a>(kind: DelegateKind, walk: &mut Walk<'a>, scope: Scope) -> Token<'a> {
    match kind {
        DelegateKind::Runc => goflag::step(walk, scope),
        DelegateKind::Crun => getopt::step(walk, scope),
        DelegateKind::Youki => clap4::step(walk, scope),
    }
}

/// runc: exactly one argument. crun: `crun_assert_n_args(…, 1, 1)`, of `restore` `1, 2`.
const fn most_words(kind: DelegateKind, verb: Verb) -> usize {
    match (kind, verb) {
        (DelegateKind::Crun, Verb::Restore) => 2,
        _ => 1,
    }
}

/// Bundle and configuration; `None` where the delegate will refuse them.
///
/// Empty is as if not given to runc, ENOENT from realpath(3) to crun, and an error to clap. crun compares with
/// `config.json` before it makes the path absolute: that very word means the bundle's. To
/// runc it is a path like any other.
fn paths(
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

/// Whether help (or, among the globals, the version) is all that is asked for. Where one of
/// several mentions says no, the call counts as a real one: looking at a bundle too many is
/// harmless.
#[derive(Default)]
struct Help {
    yes: bool,
    no: bool,
}

impl Help {
    fn note(&mut self, value: Option<&OsStr>) {
        let off = value.is_some_and(|value| goflag::boolean(value.as_bytes()) == Some(false));
        self.no |= off;
        self.yes |= !off;
    }

    const fn wanted(&self) -> bool {
        self.yes && !self.no
    }
}
