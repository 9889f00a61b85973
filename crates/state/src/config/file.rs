//! Configuration files as texts: reading them, and parsing as much as a call needs.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

use super::{Config, ConfigError, DelegateSettings};
use crate::trust::{self, Flaw, Kind};
use crust_blockfs::bounded;

/// A configuration file that was read, and of which each call parses what it needs.
#[derive(Debug)]
pub struct ConfigFile {
    path: PathBuf,
    text: String,
}

impl ConfigFile {
    /// Reads the file for a program called `argv0`; `None` if there is none, so that the defaults apply.
    pub fn of(argv0: Option<&OsString>) -> Result<Option<Self>, ConfigError> {
        for path in Config::files(argv0) {
            if let Some(text) = read(&path)? {
                return Ok(Some(Self { path, text }));
            }
        }
        Ok(None)
    }

    /// Reads only the keys about the delegate. A mistake in another key's value must keep no container from being
    /// stopped.
    pub fn delegate(&self) -> Result<DelegateSettings, ConfigError> {
        DelegateSettings::read(&self.path, &self.text)
    }

    /// Reads all keys.
    pub fn config(&self) -> Result<Config, ConfigError> {
        Config::parse(&self.path, &self.text)
    }
}

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
    let real = match trust::way(path, Kind::File) {
        Ok(Some(real)) => real,
        Ok(None) => return Ok(None),
        Err(Flaw::Lstat { source, .. }) => return Err(failed(source)),
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
