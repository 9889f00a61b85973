//! What runcrust tells its `createContainer` hook of a mount (`mount_mode = "hook"`).

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A mount that was taken out of a container's config, for the hook to make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HookedMount {
    /// The volume's target path.
    pub volume: PathBuf,
    /// What of it; empty for all.
    pub subpath: PathBuf,
    /// Where in the container.
    pub destination: PathBuf,
    /// The mount's options, as they were in the config.
    pub options: Vec<String>,
    /// The mount has the option `ro`.
    pub read_only: bool,
}
