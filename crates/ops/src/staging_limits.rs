//! Limits on staging over the sockets. The totals are kept between calls, because listing the entries for each stage
//! would cost more than the stage.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crust_state::CrustDirectory;
use crust_state::crust::EntryUsage;
use crust_volume::StagingError;

/// The number of stages after which the entries are counted again. Entries that other programs add or remove in between
/// aren't noticed.
const STAGES_PER_COUNT: u32 = 256;

/// Limits on staging over the sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StagingLimits {
    /// The setting `max_staged`, in volumes.
    pub(crate) volumes: u64,
    /// The setting `max_staged_bytes`, in bytes.
    pub(crate) bytes: u64,
}

/// An estimate of the number and size of the entries: the last count plus the reservations since then. Unstages aren't
/// subtracted, so the entries are counted again before a volume is refused.
#[derive(Debug, Default)]
pub(crate) struct StagedTotals(Mutex<TotalsState>);

#[derive(Debug, Default)]
struct TotalsState {
    /// `None` before the first count.
    estimate: Option<EntryUsage>,
    /// The number of reservations since the last count.
    since_count: u32,
    /// The sum of all reservations since the daemon started.
    reserved: EntryUsage,
    /// The part of `reserved` whose calls have ended.
    ended: EntryUsage,
}

/// The reservation of one call. A count misses the entries that calls in progress haven't written yet. So the
/// reservation counts until it is dropped at the end of the call.
#[derive(Debug)]
pub(crate) struct Reservation {
    totals: Arc<StagedTotals>,
    limits: StagingLimits,
    reserved: Mutex<EntryUsage>,
}

impl Reservation {
    pub(crate) fn new(totals: &Arc<StagedTotals>, limits: StagingLimits) -> Self {
        Self {
            totals: Arc::clone(totals),
            limits,
            reserved: Mutex::default(),
        }
    }

    /// Reserves the growth of a stage: see [`StagedTotals::reserve`].
    pub(crate) fn reserve(
        &self,
        growth: EntryUsage,
        crust: Option<&CrustDirectory>,
    ) -> Result<(), StagingError> {
        self.totals.reserve(self.limits, growth, crust)?;
        let mut reserved = self.reserved.lock().unwrap_or_else(PoisonError::into_inner);
        *reserved = sum(*reserved, growth);
        Ok(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let reserved = *self.reserved.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.totals.state();
        state.ended = sum(state.ended, reserved);
    }
}

impl StagedTotals {
    /// Reserves the growth of a stage.
    ///
    /// Fails with [`StagingError::WouldWait`] if the entries must be counted and `crust` is `None`, and with
    /// [`StagingError::CountFailed`] if they can't be counted, because no limit could be enforced then.
    fn reserve(
        &self,
        limits: StagingLimits,
        growth: EntryUsage,
        crust: Option<&CrustDirectory>,
    ) -> Result<(), StagingError> {
        if self
            .try_reserve(limits, growth)
            .is_some_and(|reserved| reserved.is_ok())
        {
            return Ok(());
        }
        let crust = crust.ok_or(StagingError::WouldWait)?;
        let ended = self.state().ended;
        self.set_count(
            crust.entry_usage().map_err(StagingError::CountFailed)?,
            ended,
        );
        self.try_reserve(limits, growth).unwrap_or(Ok(()))
    }

    /// Reserves growth by the estimate; `None` if there is no estimate or it is too old.
    fn try_reserve(
        &self,
        limits: StagingLimits,
        growth: EntryUsage,
    ) -> Option<Result<(), StagingError>> {
        let mut state = self.state();
        if state.since_count >= STAGES_PER_COUNT {
            return None;
        }
        let total = sum(state.estimate?, growth);
        if let Err(error) = limits.check(growth, total) {
            return Some(Err(error));
        }
        state.estimate = Some(total);
        state.reserved = sum(state.reserved, growth);
        state.since_count += 1;
        Some(Ok(()))
    }

    /// Sets the estimate from a count. `ended` are the reservations that had ended before the count began: the entries
    /// of all others may be missing in it.
    fn set_count(&self, count: EntryUsage, ended: EntryUsage) {
        let mut state = self.state();
        let missing = EntryUsage {
            entries: state.reserved.entries.saturating_sub(ended.entries),
            bytes: state.reserved.bytes.saturating_sub(ended.bytes),
        };
        state.estimate = Some(sum(count, missing));
        state.since_count = 0;
    }

