//! Waiting for what the agent does. Who waits in vain is told what the agent has said.

use std::time::Duration;

use serde_json::Value;

use super::objects::Event;
use super::{AGENT_TIMEOUT, Crustlet};
use crate::wait::holds_within_polling;

/// Between two looks, each of which is a program's run.
const INTERVAL: Duration = Duration::from_millis(50);

impl Crustlet {
    /// Waits until something holds, as long as the agent runs.
    ///
    /// # Panics
    ///
    /// When it never does.
    #[track_caller]
    pub fn wait(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let held = holds_within_polling(INTERVAL, AGENT_TIMEOUT, || {
            assert!(self.is_running(), "crustlet has ended");
            holds()
        });
        assert!(held, "waited in vain: {what}\n{}", self.diagnostics());
    }

    /// Waits until a pod is in a phase: `Running`.
    ///
    /// # Panics
    ///
    /// When it never is.
    #[track_caller]
    pub fn wait_pod(&self, name: &str, phase: &str) {
        self.wait(&format!("pod {name} to be {phase}"), || {
            let pods = self.all("pods");
            let mut pods = pods.iter();
            let pod = pods.find(|pod| pod["metadata"]["name"] == name);
            pod.is_some_and(|pod| pod["status"]["phase"] == phase)
        });
    }

    /// Waits until nothing is known of a pod, nor of its directory.
    ///
    /// # Panics
    ///
    /// When it stays.
    #[track_caller]
    pub fn wait_gone(&self, uid: &str) {
        let directory = self.pod_dir(uid);
        self.wait(&format!("pod {uid} to be gone"), || {
            let pods = self.all("pods");
            let is_known = pods.iter().any(|pod| pod["metadata"]["uid"] == uid);
            !is_known && !directory.exists()
        });
    }

    /// Waits for an event of an object's, `pod/web`; what it says, the last of them if there are several.
    ///
    /// # Panics
    ///
    /// When there is none.
    #[track_caller]
    pub fn wait_event(&self, object: &str, reason: &str) -> String {
        self.wait_event_containing(object, reason, "")
    }

    /// The same, for one that says this besides.
    ///
    /// # Panics
    ///
    /// When there is none.
    #[track_caller]
    pub fn wait_event_containing(&self, object: &str, reason: &str, part: &str) -> String {
        let mut found = None;
        self.wait(&format!("event {reason} of {object}: {part}"), || {
            found = self.last_event(object, reason, part);
            found.is_some()
        });
        found.expect("it was waited for").message
    }

    /// The last event of an object's that says this.
    ///
    /// # Panics
    ///
    /// When it can't be asked.
    #[track_caller]
    pub fn last_event(&self, object: &str, reason: &str, part: &str) -> Option<Event> {
        let is_it = |event: &Event| {
            event.object == object && event.reason == reason && event.message.contains(part)
        };
        self.events().into_iter().rfind(is_it)
    }

    /// Waits until the agent says so of a volume, by its handle.
    ///
    /// # Panics
    ///
    /// When it never does.
    #[track_caller]
    pub fn wait_volume(&self, handle: &str, what: &str, holds: impl Fn(&Value) -> bool) {
        self.wait(&format!("volume {handle} to be {what}"), || {
            self.volume(handle).is_some_and(|volume| holds(&volume))
        });
    }

    /// Waits until no volume is staged or published any more, and nothing of one is on the disk.
    ///
    /// # Panics
    ///
    /// When one is.
    #[track_caller]
    pub fn wait_no_volumes(&self) {
        self.wait("all volumes to be unstaged", || {
            self.all("volumes").is_empty() && self.leftovers().is_empty()
        });
    }

    /// For whoever reads why a test failed.
    pub(super) fn diagnostics(&self) -> String {
        let said = |arguments: &[&str]| {
            if self.is_running() {
                let mut run = self.client(arguments);
                crate::Run::within(&mut run, INTERVAL * 100)
                    .map_or_else(|| "no answer".to_owned(), |run| run.to_string())
            } else {
                "it doesn't run".to_owned()
            }
        };
        let events = said(&["get", "events"]);
        let pods = said(&["get", "pods", "-o", "wide"]);
        let volumes = said(&["get", "volumes", "-o", "wide"]);
        format!("{events}\n{pods}\n{volumes}")
    }
}
