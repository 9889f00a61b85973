//! The container's state on standard input (runtime-spec, "State").

use std::io::Read;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::Deserialize;

/// What the hooks need of it.
#[derive(Debug, Deserialize)]
pub(crate) struct ContainerState {
    /// The container's id.
    pub(crate) id: String,
    /// Its first process in the host's pid namespace; none once it has ended.
    #[serde(default)]
    pub(crate) pid: i32,
    /// The bundle's directory.
    pub(crate) bundle: PathBuf,
}

/// What the hooks need of a bundle's config.
#[derive(Debug, Deserialize)]
struct BundleConfig {
    root: Root,
}

#[derive(Debug, Deserialize)]
struct Root {
    path: PathBuf,
}

impl ContainerState {
    pub(crate) fn read() -> Result<Self> {
        let mut text = String::new();
        // A state has a few hundred bytes, and annotations of 256 KiB at most (Kubernetes).
        let limit = 4 << 20;
        std::io::stdin()
            .take(limit)
            .read_to_string(&mut text)
            .context("read state from stdin")?;
        serde_json::from_str(&text).context("the state on stdin")
    }

    /// The real path of the root file system, as mountinfo shows it.
    pub(crate) fn root_file_system(&self) -> Result<PathBuf> {
        let path = self.bundle.join("config.json");
        let text = std::fs::read(&path).with_context(|| format!("open {}", path.display()))?;
        let config: BundleConfig =
            serde_json::from_slice(&text).with_context(|| path.display().to_string())?;
        let root = self.bundle.join(config.root.path);
        root.canonicalize()
            .with_context(|| format!("realpath {}", root.display()))
    }
}
