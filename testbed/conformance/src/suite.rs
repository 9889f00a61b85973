//! The runtime under test.

use std::path::PathBuf;
use std::time::Duration;

/// The runtime under test, and the directories that it reads.
#[derive(Debug, Clone)]
pub(crate) struct Suite {
    pub(crate) runtime: PathBuf,
    pub(crate) flags: Vec<String>,
    pub(crate) crust_root: PathBuf,
    pub(crate) kubelet_dir: PathBuf,
    /// The timeout of each command of the runtime, and of each expected effect.
    pub(crate) timeout: Duration,
    /// The share for requirements about network volumes, if the caller provides one.
    pub(crate) share: Option<String>,
}

impl Suite {
    /// Returns the share. Requirements about network volumes are only selected if there is one.
    pub(crate) fn share(&self) -> &str {
        self.share.as_deref().expect("SHARE is set")
    }
}
