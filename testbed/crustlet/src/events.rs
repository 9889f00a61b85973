//! Events of objects, which are kept for a while and sent to watchers.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::broadcast;

use crate::objects::{Kind, Name, Pod};

/// How many are kept; each is small.
const KEPT: usize = 4096;

/// How many a watcher may be behind; it is told when it has missed some.
const BEHIND: usize = 1024;

/// How long the same again is the same event.
const SAME: Duration = Duration::from_secs(600);

/// What an event is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Regarding {
    /// Of what.
    pub(crate) kind: Kind,
    /// Which.
    pub(crate) name: Name,
    /// Of a pod, or empty.
    pub(crate) uid: String,
}

impl Regarding {
    /// An object without a uid of its own.
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

/// Whether it is what one would expect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Type {
    /// It is.
    Normal,
    /// It isn't.
    Warning,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    /// To what.
    pub(crate) regarding: Regarding,
    /// Whether it is what one would expect.
    pub(crate) kind: Type,
    /// In one word, as kubelet's.
    pub(crate) reason: &'static str,
    /// In a sentence.
    pub(crate) message: String,
    /// When it happened first.
    pub(crate) first: SystemTime,
    /// When it happened last.
    pub(crate) last: SystemTime,
    /// How often.
    pub(crate) count: u32,
}

/// All that happened lately.
#[derive(Debug, Clone)]
pub(crate) struct Events(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    kept: Mutex<VecDeque<Event>>,
    watchers: broadcast::Sender<Event>,
}

impl Default for Events {
    fn default() -> Self {
        Self(Arc::new(Shared {
            kept: Mutex::default(),
            watchers: broadcast::Sender::new(BEHIND),
        }))
    }
}

impl Events {
    /// What one would expect.
    pub(crate) fn normal(
        &self,
        regarding: impl Into<Regarding>,
        reason: &'static str,
        message: impl Into<String>,
    ) {
        self.add(regarding.into(), Type::Normal, reason, message.into());
    }

    /// What one wouldn't.
    pub(crate) fn warning(
        &self,
        regarding: impl Into<Regarding>,
        reason: &'static str,
        message: impl Into<String>,
    ) {
        self.add(regarding.into(), Type::Warning, reason, message.into());
    }

    fn add(&self, regarding: Regarding, kind: Type, reason: &'static str, message: String) {
        let (of, name) = (regarding.kind, &regarding.name);
        match kind {
            Type::Normal => tracing::info!("{of} {name}: {reason}: {message}"),
            Type::Warning => tracing::warn!("{of} {name}: {reason}: {message}"),
        }
        let now = SystemTime::now();
        let mut kept = self.0.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = |event: &Event| {
            event.regarding == regarding
                && (event.reason, event.kind) == (reason, kind)
                && event.message == message
                && now.duration_since(event.last).is_ok_and(|it| it < SAME)
        };
        let again = kept.iter().position(is_same);
        let event = match again.and_then(|at| kept.remove(at)) {
            Some(event) => Event {
                last: now,
                count: event.count.saturating_add(1),
                ..event
            },
            None => Event {
                regarding,
                kind,
                reason,
                message,
                first: now,
                last: now,
                count: 1,
            },
        };
        if kept.len() >= KEPT {
            kept.pop_front();
        }
        kept.push_back(event.clone());
        // Told while nobody else can add one: a watcher has them all, once, in their order. Without watchers
        // there is nobody to tell.
        let _ = self.0.watchers.send(event);
    }

    /// Those that are kept, the latest last, and those that come from now on.
    pub(crate) fn watch(&self) -> (Vec<Event>, broadcast::Receiver<Event>) {
        let kept = self.0.kept.lock().unwrap_or_else(PoisonError::into_inner);
        (kept.iter().cloned().collect(), self.0.watchers.subscribe())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(name: &str) -> Regarding {
        Regarding::object(Kind::Pod, &Name::new("default", name))
    }

    #[test]
    fn the_same_again_is_counted_and_comes_last() {
        let events = Events::default();
        events.warning(about("a"), "FailedMount", "no driver");
        events.warning(about("b"), "FailedMount", "no driver");
        let (_, mut watcher) = events.watch();
        events.warning(about("a"), "FailedMount", "no driver");
        events.warning(about("a"), "FailedMount", "another reason");
        let (kept, _) = events.watch();
        let told: Vec<_> = kept
            .iter()
            .map(|it| {
                (
                    it.regarding.name.name.as_str(),
                    it.message.as_str(),
                    it.count,
                )
            })
            .collect();
        assert_eq!(
            told,
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
        for number in 0..=KEPT {
            events.normal(about("a"), "Pulled", number.to_string());
        }
        let (kept, _) = events.watch();
        assert_eq!(kept.len(), KEPT);
        assert_eq!(kept[0].message, "1");
    }
}
