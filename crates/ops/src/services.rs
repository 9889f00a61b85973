//! The gRPC services, and what they share.

/// Defines `stats_response`, which builds the response of `RuntimeGetVolumeStats`. Both packages have a message of
/// their own with the same fields.
macro_rules! stats_response {
    ($($package:ident)::+) => {
        fn stats_response(
            stats: $crate::cli::VolumeStats,
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

use crate::call_error::CallError;
use crate::cli::{CliCall, CliError, CliRuns};
use crate::metrics::Metrics;
use crate::node::{STAGE_TIMEOUT, StagingNode};
use crate::settings::Settings;
use crate::staging_limits::StagingLimits;

pub(crate) use runtime::RuntimeService;
pub(crate) use storage::StorageService;

/// The state that all services share.
#[derive(Debug, Clone)]
pub(crate) struct ServiceState {
    pub(crate) node: watch::Receiver<StagingNode>,
    pub(crate) settings: watch::Receiver<Arc<Settings>>,
    /// The locks of calls that change a volume.
    pub(crate) change_locks: KeyedLocks<Digest>,
    /// The locks of calls that only read a volume. With them, a runtime that hangs is one process, however many calls
    /// ask it.
    pub(crate) query_locks: KeyedLocks<Digest>,
    pub(crate) runs: CliRuns,
    pub(crate) metrics: Arc<Metrics>,
}

impl ServiceState {
    fn node(&self) -> StagingNode {
        self.node.borrow().clone()
    }

    /// Calls the CLI, and counts timeouts.
    async fn ask<T: DeserializeOwned>(
        &self,
        call: CliCall<'_>,
        limit: Option<Duration>,
        volume_lock: Option<KeyedLockGuard<Digest>>,
    ) -> Result<T, CliError> {
        let mut policy = self.settings.borrow().policy();
        policy.timeout = limit.unwrap_or(policy.timeout);
        let answer = policy.ask(&self.runs, call, volume_lock).await;
        if matches!(answer, Err(CliError::Timeout { .. })) {
            self.metrics.count_timeout();
        }
        answer
    }

    /// Takes the lock of a volume. Waits for earlier calls no longer than `limit`.
    async fn lock_volume(
        &self,
        locks: &KeyedLocks<Digest>,
        target: &TargetPath,
        limit: Duration,
    ) -> Result<KeyedLockGuard<Digest>, CallError> {
        let volume_lock = tokio::time::timeout(limit, locks.lock(target.digest())).await;
        volume_lock.map_err(|_| CallError::Held {
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

/// Parses the target path of a request, and adds it to the call's log events.
fn target_path(field: &'static str, path: &str) -> Result<TargetPath, CallError> {
    let target = TargetPath::new(required_path(field, path)?);
    target
        .inspect(log_volume)
        .map_err(|error| CallError::field(field, error))
}

/// Makes the call's log events name the volume.
fn log_volume(target: &TargetPath) {
    crust_serve::record_volume(&target.as_path());
}

/// Checks that a path of a request isn't empty or too long.
fn required_path<T: AsRef<str>>(field: &'static str, path: T) -> Result<T, CallError> {
    let path = required(field, path)?;
    match crust_serve::check_path_length(path.as_ref()) {
        Ok(()) => Ok(path),
        Err(error) => Err(CallError::field(field, error)),
    }
}

fn required<T: AsRef<str>>(field: &'static str, value: T) -> Result<T, CallError> {
    if value.as_ref().is_empty() {
        return Err(CallError::field(field, "it is required"));
    }
    Ok(value)
}

/// Converts a size of a request. Sizes in CSI are signed, but must not be negative.
fn bytes(field: &'static str, value: i64) -> Result<u64, CallError> {
    u64::try_from(value).map_err(|_| CallError::field(field, format!("{value} is negative")))
}
