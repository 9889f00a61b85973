//! The gRPC services.

/// The answer to stats, of which both packages have their own, with the same fields.
macro_rules! answer_to_stats {
    ($($package:ident)::+) => {
        fn answer_to_stats(
            stats: $crate::cli::Stats,
        ) -> $($package)::+::RuntimeGetVolumeStatsResponse {
            use $($package)::+::volume_usage::Unit;
            use $($package)::+::{RuntimeGetVolumeStatsResponse, VolumeCondition, VolumeUsage};
            let usage = stats.usage.into_iter().map(|usage| VolumeUsage {
                available: usage.available,
                total: usage.total,
                used: usage.used,
                unit: match usage.unit {
                    $crate::cli::Unit::Bytes => Unit::Bytes,
                    $crate::cli::Unit::Inodes => Unit::Inodes,
                }
                .into(),
            });
            RuntimeGetVolumeStatsResponse {
                usage: usage.collect(),
                volume_condition: Some(VolumeCondition {
                    abnormal: stats.volume_condition.abnormal,
                    message: stats.volume_condition.message,
                }),
            }
        }
    };
}

mod runtime;
mod storage;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crust_serve::{KeyedLockGuard, KeyedLocks};
use crust_state::{Digest, TargetPath};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::cli::{CliCall, CliError, Runs};
use crate::metrics::Metrics;
use crate::node::{STAGE, StagingNode};
use crate::refusal::Refusal;
use crate::settings::Settings;
use crate::staging_limits::StagingLimits;

pub(crate) use runtime::RuntimeService;
pub(crate) use storage::StorageService;

/// The state that the services share, all of which is the node's.
#[derive(Debug, Clone)]
pub(crate) struct Shared {
    pub(crate) node: watch::Receiver<StagingNode>,
    pub(crate) settings: watch::Receiver<Arc<Settings>>,
    /// The turns of calls that change a volume.
    pub(crate) volumes: KeyedLocks<Digest>,
    /// The turns of calls that ask about a volume: a runtime that hangs is one process, however often it is asked.
    pub(crate) asked: KeyedLocks<Digest>,
    pub(crate) runs: Runs,
    pub(crate) metrics: Arc<Metrics>,
}

impl Shared {
    fn node(&self) -> StagingNode {
        self.node.borrow().clone()
    }

    /// Asks a program, and counts those that don't answer.
    async fn ask<T: DeserializeOwned>(
        &self,
        call: CliCall<'_>,
        limit: Option<Duration>,
        turn: Option<KeyedLockGuard<Digest>>,
    ) -> Result<T, CliError> {
        let mut policy = self.settings.borrow().policy();
        policy.timeout = limit.unwrap_or(policy.timeout);
        let answer = policy.ask(&self.runs, call, turn).await;
        if matches!(answer, Err(CliError::Timeout { .. })) {
            self.metrics.timeout();
        }
        answer
    }

    /// A volume's turn, waited for as long as a call of it may take.
    async fn turn(
        &self,
        volumes: &KeyedLocks<Digest>,
        target: &TargetPath,
        limit: Duration,
    ) -> Result<KeyedLockGuard<Digest>, Refusal> {
        let turn = tokio::time::timeout(limit, volumes.lock(target.digest())).await;
        turn.map_err(|_| Refusal::Held {
            volume: target.volume_name(),
            after: limit,
        })
    }

    fn cli_timeout(&self) -> Duration {
        self.settings.borrow().policy().timeout
    }

    fn runtime(&self) -> PathBuf {
        self.settings.borrow().runtime.clone()
    }

    fn staging_limits(&self) -> StagingLimits {
        self.settings.borrow().staging_limits()
    }

    fn unstage_timeout(&self) -> Duration {
        Duration::from_secs(self.settings.borrow().unstage_timeout)
    }
}

/// A target path of a request.
fn target_path(field: &'static str, path: &str) -> Result<TargetPath, Refusal> {
    let target = TargetPath::new(a_path(field, path)?);
    target
        .inspect(is_about)
        .map_err(|error| Refusal::field(field, error))
}

/// Has the call's lines in the log name the volume.
fn is_about(target: &TargetPath) {
    crust_serve::record_volume(&target.as_path());
}

/// A path of a request, which may still be no good one.
fn a_path<T: AsRef<str>>(field: &'static str, path: T) -> Result<T, Refusal> {
    let path = required(field, path)?;
    match crust_serve::check_path_length(path.as_ref()) {
        Ok(()) => Ok(path),
        Err(error) => Err(Refusal::field(field, error)),
    }
}

fn required<T: AsRef<str>>(field: &'static str, value: T) -> Result<T, Refusal> {
    if value.as_ref().is_empty() {
        return Err(Refusal::field(field, "it is required"));
    }
    Ok(value)
}

/// A size of a request: CSI's are signed and never negative.
fn bytes(field: &'static str, value: i64) -> Result<u64, Refusal> {
    u64::try_from(value).map_err(|_| Refusal::field(field, format!("{value} is negative")))
}
