//! Parses the caller's command line with the delegate's grammar (docs/callers.md).
//!
//! Only `create`, `run` and `restore` create a container, and only their flags are parsed besides the global ones
//! (and those of crun's `update`). The subcommand is found by parsing the flags before it like the delegate does. A
//! search for the word `create` would also find a container of that name (`state create`).
//!
//! A wrong parse would start a container without its volumes, and no error would be reported. The flag tables are
//! therefore a union over the delegate's versions, and a command line that two versions parse differently is
//! refused. A command line that every version rejects is passed through, so that the caller sees the delegate's own
//! error.

mod clap4;
mod command;
mod cursor;
mod error;
mod getopt;
mod goflag;
mod grammar;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod properties;
#[cfg(test)]
mod tests;

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use crust_state::DelegateKind;

pub(crate) use error::{Ambiguity, InvocationError};

/// Format of the delegate's log file (`--log-format`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum LogFormat {
    /// The default of every delegate.
    #[default]
    Text,
    /// One JSON object per line. containerd and conmon ask for it.
    Json,
}

/// The global flags that runcrust itself needs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct GlobalFlags {
    /// `--root`, as given. Together with the id it identifies a container.
    pub(crate) root: Option<OsString>,
    /// `--log`, as given. crun's value may have a prefix such as `file:`, see [`report`](crate::report).
    pub(crate) log: Option<PathBuf>,
    pub(crate) log_format: LogFormat,
}

/// A subcommand that creates a container from a bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CreateVerb {
    Create,
    Run,
    Restore,
}

impl CreateVerb {
    const ALL: [Self; 3] = [Self::Create, Self::Run, Self::Restore];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Run => "run",
            Self::Restore => "restore",
        }
    }

    fn from_name(name: &OsStr) -> Option<Self> {
        Self::ALL.into_iter().find(|verb| name == verb.name())
    }
}

/// One `create`, `run` or `restore`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CreateCommand {
    pub(crate) verb: CreateVerb,
    /// The bundle as given, relative to the caller's working directory; `.` if none was given.
    pub(crate) bundle: PathBuf,
    /// A config outside the bundle (crun's `-f`, `--config` of runc's main branch), relative to the caller's working
    /// directory. `None` means the bundle's `config.json`.
    pub(crate) config: Option<PathBuf>,
    pub(crate) id: OsString,
}

/// crun's `update` with a resources file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UpdateCommand {
    /// The resources file; `-` is standard input.
    pub(crate) resources: OsString,
    pub(crate) id: OsString,
    /// Index in argv of the first argument after the last flag: the id, or `--`.
    pub(crate) after_flags: usize,
}

/// A subcommand of runcrust itself. No delegate has a subcommand with one of these names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OwnSubcommand {
    /// `crust …`, the CLI for volumes.
    Crust,
    Install,
    Uninstall,
}

impl OwnSubcommand {
    const ALL: [Self; 3] = [Self::Crust, Self::Install, Self::Uninstall];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Crust => "crust",
            Self::Install => "install",
            Self::Uninstall => "uninstall",
        }
    }

    fn from_name(name: &OsStr) -> Option<Self> {
        Self::ALL.into_iter().find(|own| name == own.name())
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Command {
    /// Creates a container: its bundle must be inspected.
    Create(CreateCommand),
    /// A subcommand of runcrust itself, and its index in argv.
    Own(OwnSubcommand, usize),
    /// Changes a container's resources.
    Update(UpdateCommand),
    /// Anything else. The delegate gets it unchanged.
    PassThrough,
}

/// A parsed command line.
#[derive(Debug)]
pub(crate) struct Invocation {
    /// The global flags. If the command line is refused, these are the flags before the ambiguous argument, so that
    /// the error goes to the right log.
    pub(crate) globals: GlobalFlags,
    /// The command, or why the command line is refused.
    pub(crate) command: Result<Command, InvocationError>,
}

/// Parses `argv`, which includes `argv[0]`, with the grammar of this kind of delegate.
pub(crate) fn parse(kind: DelegateKind, argv: &[OsString]) -> Invocation {
    let mut globals = GlobalFlags::default();
    let command = command::parse(kind, argv, &mut globals);
    Invocation { globals, command }
}