    fn state(&self) -> MutexGuard<'_, TotalsState> {
        // No code panics while the lock is held, so it can't be poisoned.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn sum(one: EntryUsage, other: EntryUsage) -> EntryUsage {
    EntryUsage {
        entries: one.entries.saturating_add(other.entries),
        bytes: one.bytes.saturating_add(other.bytes),
    }
}

impl StagingLimits {
    /// Checks the total after a stage's growth. Volumes that root staged may exceed a limit already; then only growth
    /// in the limit's unit is refused.
    fn check(self, growth: EntryUsage, total: EntryUsage) -> Result<(), StagingError> {
        let limit_reached = |unit, used, limit, setting| StagingError::LimitReached {
            unit,
            used,
            limit,
            setting,
        };
        if growth.entries > 0 && total.entries > self.volumes {
            return Err(limit_reached(
                "volumes",
                total.entries - growth.entries,
                self.volumes,
                "max_staged",
            ));
        }
        if growth.bytes > 0 && total.bytes > self.bytes {
            let setting = "max_staged_bytes";
            return Err(limit_reached(
                "bytes (including this volume)",
                total.bytes,
                self.bytes,
                setting,
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crust_state::Config;

    use super::*;

    const LIMITS: StagingLimits = StagingLimits {
        volumes: 3,
        bytes: 1000,
    };

    fn amount(entries: u64, bytes: u64) -> EntryUsage {
        EntryUsage { entries, bytes }
    }

    #[test]
    fn an_estimate_is_used_until_it_is_old_or_exhausted() {
        let totals = StagedTotals::default();
        let reserve = |limits, bytes| totals.reserve(limits, amount(1, bytes), None);
        let unknown = reserve(LIMITS, 1);
        assert!(
            matches!(unknown, Err(StagingError::WouldWait)),
            "there was no count"
        );
        let nothing = EntryUsage::default();
        totals.set_count(amount(1, 0), nothing);
        assert!(reserve(LIMITS, 999).is_ok());
        let exhausted = reserve(LIMITS, 2);
        assert!(
            matches!(exhausted, Err(StagingError::WouldWait)),
            "a refusal needs a count"
        );
        assert!(reserve(LIMITS, 1).is_ok());
        let all = totals.state().reserved;
        totals.set_count(nothing, all);
        let limits = StagingLimits {
            volumes: u64::MAX,
            ..LIMITS
        };
        for _ in 0..STAGES_PER_COUNT {
            assert!(reserve(limits, 1).is_ok());
        }
        let old = reserve(limits, 1);
        assert!(matches!(old, Err(StagingError::WouldWait)));
    }

    /// No call has written its entry when the next one counts the entries.
    #[test]
    fn concurrent_calls_share_the_limit() {
        let temporary = tempfile::tempdir().unwrap();
        let config = Config {
            crust_root: temporary.path().join("crust"),
            ..Config::default()
        };
        let crust = CrustDirectory::new(&config);
        let totals = Arc::new(StagedTotals::default());
        let call = || {
            let reservation = Reservation::new(&totals, LIMITS);
            let reserved = reservation.reserve(amount(1, 1), Some(&crust));
            reserved.map(|()| reservation)
        };
        let mut running: Vec<Reservation> = (0..LIMITS.volumes).map(|_| call().unwrap()).collect();
        let refused = call().map(drop);
        assert!(
            matches!(refused, Err(StagingError::LimitReached { .. })),
            "{refused:?}"
        );
        // A call that ends without an entry releases its reservation.
        running.pop();
        running.push(call().unwrap());
        assert!(call().is_err());
    }

    #[test]
    fn a_failed_count_refuses_the_stage() {
        let temporary = tempfile::tempdir().unwrap();
        let config = Config {
            crust_root: temporary.path().join("crust"),
            ..Config::default()
        };
        let crust = CrustDirectory::new(&config);
        let totals = StagedTotals::default();
        let reserve = || totals.reserve(LIMITS, amount(1, 1), Some(&crust));
        std::fs::write(&config.crust_root, "no directory").unwrap();
        let refused = reserve();
        assert!(
            matches!(refused, Err(StagingError::CountFailed(_))),
            "{refused:?}"
        );
        std::fs::remove_file(&config.crust_root).unwrap();
        reserve().unwrap();
    }

    #[test]
    fn an_exceeded_limit_is_named_with_the_present_usage() {
        let (entry, bytes) = (amount(1, 0), amount(0, 1));
        for (growth, total, expected) in [
            (amount(1, 1), amount(3, 1000), None),
            (entry, amount(3, 1001), None),
            (bytes, amount(4, 1000), None),
            (
                entry,
                amount(4, 1),
                Some("3 volumes are staged, and `max_staged` allows 3"),
            ),
            // A volume with two entries.
            (
                amount(2, 1),
                amount(4, 1),
                Some("2 volumes are staged, and `max_staged` allows 3"),
            ),
            (
                bytes,
                amount(1, 1001),
                Some(
                    "1001 bytes (including this volume) are staged, and `max_staged_bytes` allows 1000",
                ),
            ),
        ] {
            let error = LIMITS.check(growth, total).err();
            let message = error.map(|error| error.to_string());
            let start = message
                .as_deref()
                .and_then(|message| message.split(';').next());
            assert_eq!(start, expected, "{total:?}");
        }
    }
}
