//! Waiting for a state of the cluster, with a timeout.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::arguments::Arguments;

/// The pause between two checks of the cluster.
const PAUSE: Duration = Duration::from_millis(500);

/// The time that a step may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timeout(Duration);

/// The result of a check of the cluster.
#[derive(Debug)]
pub(crate) enum Progress {
    Done,
    /// Not yet; the state that was seen, for the error of a timeout.
    NotYet(String),
}

impl Progress {
    /// Returns `Done` if `is_done`, and otherwise `state` as what was seen.
    pub(crate) fn of(is_done: bool, state: &impl fmt::Display) -> Self {
        if is_done {
            Self::Done
        } else {
            Self::NotYet(state.to_string())
        }
    }
}

impl Timeout {
    pub(crate) fn new(arguments: &Arguments) -> Self {
        Self(Duration::from_secs(arguments.timeout))
    }

    /// Repeats `check` until it returns [`Progress::Done`]. The error after the timeout contains the state that was seen last.
    /// An error of the API server is such a state. Another error ends the wait.
    pub(crate) async fn wait_until(
        self,
        what: &str,
        mut check: impl AsyncFnMut() -> Result<Progress>,
    ) -> Result<()> {
        let started = Instant::now();
        loop {
            let state = match check().await {
                Ok(Progress::Done) => return Ok(()),
                Ok(Progress::NotYet(state)) => state,
                // The API server may be busy, or be started again.
                Err(error)
                    if error
                        .chain()
                        .any(|it| it.downcast_ref::<kube::Error>().is_some()) =>
                {
                    format!("{error:#}")
                }
                Err(error) => return Err(error.context(what.to_owned())),
            };
            if started.elapsed() > self.0 {
                let seconds = self.0.as_secs();
                bail!("timeout after {seconds} seconds: waiting until {what}; last seen: {state}");
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_timeout_says_what_was_seen_last() {
        let mut checks = 0;
        let waited = Timeout(Duration::ZERO).wait_until("pod a runs", async || {
            checks += 1;
            Ok(Progress::NotYet(format!("check {checks}")))
        });
        let error = waited.await.unwrap_err().to_string();
        assert_eq!(
            error,
            "timeout after 0 seconds: waiting until pod a runs; last seen: check 1"
        );
        let done = Timeout(Duration::ZERO).wait_until("pod a runs", async || Ok(Progress::Done));
        done.await.unwrap();
    }
}
