//! The drivers' capabilities. Each driver is asked in a task of its own, so that a driver that hangs doesn't delay the
//! claims of other drivers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::ClaimTaskResult;
use crate::agent::Completion;
use crate::csi::DriverCapabilities;
use crate::operations::{self, Context};

/// The age at which a driver's answer is renewed while a claim waits for a capability.
pub(super) const CAPABILITIES_MAX_AGE: Duration = Duration::from_secs(5);

/// The capabilities of the drivers that have answered.
#[derive(Debug, Default)]
pub(super) struct KnownCapabilities {
    known: BTreeMap<String, DriverCapabilities>,
    /// When each driver was asked last.
    last_asked: BTreeMap<String, Instant>,
    /// The drivers whose answer is outstanding, with the time of the request.
    pending: BTreeMap<String, Instant>,
}

impl KnownCapabilities {
    /// Returns the capabilities by the drivers' names.
    pub(super) const fn known(&self) -> &BTreeMap<String, DriverCapabilities> {
        &self.known
    }

    /// Makes a request to every driver due, after drivers registered or disconnected.
    pub(super) fn drivers_changed(&mut self) {
        self.last_asked.clear();
    }

    /// Returns whether a request is so recent that its answer may still arrive soon.
    pub(super) fn has_recent_request(&self, now: Instant) -> bool {
        let mut pending = self.pending.values();
        pending.any(|since| now.duration_since(*since) < CAPABILITIES_MAX_AGE)
    }

    /// Returns the drivers to ask now, and notes that they are being asked. `names` are the drivers that may have a
    /// volume; the capabilities of other drivers are dropped. If `is_idle`, no claim waits for a capability, and
    /// answers aren't renewed.
    pub(super) fn take_due(
        &mut self,
        names: &BTreeSet<String>,
        is_idle: bool,
        now: Instant,
    ) -> Vec<String> {
        self.known.retain(|name, _| names.contains(name));
        self.last_asked.retain(|name, _| names.contains(name));
        let is_due = |name: &&String| {
            let is_old = |asked: &Instant| now.duration_since(*asked) > CAPABILITIES_MAX_AGE;
            let is_needed = !is_idle || !self.known.contains_key(*name);
            !self.pending.contains_key(*name)
                && self
                    .last_asked
                    .get(*name)
                    .is_none_or(|asked| is_needed && is_old(asked))
        };
        let due: Vec<String> = names.iter().filter(is_due).cloned().collect();
        for name in &due {
            self.last_asked.insert(name.clone(), now);
            self.pending.insert(name.clone(), now);
        }
        due
    }

    /// Records the answer to a request. `None` means that the driver doesn't answer.
    pub(super) fn record_answer(&mut self, name: String, capabilities: Option<DriverCapabilities>) {
        self.pending.remove(&name);
        match capabilities {
            Some(capabilities) => self.insert(name, capabilities),
            None => drop(self.known.remove(&name)),
        }
    }

    /// Records the capabilities that a driver reported outside of a request.
    pub(super) fn insert(&mut self, name: String, capabilities: DriverCapabilities) {
        self.known.insert(name, capabilities);
    }
}

/// Asks a driver for its capabilities, in a task of its own.
pub(super) fn request_capabilities(
    name: String,
    context: &Context,
    completions: &mpsc::UnboundedSender<Completion>,
) {
    let (drivers, completions) = (context.drivers.clone(), completions.clone());
    tokio::spawn(async move {
        let capabilities = match drivers.get(&name) {
            Some(driver) => operations::driver_capabilities(&driver).await.ok(),
            None => None,
        };
        let _ = completions.send(Completion::Claim(ClaimTaskResult::Capabilities(
            name,
            capabilities,
        )));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_is_asked_once_at_a_time_and_again_if_needed() {
        let mut capabilities = KnownCapabilities::default();
        let names = ["a", "b"].map(str::to_owned).into();
        let start = Instant::now();
        let later = |times: u32| start + (CAPABILITIES_MAX_AGE + Duration::from_millis(1)) * times;
        assert_eq!(capabilities.take_due(&names, true, start), ["a", "b"]);
        assert!(capabilities.has_recent_request(start));
        capabilities.record_answer("b".to_owned(), Some(DriverCapabilities::default()));
        assert_eq!(
            capabilities.take_due(&names, false, start),
            Vec::<String>::new()
        );
        assert!(
            !capabilities.has_recent_request(later(1)),
            "a doesn't answer"
        );
        assert_eq!(
            capabilities.take_due(&names, true, later(1)),
            Vec::<String>::new()
        );
        assert_eq!(capabilities.take_due(&names, false, later(1)), ["b"]);
        capabilities.record_answer("b".to_owned(), None);
        assert!(capabilities.known().is_empty());
        assert_eq!(
            capabilities.take_due(&names, true, later(2)),
            ["b"],
            "its capabilities are unknown"
        );
        // Even after a change, a driver isn't asked again before it has answered the previous request.
        capabilities.drivers_changed();
        capabilities.record_answer("a".to_owned(), Some(DriverCapabilities::default()));
        assert_eq!(capabilities.take_due(&names, true, later(2)), ["a"]);
        assert_eq!(
            capabilities.take_due(&BTreeSet::new(), true, start),
            Vec::<String>::new()
        );
        assert!(
            capabilities.known().is_empty(),
            "no driver may have a volume"
        );
    }
}
