//! The errors of installing or removing a handler.

use std::io;
use std::path::{Path, PathBuf};

use crust_state::config::ConfigError;
use crust_state::crust::EntryError;
use crust_state::files::FileError;
use crust_state::foreign::ForeignFileError;
use crust_state::lock::LockError;
use crust_state::state_directory::StateError;
use crust_state::trust::TrustError;

/// The reason why a handler isn't installed or removed. A path comes first, if there is one.
#[derive(Debug, thiserror::Error)]
pub enum HandlerError {
    /// A file has a syntax error: the file, the line (from 1), the parser's message.
    #[error("{file}:{1}: {2}; hint: the daemon can't read it either, unless it is a template: correct it, or name another file with --config", file = .0.display())]
    Syntax(PathBuf, usize, String),
    /// A file isn't text.
    #[error("{file}: isn't UTF-8; hint: is it the daemon's configuration?", file = .0.display())]
    NotText(PathBuf),
    /// A directory or another thing that isn't a file.
    #[error("{file} isn't a file, and the daemon fails to read it too; hint: name a file, or take it from where a pattern of `imports` finds it", file = .0.display())]
    NotAFile(PathBuf),
    /// A key's value has the wrong type: the file, the key with dots, the right type.
    #[error("{file}: {key} isn't {2}; hint: the daemon can't read it either: correct it", file = .0.display(), key = key_or_file(.1))]
    Type(PathBuf, String, &'static str),
    /// containerd's oldest form, which has other names for plugins.
    #[error(
        "{file}: is a configuration of version 1 (it has no `version`), and handlers are added to \
         version 2 and later; hint: `containerd config migrate` of containerd 1.7 and later prints \
         it anew; where only `disabled_plugins` and the like are set, add a first line `version = 2` \
         and write plugins' full names, \"io.containerd.grpc.v1.cri\" for \"cri\"", file = .0.display()
    )]
    Version1(PathBuf),
    /// A form that is newer than this program: the file, its version.
    #[error("{file}: version {1} isn't one of 2, 3 and 4, which are known; hint: use a newer runcrust, or add the handler by hand", file = .0.display())]
    UnknownVersion(PathBuf, i64),
    /// Nothing shows that the engine is on the node: its file, its unit.
    #[error("there is neither {file} nor {1} on the node; hint: is the engine there? name its file by --config, and its service by --unit", file = .0.display())]
    NoEngine(PathBuf, String),
    /// A runtime of the handler's name isn't runcrust: the file, the name, what it is instead.
    #[error("{file}: handler {1} is there and isn't runcrust's: {2}; hint: choose another name with --handler", file = .0.display())]
    Foreign(PathBuf, String, String),
    /// The name can't be used in a `RuntimeClass`.
    #[error(
        "{0:?} can't be a handler's name: small letters, digits and `-` only, as in a RuntimeClass"
    )]
    Name(String),
    /// A daemon would not find the program.
    #[error("{file}: isn't an absolute path in UTF-8; hint: --program takes what the daemon is to run", file = .0.display())]
    ProgramPath(PathBuf),
    /// No container would start.
    #[error("{file} isn't a program on the node; hint: install runcrust there first, with --copy-to DIR, or name it with --program", file = .0.display())]
    NoProgram(PathBuf),
    /// A daemon would look for the directory elsewhere.
    #[error("--copy-to {file}: isn't an absolute path; hint: name a directory of the node's", file = .0.display())]
    CopyTo(PathBuf),
    /// A program can't be copied over a directory.
    #[error("{file} is a directory; hint: name another directory with --copy-to", file = .0.display())]
    ProgramPlace(PathBuf),
    /// A program that every container on the node needs isn't there.
    #[error("the handler can't start a container: {0}")]
    Incomplete(String),
    /// Others than root can change a file that root's daemon reads or runs.
    #[error("{}{}", on_the_way(.0, .1), .1)]
    Untrusted(PathBuf, TrustError),
    /// Containers that name no handler would not start, and neither would containerd's CRI plugin: the file, the
    /// handler, the key.
    #[error("{file}: handler {1} is the default runtime; hint: change `{2}` first", file = .0.display())]
    Default(PathBuf, String, String),
    /// Files import each other by more and more names: the first file, how many are read.
    #[error("{file}: more than {1} files by `imports`; hint: do they import each other?", file = .0.display())]
    Imports(PathBuf, usize),
    /// Another installation takes longer than the timeout.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// A file can't be read or replaced.
    #[error(transparent)]
    File(#[from] ForeignFileError),
    /// A system call failed: the path, its name, the error.
    #[error("{1} {file}: {2}", file = .0.display())]
    Call(PathBuf, &'static str, #[source] io::Error),
    /// Live containers need the handler.
    #[error("{}; hint: end these pods first (kubectl drain), and keep new ones away", .0.join(", "))]
    InUse(Vec<String>),
    /// The records of volumes can't be read.
    #[error("it can't be told whether volumes are in use: {0}")]
    Records(String),
    /// systemctl failed: its arguments, why, the unit.
    #[error("systemctl {0}: {1}; hint: restart {2} by hand")]
    Service(String, String, String),
}

/// The result of what fails with a [`HandlerError`].
pub type Result<T, E = HandlerError> = std::result::Result<T, E>;

impl HandlerError {
    pub(crate) fn call(
        call: &'static str,
        path: impl Into<PathBuf>,
        source: impl Into<io::Error>,
    ) -> Self {
        Self::Call(path.into(), call, source.into())
    }
}

fn key_or_file(key: &str) -> &str {
    if key.is_empty() { "the file" } else { key }
}

/// Returns the path of a file that a flaw on the way to it concerns. A flaw of the file itself names it already.
fn on_the_way(path: &Path, flaw: &TrustError) -> String {
    match flaw {
        TrustError::Untrusted { path: part, .. } | TrustError::Lstat { path: part, .. }
            if part == path =>
        {
            String::new()
        }
        _ => format!("{}: ", path.display()),
    }
}

macro_rules! records {
    ($($error:ty),+) => {
        $(impl From<$error> for HandlerError {
            fn from(error: $error) -> Self {
                Self::Records(error.to_string())
            }
        })+
    };
}

records!(ConfigError, EntryError, FileError, StateError);
