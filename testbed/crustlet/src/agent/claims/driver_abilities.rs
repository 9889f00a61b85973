//! The capabilities of drivers. Each is asked by itself: one that hangs holds up nobody else's claims.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::ClaimDone;
use crate::agent::Done;
use crate::csi::DriverCapabilities;
use crate::operations::{self, Context};

/// How long a driver's answer counts while a claim waits for a capability.
pub(super) const ASK_AGAIN: Duration = Duration::from_secs(5);

/// The capabilities of drivers, as far as they have answered.
#[derive(Debug, Default)]
pub(super) struct DriverAbilities {
    known: BTreeMap<String, DriverCapabilities>,
    asked: BTreeMap<String, Instant>,
    /// The drivers that were asked and haven't answered, and since when.
    awaited: BTreeMap<String, Instant>,
}

impl DriverAbilities {
    /// Returns the capabilities by the drivers' names.
    pub(super) const fn known(&self) -> &BTreeMap<String, DriverCapabilities> {
        &self.known
    }

    /// Has all drivers asked again, after some came or went.
    pub(super) fn drivers_changed(&mut self) {
        self.asked.clear();
    }

    /// Returns whether a driver was asked so recently that its answer may still come in time.
    pub(super) fn is_young(&self, now: Instant) -> bool {
        let mut awaited = self.awaited.values();
        awaited.any(|since| now.duration_since(*since) < ASK_AGAIN)
    }

    /// Returns the drivers that are to be asked now, of those that somebody may have a volume of: who wasn't asked,
    /// and who was, where something waits.
    pub(super) fn due(
        &mut self,
        names: &BTreeSet<String>,
        is_idle: bool,
        now: Instant,
    ) -> Vec<String> {
        self.known.retain(|name, _| names.contains(name));
        self.asked.retain(|name, _| names.contains(name));
        let is_due = |name: &&String| {
            let is_old = |asked: &Instant| now.duration_since(*asked) > ASK_AGAIN;
            let is_needed = !is_idle || !self.known.contains_key(*name);
            !self.awaited.contains_key(*name)
                && self
                    .asked
                    .get(*name)
                    .is_none_or(|asked| is_needed && is_old(asked))
        };
        let due: Vec<String> = names.iter().filter(is_due).cloned().collect();
        for name in &due {
            self.asked.insert(name.clone(), now);
            self.awaited.insert(name.clone(), now);
        }
        due
    }

    /// Notes the answer of a driver. `None` is a driver that doesn't answer.
    pub(super) fn take(&mut self, name: String, abilities: Option<DriverCapabilities>) {
        self.awaited.remove(&name);
        match abilities {
            Some(abilities) => self.learn(name, abilities),
            None => drop(self.known.remove(&name)),
        }
    }

    /// Notes the capabilities that a driver has reported in another call.
    pub(super) fn learn(&mut self, name: String, abilities: DriverCapabilities) {
        self.known.insert(name, abilities);
    }
}

/// Asks a driver what it can do, in a task of its own.
pub(super) fn ask(name: String, context: &Context, done: &mpsc::UnboundedSender<Done>) {
    let (drivers, done) = (context.drivers.clone(), done.clone());
    tokio::spawn(async move {
        let abilities = match drivers.get(&name) {
            Some(driver) => operations::driver_capabilities(&driver).await.ok(),
            None => None,
        };
        let _ = done.send(Done::Claim(ClaimDone::Asked(name, abilities)));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_is_asked_once_at_a_time_and_again_if_needed() {
        let mut asking = DriverAbilities::default();
        let names = ["a", "b"].map(str::to_owned).into();
        let start = Instant::now();
        let later = |times: u32| start + (ASK_AGAIN + Duration::from_millis(1)) * times;
        assert_eq!(asking.due(&names, true, start), ["a", "b"]);
        assert!(asking.is_young(start));
        asking.take("b".to_owned(), Some(DriverCapabilities::default()));
        assert_eq!(asking.due(&names, false, start), Vec::<String>::new());
        assert!(!asking.is_young(later(1)), "a is silent");
        assert_eq!(asking.due(&names, true, later(1)), Vec::<String>::new());
        assert_eq!(asking.due(&names, false, later(1)), ["b"]);
        asking.take("b".to_owned(), None);
        assert!(asking.known().is_empty());
        assert_eq!(asking.due(&names, true, later(2)), ["b"], "it is missing");
        // Who is silent is asked anew once it has answered.
        asking.drivers_changed();
        asking.take("a".to_owned(), Some(DriverCapabilities::default()));
        assert_eq!(asking.due(&names, true, later(2)), ["a"]);
        assert_eq!(
            asking.due(&BTreeSet::new(), true, start),
            Vec::<String>::new()
        );
        assert!(asking.known().is_empty(), "nobody has a volume of theirs");
    }
}
