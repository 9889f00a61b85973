//! The event recorder. It keeps the latest events of objects and sends new ones to watchers.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::broadcast;

use crate::objects::{Kind, Name, Pod};

/// The maximum number of recorded events. Each is small. The oldest event is dropped for a new one.
const MAX_EVENTS: usize = 4096;

/// The number of events that a watcher may lag behind. A watcher that lags further gets an error with the number of
/// events that it has missed.
const WATCHER_CAPACITY: usize = 1024;

/// The time within which a repeated event is counted as the same event.
const DEDUPLICATION_WINDOW: Duration = Duration::from_secs(600);

/// The object that an event is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Regarding {
    pub(crate) kind: Kind,
    pub(crate) name: Name,
    /// The UID of a pod. Empty for other objects.
    pub(crate) uid: String,
}

impl Regarding {
    /// Returns the reference to an object without a UID.
    pub(crate) fn object(kind: Kind, name: &Name) -> Self {
        Self {
            kind,
            name: name.clone(),
            uid: String::new(),
        }
    }
}

impl From<&Pod> for Regarding {
    fn from(pod: &Pod) -> Self {
        Self {
            kind: Kind::Pod,
            name: pod.name.clone(),
            uid: pod.uid.clone(),
        }
    }
}

/// The type of an event, as in Kubernetes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventType {
    Normal,
    Warning,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) regarding: Regarding,
    pub(crate) kind: EventType,
    /// One word. It is the same as kubelet's if kubelet has such an event.
    pub(crate) reason: &'static str,
    /// One sentence.
    pub(crate) message: String,
    pub(crate) first_seen: SystemTime,
    pub(crate) last_seen: SystemTime,
    pub(crate) count: u32,
}

/// The recorder of events. Clones share the events.
#[derive(Debug, Clone)]
pub(crate) struct Events(Arc<Recorder>);

#[derive(Debug)]
struct Recorder {
    /// The events in the order in which they last occurred.
    events: Mutex<VecDeque<Event>>,
    watchers: broadcast::Sender<Event>,
}

impl Default for Events {
    fn default() -> Self {
        Self(Arc::new(Recorder {
            events: Mutex::default(),
            watchers: broadcast::Sender::new(WATCHER_CAPACITY),
        }))
    }
}

impl Events {
    /// Records an event of type `Normal`.
    pub(crate) fn normal(
        &self,
        regarding: impl Into<Regarding>,
        reason: &'static str,
        message: impl Into<String>,
    ) {
        self.add(regarding.into(), EventType::Normal, reason, message.into());
    }

    /// Records an event of type `Warning`.
    pub(crate) fn warning(
        &self,
        regarding: impl Into<Regarding>,
        reason: &'static str,
        message: impl Into<String>,
    ) {
        self.add(regarding.into(), EventType::Warning, reason, message.into());
    }

    fn add(&self, regarding: Regarding, kind: EventType, reason: &'static str, message: String) {
        let (object, name) = (regarding.kind, &regarding.name);
        match kind {
            EventType::Normal => tracing::info!("{object} {name}: {reason}: {message}"),
            EventType::Warning => tracing::warn!("{object} {name}: {reason}: {message}"),
        }
        let now = SystemTime::now();
        let mut events = self.0.events.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = |event: &Event| {
            event.regarding == regarding
                && (event.reason, event.kind) == (reason, kind)
                && event.message == message
                && now
                    .duration_since(event.last_seen)
                    .is_ok_and(|age| age < DEDUPLICATION_WINDOW)
        };
        let repeated = events.iter().position(is_same);
        let event = match repeated.and_then(|index| events.remove(index)) {
            Some(event) => Event {
                last_seen: now,
                count: event.count.saturating_add(1),
                ..event
            },
            None => Event {
                regarding,
                kind,
                reason,
                message,
                first_seen: now,
                last_seen: now,
                count: 1,
            },
        };
        if events.len() >= MAX_EVENTS {
            events.pop_front();
        }
        events.push_back(event.clone());
        // The event is sent under the lock, so that each watcher gets all events once and in order. Sending fails if
        // there are no watchers.
        let _ = self.0.watchers.send(event);
    }

    /// Returns the recorded events, the latest last, and a receiver of later events.
    pub(crate) fn watch(&self) -> (Vec<Event>, broadcast::Receiver<Event>) {
        let events = self.0.events.lock().unwrap_or_else(PoisonError::into_inner);
        (
            events.iter().cloned().collect(),
            self.0.watchers.subscribe(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str) -> Regarding {
        Regarding::object(Kind::Pod, &Name::new("default", name))
    }

    #[test]
    fn a_repeated_event_is_counted_and_moved_to_the_end() {
        let events = Events::default();
        events.warning(pod("a"), "FailedMount", "no driver");
        events.warning(pod("b"), "FailedMount", "no driver");
        let (_, mut watcher) = events.watch();
        events.warning(pod("a"), "FailedMount", "no driver");
        events.warning(pod("a"), "FailedMount", "another reason");
        let (kept, _) = events.watch();
        let found: Vec<_> = kept
            .iter()
            .map(|event| {
                (
                    event.regarding.name.name.as_str(),
                    event.message.as_str(),
                    event.count,
                )
            })
            .collect();
        assert_eq!(
            found,
            [
                ("b", "no driver", 1),
                ("a", "no driver", 2),
                ("a", "another reason", 1)
            ]
        );
        assert_eq!(watcher.try_recv(), Ok(kept[1].clone()));
        assert_eq!(watcher.try_recv(), Ok(kept[2].clone()));
    }

    #[test]
    fn only_the_latest_are_kept() {
        let events = Events::default();
        for number in 0..=MAX_EVENTS {
            events.normal(pod("a"), "Pulled", number.to_string());
        }
        let (kept, _) = events.watch();
        assert_eq!(kept.len(), MAX_EVENTS);
        assert_eq!(kept[0].message, "1");
    }
}
