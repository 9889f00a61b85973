//! Why a handler isn't installed or removed.

use std::io;
use std::path::{Path, PathBuf};

use crust_state::config::ConfigError;
use crust_state::crust::EntryError;
use crust_state::files::FileError;
use crust_state::foreign::ForeignFileError;
use crust_state::lock::LockError;
use crust_state::state_directory::StateError;
use crust_state::trust::Flaw;

/// Why a handler isn't installed or removed.
#[derive(Debug, thiserror::Error)]
pub enum HandlerError {
    /// A file isn't what its daemon reads.
    #[error("{}:{line}: {message}; hint: the daemon can't read it either, unless it is a template: correct it, or name another file with --config", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where, from 1.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// A file isn't text.
    #[error("{}: isn't UTF-8; hint: is it the daemon's configuration?", .0.display())]
    NotText(PathBuf),
    /// A directory, mostly.
    #[error("{} isn't a file, and the daemon fails to read it too; hint: name a file, or take it from where a pattern of `imports` finds it", .0.display())]
    NotAFile(PathBuf),
    /// A key isn't a table, or not of the type that its daemon reads.
    #[error("{}: {key} isn't {kind}; hint: the daemon can't read it either: correct it", path.display())]
    Kind {
        /// The file.
        path: PathBuf,
        /// The key, dotted.
        key: String,
        /// What it should be.
        kind: &'static str,
    },
    /// containerd's first form, which knows plugins by other names.
    #[error(
        "{}: is a configuration of version 1 (it has no `version`), and handlers are added to \
         version 2 and later; hint: `containerd config migrate` of containerd 1.7 and later prints \
         it anew; where only `disabled_plugins` and the like are set, add a first line `version = 2` \
         and write plugins' full names, \"io.containerd.grpc.v1.cri\" for \"cri\"", .0.display()
    )]
    Version1(PathBuf),
    /// A form that is newer than this program.
    #[error("{}: version {version} isn't one of 2, 3 and 4, which are known; hint: use a newer runcrust, or add the handler by hand", path.display())]
    UnknownVersion {
        /// The file.
        path: PathBuf,
        /// What it says.
        version: i64,
    },
    /// Nobody would read what is written.
    #[error("there is neither {} nor {unit} on the node; hint: is the engine there? name its file by --config, and its service by --unit", path.display())]
    NoEngine {
        /// The engine's unit.
        unit: String,
        /// Its file.
        path: PathBuf,
    },
    /// The name is taken.
    #[error("{}: handler {handler} is there and isn't runcrust's: {what}; hint: choose another name with --handler", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The handler's name.
        handler: String,
        /// What it is instead.
        what: String,
    },
    /// A name that no runtime class could have.
    #[error(
        "{0:?} can't be a handler's name: small letters, digits and `-` only, as in a RuntimeClass"
    )]
    Name(String),
    /// A handler's program must be found by a daemon.
    #[error("{}: isn't an absolute path in UTF-8; hint: --program takes what the daemon is to run", .0.display())]
    ProgramPath(PathBuf),
    /// Every container would fail to start.
    #[error("{} isn't a program on the node; hint: install runcrust there first, with --copy-to DIR, or name it with --program", .0.display())]
    NoProgram(PathBuf),
    /// Where it is must be the same to the daemon.
    #[error("--copy-to {}: isn't an absolute path; hint: name a directory of the node's", .0.display())]
    CopyTo(PathBuf),
    /// Nothing can be put there.
    #[error("{} is a directory; hint: name another directory with --copy-to", .0.display())]
    ProgramPlace(PathBuf),
    /// A program that every container on the node needs.
    #[error("the handler can't start a container: {0}")]
    Incomplete(String),
    /// Who can change it is root.
    #[error("{}{flaw}", on_the_way(path, flaw))]
    Untrusted {
        /// What a daemon would read or run.
        path: PathBuf,
        /// What is wrong on the way to it.
        flaw: Flaw,
    },
    /// Containers that name no handler would not start, and containerd's CRI not at all.
    #[error("{}: handler {handler} is the default runtime; hint: change `{key}` first", path.display())]
    Default {
        /// The file that says so.
        path: PathBuf,
        /// The handler's name.
        handler: String,
        /// The key, dotted.
        key: String,
    },
    /// Files import each other by more and more names.
    #[error("{}: more than {most} files by `imports`; hint: do they import each other?", path.display())]
    Imports {
        /// The first file.
        path: PathBuf,
        /// As many are read.
        most: usize,
    },
    /// Another installation, which takes long.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// A file can't be read or replaced.
    #[error(transparent)]
    File(#[from] ForeignFileError),
    /// A system call.
    #[error("{call} {}: {source}", path.display())]
    Call {
        /// Its name.
        call: &'static str,
        /// Of what.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// Somebody needs the handler.
    #[error("{}; hint: end these pods first (kubectl drain), and keep new ones away", .0.join(", "))]
    InUse(Vec<String>),
    /// Whether somebody needs it can't be told.
    #[error("it can't be told whether volumes are in use: {0}")]
    Records(String),
    /// The service manager.
    #[error("systemctl {arguments}: {reason}; hint: restart {unit} by hand")]
    Service {
        /// What it was asked.
        arguments: String,
        /// What it answered.
        reason: String,
        /// The daemon.
        unit: String,
    },
}

impl HandlerError {
    pub(crate) fn untrusted(path: impl Into<PathBuf>, flaw: Flaw) -> Self {
        let path = path.into();
        Self::Untrusted { path, flaw }
    }

    pub(crate) fn call(
        call: &'static str,
        path: impl Into<PathBuf>,
        source: impl Into<io::Error>,
    ) -> Self {
        let (path, source) = (path.into(), source.into());
        Self::Call { call, path, source }
    }
}

/// What is found on the way to a file names the file; what is found at its end says which it is itself.
fn on_the_way(path: &Path, flaw: &Flaw) -> String {
    match flaw {
        Flaw::Writable { place, .. } | Flaw::Lstat { place, .. } if place == path => String::new(),
        _ => format!("{}: ", path.display()),
    }
}

impl From<ConfigError> for HandlerError {
    fn from(error: ConfigError) -> Self {
        Self::Records(error.to_string())
    }
}

impl From<EntryError> for HandlerError {
    fn from(error: EntryError) -> Self {
        Self::Records(error.to_string())
    }
}

impl From<FileError> for HandlerError {
    fn from(error: FileError) -> Self {
        Self::Records(error.to_string())
    }
}

impl From<StateError> for HandlerError {
    fn from(error: StateError) -> Self {
        Self::Records(error.to_string())
    }
}
