//! The path of `crust_ops`'s socket, for programs that don't read the rest of its configuration.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::config::{self, ConfigError};

/// The path of `crust_ops`'s configuration file.
pub const CONFIG_FILE: &str = "/etc/runcrust/crust_ops.toml";

/// The path of the socket that serves `crust.v1.Runtime`, unless configured otherwise.
pub const DEFAULT_SOCKET: &str = "/run/crust_ops/crust_ops.sock";

/// Returns the path of the socket that `crust_ops`'s configuration file names, or the default. Other keys of the file
/// are not checked here: `crust_ops` checks them.
pub fn socket_path() -> Result<PathBuf, ConfigError> {
    #[derive(Deserialize)]
    struct ListenKey {
        listen: Option<PathBuf>,
    }
    let file = Path::new(CONFIG_FILE);
    let configured = match config::read(file)? {
        Some(text) => config::parse::<ListenKey>(file, &text)?.listen,
        None => None,
    };
    Ok(configured.unwrap_or_else(|| DEFAULT_SOCKET.into()))
}
