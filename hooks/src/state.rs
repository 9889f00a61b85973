//! The container's state on standard input (runtime-spec, "State").

use std::io::{BufReader, Read};

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

/// Of the state: it has the config's annotations, and of a config with volumes 16 MiB are read, each
/// byte of which Go may write as six.
const MOST_BYTES: u64 = 6 * (16 << 20) + (1 << 20);

impl ContainerState {
    /// Nothing is kept but what is needed.
    pub(crate) fn read() -> Result<Self> {
        let mut stdin = std::io::stdin().lock();
        let state = serde_json::from_reader(BufReader::new((&mut stdin).take(MOST_BYTES)));
        // Whatever it was: whoever writes to a pipe that nobody reads dies of SIGPIPE.
        std::io::copy(&mut stdin, &mut std::io::sink()).context("read state from stdin")?;
        state.context("the state on stdin")
    }
}
