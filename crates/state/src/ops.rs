//! The socket of `crust_ops`, for programs that don't read the rest of its configuration.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::config::{self, ConfigError};

/// The path of its configuration.
pub const CONFIG: &str = "/etc/runcrust/crust_ops.toml";

/// The socket of `crust.v1.Runtime` where the configuration names none.
pub const LISTEN: &str = "/run/crust_ops/crust_ops.sock";

/// The socket, by the configuration that is there; whatever else that says is the daemon's to check.
pub fn listen() -> Result<PathBuf, ConfigError> {
    #[derive(Deserialize)]
    struct Only {
        listen: Option<PathBuf>,
    }
    let file = Path::new(CONFIG);
    let named = match config::read(file)? {
        Some(text) => config::parse::<Only>(file, &text)?.listen,
        None => None,
    };
    Ok(named.unwrap_or_else(|| LISTEN.into()))
}
