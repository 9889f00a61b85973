//! Reads and parses configuration files.

use std::io;
use std::path::Path;

use serde::de::DeserializeOwned;

use super::ConfigError;
use crate::trust::{self, PathKind, TrustError};
use crust_blockfs::bounded;

/// The size limit of a configuration file in bytes.
pub(super) const MAX_BYTES: u64 = 1024 * 1024;

/// Reads the text of a configuration file. Returns `None` if the file doesn't exist. Fails if a user other than
/// root can change the file, or a directory or link of its path.
pub fn read(path: &Path) -> Result<Option<String>, ConfigError> {
    let failed = |source| ConfigError::Read {
        path: path.to_owned(),
        source,
    };
    // Many nodes don't have the directory. One call shows that, while resolving the path takes several calls. A
    // directory that exists is checked below even if the file doesn't exist, because users other than root could have
    // removed the file.
    let directory = path.parent().unwrap_or(path);
    if matches!(directory.symlink_metadata(), Err(error) if error.kind() == io::ErrorKind::NotFound)
    {
        return Ok(None);
    }
    let real = match trust::resolve_existing(path, PathKind::File) {
        Ok(Some(real)) => real,
        Ok(None) => return Ok(None),
        Err(TrustError::Lstat { source, .. }) => return Err(failed(source)),
        Err(error) => return Err(ConfigError::Untrusted(error)),
    };
    match bounded::read_to_string(&real, MAX_BYTES) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

/// Parses the text of a configuration file. `path` is for errors.
pub fn parse<T: DeserializeOwned>(path: &Path, text: &str) -> Result<T, ConfigError> {
    toml::from_str(text).map_err(|error| syntax(path, text, &error))
}

/// Returns the error for a file that doesn't exist.
#[must_use]
pub fn not_found(path: &Path) -> ConfigError {
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
