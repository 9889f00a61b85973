//! The caller's command line, read by the delegate's own grammar (docs/callers.md).
//!
//! Only `create`, `run` and `restore` make a container, and only for them is anything but the
//! global flags read. The word is found by walking the flags as the delegate does; looking for
//! `create` anywhere would trip over a container that is called so (`state create`).
//!
//! A misparse is a silent bypass, so the tables are a union over the delegate's versions, and
//! what two versions read in different ways is refused. What the delegate itself is sure to
//! reject is handed over, so that the caller sees the delegate's own text.

mod clap4;
mod error;
mod getopt;
mod goflag;
mod grammar;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod properties;
mod read;
mod scan;
#[cfg(test)]
mod tests;

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use crust_state::DelegateKind;

pub(crate) use error::{Ambiguity, InvocationError};

/// The form of the lines in the file that `--log` names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum LogFormat {
    /// The default of both delegates.
    #[default]
    Text,
    /// One JSON object a line; what containerd and conmon ask for.
    Json,
}

/// The global flags that runcrust itself needs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Globals {
    /// `--root`, as given: with the id it names a container.
    pub(crate) root: Option<OsString>,
    /// `--log`, as given; `report` knows the forms it may have.
    pub(crate) log: Option<PathBuf>,
    /// `--log-format`.
    pub(crate) log_format: LogFormat,
}

/// A subcommand that makes a container out of a bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    /// `create`
    Create,
    /// `run`
    Run,
    /// `restore`
    Restore,
}

impl Verb {
    const ALL: [Self; 3] = [Self::Create, Self::Run, Self::Restore];

    /// The word on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Run => "run",
            Self::Restore => "restore",
        }
    }

    fn from_word(word: &OsStr) -> Option<Self> {
        Self::ALL.into_iter().find(|verb| word == verb.name())
    }
}

/// One `create`, `run` or `restore`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Start {
    /// One of the three verbs.
    pub(crate) verb: Verb,
    /// The bundle as given, relative to the caller's directory; `.` when there was none.
    pub(crate) bundle: PathBuf,
    /// Another file than the bundle's `config.json` (crun's `-f`, the `--config` of runc's main),
    /// relative to the caller's directory, not to the bundle.
    pub(crate) config: Option<PathBuf>,
    /// The container's id.
    pub(crate) id: OsString,
}

/// crun's `update` with a file of resources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Update {
    /// The file; `-` is standard input.
    pub(crate) resources: OsString,
    /// The container's id.
    pub(crate) id: OsString,
    /// The index in argv of what comes after the last flag: the id, or `--`.
    pub(crate) after_flags: usize,
}

/// A subcommand that neither delegate has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OwnVerb {
    /// `crust …`, the CLI of volumes.
    Crust,
    /// `install …`
    Install,
    /// `uninstall …`
    Uninstall,
}

impl OwnVerb {
    const ALL: [Self; 3] = [Self::Crust, Self::Install, Self::Uninstall];

    /// The word on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Crust => "crust",
            Self::Install => "install",
            Self::Uninstall => "uninstall",
        }
    }

    fn from_word(word: &OsStr) -> Option<Self> {
        Self::ALL.into_iter().find(|own| word == own.name())
    }
}

/// The command of a call, and so what is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Command {
    /// A container is about to be made: look at its bundle.
    Start(Start),
    /// One of runcrust's own words, and its index in argv.
    Own(OwnVerb, usize),
    /// A container's resources change.
    Update(Update),
    /// Nothing that could make a container: the delegate gets it untouched.
    PassOn,
}

/// A command line, read.
#[derive(Debug)]
pub(crate) struct Invocation {
    /// The global flags seen, those before a mistake too: its report goes to their log.
    pub(crate) globals: Globals,
    /// The command, or the error of a command line that is refused.
    pub(crate) command: Result<Command, InvocationError>,
}

/// Reads `argv` (with `argv[0]`) by the grammar of this kind of delegate.
pub(crate) fn parse(kind: DelegateKind, argv: &[OsString]) -> Invocation {
    let mut globals = Globals::default();
    let command = read::command(kind, argv, &mut globals);
    Invocation { globals, command }
}
