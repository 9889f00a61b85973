//! Limits on what is staged over the sockets. The totals are kept from call to call: a listing for each stage would
//! cost more than the stage.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crust_state::CrustDirectory;
use crust_state::crust::EntryUsage;
use crust_volume::AdmissionError;

/// Stages between two counts. Entries that others add or remove meanwhile aren't seen.
const BETWEEN: u32 = 256;

/// Limits on what is staged over the sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StagingLimits {
    /// The setting `max_staged`, in volumes.
    pub(crate) volumes: u64,
    /// The setting `max_staged_bytes`, in bytes.
    pub(crate) bytes: u64,
}

/// An estimate of the number and size of the entries: the last count, plus what calls have taken since. Unstages aren't
/// subtracted, so before a volume is refused the entries are counted anew.
#[derive(Debug, Default)]
pub(crate) struct StagedTotals(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// `None` before the first count.
    known: Option<EntryUsage>,
    since: u32,
    /// The sum of all room taken since the daemon started.
    taken: EntryUsage,
    /// The part of that whose calls have ended.
    ended: EntryUsage,
}

/// The room taken by one call. A count of the entries misses those that calls under way have yet to write, so the room
/// counts as taken until this is dropped at the end of the call.
#[derive(Debug)]
pub(crate) struct TakenRoom {
    totals: Arc<StagedTotals>,
    limits: StagingLimits,
    taken: Mutex<EntryUsage>,
}

impl TakenRoom {
    pub(crate) fn new(totals: &Arc<StagedTotals>, limits: StagingLimits) -> Self {
        Self {
            totals: Arc::clone(totals),
            limits,
            taken: Mutex::default(),
        }
    }

    /// Takes room for what a stage adds: see [`StagedTotals::take`].
    pub(crate) fn take(
        &self,
        growth: EntryUsage,
        crust: Option<&CrustDirectory>,
    ) -> Result<(), AdmissionError> {
        self.totals.take(self.limits, growth, crust)?;
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        *taken = sum(*taken, growth);
        Ok(())
    }
}

impl Drop for TakenRoom {
    fn drop(&mut self) {
        let taken = *self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.totals.state();
        state.ended = sum(state.ended, taken);
    }
}

impl StagedTotals {
    /// Takes room for what a stage adds. Fails with [`AdmissionError::WouldWait`] where `crust` would have to be
    /// counted for that and isn't given, and with [`AdmissionError::CountFailed`] where it can't be counted: no limit
    /// would hold otherwise.
    fn take(
        &self,
        limits: StagingLimits,
        growth: EntryUsage,
        crust: Option<&CrustDirectory>,
    ) -> Result<(), AdmissionError> {
        if self
            .try_take(limits, growth)
            .is_some_and(|taken| taken.is_ok())
        {
            return Ok(());
        }
        let crust = crust.ok_or(AdmissionError::WouldWait)?;
        let ended = self.state().ended;
        self.counted(
            crust.entry_usage().map_err(AdmissionError::CountFailed)?,
            ended,
        );
        self.try_take(limits, growth).unwrap_or(Ok(()))
    }

    /// Takes room by the estimate; `None` where that is too old.
    fn try_take(
        &self,
        limits: StagingLimits,
        growth: EntryUsage,
    ) -> Option<Result<(), AdmissionError>> {
        let mut state = self.state();
        if state.since >= BETWEEN {
            return None;
        }
        let with = sum(state.known?, growth);
        if let Err(full) = limits.allow(growth, with) {
            return Some(Err(full));
        }
        state.known = Some(with);
        state.taken = sum(state.taken, growth);
        state.since += 1;
        Some(Ok(()))
    }

