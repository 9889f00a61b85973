//! Reads configuration files, and parses them.

use std::io;
use std::path::Path;

use serde::de::DeserializeOwned;

use super::ConfigError;
use crate::trust::{self, PathKind, TrustError};
use crust_blockfs::bounded;

/// The size limit of a configuration in bytes.
pub(super) const MOST_BYTES: u64 = 1024 * 1024;

/// Reads a file's text; `None` if there is no file. Only root may own and write the file and all that leads to it.
pub fn read(path: &Path) -> Result<Option<String>, ConfigError> {
    let failed = |source| ConfigError::Read {
        path: path.to_owned(),
        source,
    };
    // Many nodes have no directory for it: one call says so, where the way to the file is several. (One that is
    // there has to be root's, or another could take the file away.)
    let directory = path.parent().unwrap_or(path);
    if matches!(directory.symlink_metadata(), Err(error) if error.kind() == io::ErrorKind::NotFound)
    {
        return Ok(None);
    }
    let real = match trust::resolve_existing(path, PathKind::File) {
        Ok(Some(real)) => real,
        Ok(None) => return Ok(None),
        Err(TrustError::Lstat { source, .. }) => return Err(failed(source)),
        Err(flaw) => return Err(ConfigError::Untrusted(flaw)),
    };
    match bounded::read_to_string(&real, MOST_BYTES) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

/// Parses a file's text as a program's settings.
pub fn parse<T: DeserializeOwned>(path: &Path, text: &str) -> Result<T, ConfigError> {
    toml::from_str(text).map_err(|error| syntax(path, text, &error))
}

/// Returns the error for a file that has to exist and doesn't.
#[must_use]
pub fn missing(path: &Path) -> ConfigError {
    ConfigError::Read {
        path: path.to_owned(),
        source: rustix::io::Errno::NOENT.into(),
    }
}

fn syntax(path: &Path, text: &str, error: &toml::de::Error) -> ConfigError {
    let before = error.span().map_or("", |span| &text[..span.start]);
    let line = 1 + before.matches('\n').count();
    ConfigError::Syntax {
        path: path.to_owned(),
        message: format!("line {line}: {}", error.message()),
    }
}
