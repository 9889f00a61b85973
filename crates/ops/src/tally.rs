//! An account of the staged volumes, kept from call to call: a listing for each stage would cost more than
//! the stage.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crust_mount::volume::Denied;
use crust_state::CrustDirectory;
use crust_state::crust::Amount;

/// Stages between two counts. Entries that others add or remove meanwhile aren't seen.
const BETWEEN: u32 = 256;

/// Limits on what is staged over the sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Caps {
    /// The setting `max_staged`, in volumes.
    pub(crate) volumes: u64,
    /// The setting `max_staged_bytes`, in bytes.
    pub(crate) bytes: u64,
}

/// An estimate of the number and size of the entries: the last count, plus the stages since. Unstages aren't
/// subtracted, so before a volume is refused the entries are counted anew.
#[derive(Debug, Default)]
pub(crate) struct Tally(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// `None` before the first count.
    known: Option<Amount>,
    since: u32,
}

impl Tally {
    /// Takes room for one more entry. Fails with [`Denied::Unknown`] where `crust` would have to be
    /// counted for that and isn't given.
    pub(crate) fn take(
        &self,
        caps: Caps,
        bytes: u64,
        crust: Option<&CrustDirectory>,
    ) -> Result<(), Denied> {
        if self
            .try_take(caps, bytes)
            .is_some_and(|taken| taken.is_ok())
        {
            return Ok(());
        }
        let crust = crust.ok_or(Denied::Unknown)?;
        match crust.amount() {
            Ok(amount) => self.counted(amount),
            // The stage goes on, and fails by itself where the directory can't be used.
            Err(error) => {
                tracing::warn!("what is staged can't be counted: {error}");
                return Ok(());
            }
        }
        self.try_take(caps, bytes).unwrap_or(Ok(()))
    }

    /// Takes room by the estimate; `None` where that is too old.
    fn try_take(&self, caps: Caps, bytes: u64) -> Option<Result<(), Denied>> {
        let mut state = self.state();
        if state.since >= BETWEEN {
            return None;
        }
        let known = state.known.as_mut()?;
        let with = Amount {
            entries: known.entries + 1,
            bytes: known.bytes.saturating_add(bytes),
        };
        if let Err(full) = caps.allow(with) {
            return Some(Err(full));
        }
        *known = with;
        state.since += 1;
        Some(Ok(()))
    }

    fn counted(&self, amount: Amount) {
        *self.state() = State {
            known: Some(amount),
            since: 0,
        };
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Caps {
    fn allow(self, with: Amount) -> Result<(), Denied> {
        let full = |unit, there, most, setting| Denied::Full {
            unit,
            there,
            most,
            setting,
        };
        if with.entries > self.volumes {
            return Err(full(
                "volumes",
                with.entries - 1,
                self.volumes,
                "max_staged",
            ));
        }
        if with.bytes > self.bytes {
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
    use super::*;

    const CAPS: Caps = Caps {
        volumes: 3,
        bytes: 1000,
    };

    fn amount(entries: u64, bytes: u64) -> Amount {
        Amount { entries, bytes }
    }

    #[test]
    fn an_estimate_is_taken_from_until_it_is_old_or_exhausted() {
        let tally = Tally::default();
        let unknown = tally.take(CAPS, 1, None);
        assert!(
            matches!(unknown, Err(Denied::Unknown)),
            "it was never counted"
        );
        tally.counted(amount(1, 0));
        assert!(tally.take(CAPS, 999, None).is_ok());
        let full = tally.take(CAPS, 2, None);
        assert!(matches!(full, Err(Denied::Unknown)), "not without a count");
        assert!(tally.take(CAPS, 1, None).is_ok());
        tally.counted(amount(0, 0));
        let caps = Caps {
            volumes: u64::MAX,
            ..CAPS
        };
        for _ in 0..BETWEEN {
            assert!(tally.take(caps, 1, None).is_ok());
        }
        let old = tally.take(caps, 1, None);
        assert!(matches!(old, Err(Denied::Unknown)));
    }

    #[test]
    fn each_cap_is_named_with_what_is_there() {
        for (with, expected) in [
            (amount(3, 1000), None),
            (
                amount(4, 1),
                Some("3 volumes are staged, and `max_staged` allows 3"),
            ),
            (
                amount(1, 1001),
                Some(
                    "1001 bytes, with this volume's, are staged, and `max_staged_bytes` allows 1000",
                ),
            ),
        ] {
            let told = CAPS.allow(with).err().map(|error| error.to_string());
            let start = told.as_deref().and_then(|told| told.split(';').next());
            assert_eq!(start, expected, "{with:?}");
        }
    }
}