    /// Notes the amount of a count. `ended` is what had ended before the count began: what has been taken beyond that
    /// may not be in it.
    fn counted(&self, amount: EntryUsage, ended: EntryUsage) {
        let mut state = self.state();
        let under_way = EntryUsage {
            entries: state.taken.entries.saturating_sub(ended.entries),
            bytes: state.taken.bytes.saturating_sub(ended.bytes),
        };
        state.known = Some(sum(amount, under_way));
        state.since = 0;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is held.
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
    /// Checks the amount that there is with a stage's growth. What root staged by hand may exceed a limit, which
    /// then refuses only what grows in its unit.
    fn allow(self, growth: EntryUsage, with: EntryUsage) -> Result<(), AdmissionError> {
        let full = |unit, used, limit, setting| AdmissionError::LimitReached {
            unit,
            used,
            limit,
            setting,
        };
        if growth.entries > 0 && with.entries > self.volumes {
            return Err(full(
                "volumes",
                with.entries - growth.entries,
                self.volumes,
                "max_staged",
            ));
        }
        if growth.bytes > 0 && with.bytes > self.bytes {
            let setting = "max_staged_bytes";
            return Err(full(
                "bytes, with this volume's,",
                with.bytes,
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
    fn an_estimate_is_taken_from_until_it_is_old_or_exhausted() {
        let totals = StagedTotals::default();
        let take = |limits, bytes| totals.take(limits, amount(1, bytes), None);
        let unknown = take(LIMITS, 1);
        assert!(
            matches!(unknown, Err(AdmissionError::WouldWait)),
            "it was never counted"
        );
        let nothing = EntryUsage::default();
        totals.counted(amount(1, 0), nothing);
        assert!(take(LIMITS, 999).is_ok());
        let full = take(LIMITS, 2);
        assert!(
            matches!(full, Err(AdmissionError::WouldWait)),
            "not without a count"
        );
        assert!(take(LIMITS, 1).is_ok());
        let all = totals.state().taken;
        totals.counted(nothing, all);
        let limits = StagingLimits {
            volumes: u64::MAX,
            ..LIMITS
        };
        for _ in 0..BETWEEN {
            assert!(take(limits, 1).is_ok());
        }
        let old = take(limits, 1);
        assert!(matches!(old, Err(AdmissionError::WouldWait)));
    }

    /// None of the calls has written its entry when the next one counts the entries.
    #[test]
    fn calls_side_by_side_share_the_room() {
        let temporary = tempfile::tempdir().unwrap();
        let config = Config {
            crust_root: temporary.path().join("crust"),
            ..Config::default()
        };
        let crust = CrustDirectory::new(&config);
        let totals = Arc::new(StagedTotals::default());
        let call = || {
            let taker = TakenRoom::new(&totals, LIMITS);
            taker.take(amount(1, 1), Some(&crust)).map(|()| taker)
        };
        let mut under_way: Vec<TakenRoom> = (0..LIMITS.volumes).map(|_| call().unwrap()).collect();
        let full = call().map(drop);
        assert!(
            matches!(full, Err(AdmissionError::LimitReached { .. })),
            "{full:?}"
        );
        // One that ends without having written anything gives its room back.
        under_way.pop();
        under_way.push(call().unwrap());
        assert!(call().is_err());
    }

    #[test]
    fn what_cannot_be_counted_takes_no_room() {
        let temporary = tempfile::tempdir().unwrap();
        let config = Config {
            crust_root: temporary.path().join("crust"),
            ..Config::default()
        };
        let crust = CrustDirectory::new(&config);
        let totals = StagedTotals::default();
        let take = || totals.take(LIMITS, amount(1, 1), Some(&crust));
        std::fs::write(&config.crust_root, "no directory").unwrap();
        let refused = take();
        assert!(
            matches!(refused, Err(AdmissionError::CountFailed(_))),
            "{refused:?}"
        );
        std::fs::remove_file(&config.crust_root).unwrap();
        take().unwrap();
    }

    #[test]
    fn each_cap_is_named_with_what_is_there() {
        let (entry, bytes) = (amount(1, 0), amount(0, 1));
        for (growth, with, expected) in [
            (amount(1, 1), amount(3, 1000), None),
            (entry, amount(3, 1001), None),
            (bytes, amount(4, 1000), None),
            (
                entry,
                amount(4, 1),
                Some("3 volumes are staged, and `max_staged` allows 3"),
            ),
            // With its second entry.
            (
                amount(2, 1),
                amount(4, 1),
                Some("2 volumes are staged, and `max_staged` allows 3"),
            ),
            (
                bytes,
                amount(1, 1001),
                Some(
                    "1001 bytes, with this volume's, are staged, and `max_staged_bytes` allows 1000",
                ),
            ),
        ] {
            let told = LIMITS
                .allow(growth, with)
                .err()
                .map(|error| error.to_string());
            let start = told.as_deref().and_then(|told| told.split(';').next());
            assert_eq!(start, expected, "{with:?}");
        }
    }
}
