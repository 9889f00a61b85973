//! The container's state on standard input (runtime-spec, "State").

use std::io::Read;

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
}
