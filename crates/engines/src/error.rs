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

/// The reason why a handler isn't installed or removed. If a variant contains a path, the path is its first field.
#[derive(Debug, thiserror::Error)]
pub enum HandlerError {
    /// A file has a syntax error. Contains the file, the line (from 1) and the parser's message.
    #[error("{file}:{1}: {2}; hint: correct it, or name another file with --config; unless it is a template, the daemon can't read it either", file = .0.display())]
    Syntax(PathBuf, usize, String),
    /// A file isn't UTF-8.
    #[error("{file}: isn't UTF-8; hint: check that it is the daemon's configuration", file = .0.display())]
    NotText(PathBuf),
    /// A path leads to a directory, or to something else that isn't a file.
    #[error("{file} isn't a file, so the daemon can't read it either; hint: name a file, or move it to where no pattern in `imports` matches it", file = .0.display())]
    NotAFile(PathBuf),
    /// A key's value has the wrong type. Contains the file, the key with dots and the right type.
    #[error("{file}: {key} isn't {2}; hint: correct it; the daemon can't read it either", file = .0.display(), key = key_or_file(.1))]
    Type(PathBuf, String, &'static str),
    /// containerd's configuration has version 1, in which plugins have other names.
    #[error(
        "{file}: is a configuration of version 1 (it has no `version`), and handlers can only be added to \
         version 2 and later; hint: convert it with `containerd config migrate` of containerd 1.7 or later; if it \
         only sets keys like `disabled_plugins`, add `version = 2` as the first line and write the full names of \
         plugins, \"io.containerd.grpc.v1.cri\" for \"cri\"", file = .0.display()
    )]
    Version1(PathBuf),
    /// containerd's configuration has a version that this program doesn't know. Contains the file and its version.
    #[error("{file}: version {1} is not supported, only 2, 3 and 4 are; hint: use a newer runcrust, or add the handler by hand", file = .0.display())]
    UnknownVersion(PathBuf, i64),
    /// The node has neither the engine's file nor its unit. Contains the file and the unit.
    #[error("there is neither {file} nor {1} on the node; hint: if the engine is installed, name its file with --config and its service with --unit", file = .0.display())]
    NoEngine(PathBuf, String),
    /// A runtime with the handler's name isn't runcrust. Contains the file, the name and the difference.
    #[error("{file}: handler {1} exists and isn't runcrust's: {2}; hint: choose another name with --handler", file = .0.display())]
    Foreign(PathBuf, String, String),
    /// The name can't be used in a `RuntimeClass`.
    #[error(
        "{0:?} is not a valid handler name; hint: use only lower-case letters, digits and `-`, as in the name of a RuntimeClass"
    )]
    Name(String),
    /// The path of the program is relative or isn't UTF-8, so a daemon would not find it.
    #[error("{file}: isn't an absolute path in UTF-8; hint: give --program the absolute path of the program on the node", file = .0.display())]
    ProgramPath(PathBuf),
    /// The program of the handler isn't on the node, so no container would start.
    #[error("{file} isn't a program on the node; hint: install runcrust there first, with --copy-to DIR, or name it with --program", file = .0.display())]
    NoProgram(PathBuf),
    #[error("--copy-to {file}: isn't an absolute path; hint: write the absolute path of a directory on the node", file = .0.display())]
    CopyTo(PathBuf),
    #[error("{file} is a directory; hint: name another directory with --copy-to", file = .0.display())]
    ProgramIsDirectory(PathBuf),
    /// A program that every container needs isn't on the node.
    #[error("the handler can't start a container: {0}")]
    Incomplete(String),
    /// Users other than root can change a file that a daemon reads or runs as root.
    #[error("{}{}", path_prefix(.0, .1), .1)]
    Untrusted(PathBuf, TrustError),
    /// The handler is the default runtime. Without the handler, containers that name none would not start, and neither
    /// would containerd's CRI plugin. Contains the file, the handler and the key.
    #[error("{file}: handler {1} is the default runtime; hint: change `{2}` first", file = .0.display())]
    Default(PathBuf, String, String),
    /// `imports` leads to too many files. Contains the first file and the limit.
    #[error("{file}: `imports` leads to more than {1} files; hint: check whether they import each other", file = .0.display())]
    Imports(PathBuf, usize),
    /// Another installation holds the node's lock for longer than the timeout.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// A file can't be read or replaced.
    #[error(transparent)]
    File(#[from] ForeignFileError),
    /// A system call failed. Contains the path, the call's name and the error.
    #[error("{1} {file}: {2}", file = .0.display())]
    Call(PathBuf, &'static str, #[source] io::Error),
    /// Live containers need the handler.
    #[error("{}; hint: stop these pods first (kubectl drain), and keep new ones off the node", .0.join(", "))]
    InUse(Vec<String>),
    /// The records of volumes can't be read.
    #[error("it is unknown whether volumes are in use: {0}")]
    Records(String),
    /// systemctl failed. Contains its arguments, its error and the unit.
    #[error("systemctl {0}: {1}; hint: restart {2} by hand")]
    Service(String, String, String),
}

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

/// Returns the beginning of the message about `path`: its name, unless the error is about the file itself and names it.
fn path_prefix(path: &Path, error: &TrustError) -> String {
    match error {
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
