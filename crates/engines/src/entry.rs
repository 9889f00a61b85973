//! Whether an entry of the handler's name is runcrust's.

use std::path::{Path, PathBuf};

use crate::error::HandlerError;

/// A handler that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handler {
    /// The file that has it.
    pub file: PathBuf,
    /// Its name.
    pub name: String,
    /// What it runs.
    pub program: PathBuf,
}

impl Handler {
    pub(crate) fn new(file: &Path, name: &str, program: &str) -> Self {
        Self {
            file: file.to_owned(),
            name: name.to_owned(),
            program: program.into(),
        }
    }

    /// Whether it runs runcrust, by the program's name alone.
    #[must_use]
    pub fn is_runcrust(&self) -> bool {
        is_runcrust(&self.program)
    }
}

/// What a handler is to be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    /// Its name.
    pub(crate) handler: &'a str,
    /// What it runs.
    pub(crate) program: &'a str,
    /// Whether the program's delegate is crun.
    pub(crate) is_crun: bool,
    /// Whether its containers' cgroups are systemd's, where that is asked for.
    pub(crate) systemd_cgroup: Option<bool>,
}

/// What of a handler is to be removed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unwanted<'a> {
    /// Its name.
    pub(crate) handler: &'a str,
    /// A program that is runcrust whatever its name.
    pub(crate) program: Option<&'a str>,
}

impl Wanted<'_> {
    /// Whether a program is runcrust, perhaps an older one at another place.
    pub(crate) fn is_ours(&self, program: &str) -> bool {
        is_ours(program, Some(self.program))
    }
}

impl Unwanted<'_> {
    /// Whether a program is runcrust.
    pub(crate) fn is_ours(&self, program: &str) -> bool {
        is_ours(program, self.program)
    }
}

/// Fails where `default`, what a file's `key` says, is the handler: whoever names none gets it.
pub(crate) fn refuse_default(
    path: &Path,
    key: &[&str],
    default: Option<&str>,
    handler: &str,
) -> Result<(), HandlerError> {
    if default != Some(handler) {
        return Ok(());
    }
    Err(HandlerError::Default {
        path: path.to_owned(),
        handler: handler.to_owned(),
        key: key.join("."),
    })
}

/// runcrust is called by several names, and its name selects its configuration.
fn is_runcrust(program: &Path) -> bool {
    let name = program.file_name();
    name.is_some_and(|name| name.as_encoded_bytes().starts_with(b"runcrust"))
}

fn is_ours(program: &str, own: Option<&str>) -> bool {
    is_runcrust(Path::new(program)) || own == Some(program)
}
