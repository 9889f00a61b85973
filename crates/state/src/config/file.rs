//! A configuration as it was read, of which each call takes what it needs.

use std::ffi::OsString;
use std::path::PathBuf;

use super::{Config, ConfigError, DelegateSettings, read};

/// The text of a configuration file.
#[derive(Debug)]
pub struct ConfigFile {
    path: PathBuf,
    text: String,
}

impl ConfigFile {
    /// Reads the one for a program called `argv0`; `None` where there is none, and the defaults count.
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

    /// All of it.
    pub fn config(&self) -> Result<Config, ConfigError> {
        Config::parse(&self.path, &self.text)
    }
}
