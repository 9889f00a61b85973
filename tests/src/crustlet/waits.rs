//! Waits for the agent. When a wait fails, the message shows the agent's events and objects.

use std::time::Duration;

use serde_json::Value;

use super::objects::Event;
use super::{AGENT_TIMEOUT, Crustlet};
use crate::wait::holds_within;

/// The timeout of a command whose output is only part of a message.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

impl Crustlet {
    /// Waits until `holds` returns true. Fails at once if the agent ends.
    #[track_caller]
    pub fn wait(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let held = holds_within(AGENT_TIMEOUT, || {
            assert!(self.is_running(), "crustlet has ended");
            holds()
        });
        assert!(held, "timed out: {what}\n{}", self.diagnostics());
    }

    /// Waits until a pod is in a phase, such as `Running`.
    #[track_caller]
    pub fn wait_pod(&self, name: &str, phase: &str) {
        self.wait(&format!("pod {name} to be {phase}"), || {
            let pods = self.all("pods");
            let mut pods = pods.iter();
            let pod = pods.find(|pod| pod["metadata"]["name"] == name);
            pod.is_some_and(|pod| pod["status"]["phase"] == phase)
        });
    }

    /// Waits until the agent does not know a pod any more and its directory is gone.
    #[track_caller]
    pub fn wait_gone(&self, uid: &str) {
        let directory = self.pod_dir(uid);
        self.wait(&format!("pod {uid} to be gone"), || {
            let pods = self.all("pods");
            let is_known = pods.iter().any(|pod| pod["metadata"]["uid"] == uid);
            !is_known && !directory.exists()
        });
    }

    /// Waits for an event about an object (`pod/web`), and returns the message of the last one.
    #[track_caller]
    pub fn wait_event(&self, object: &str, reason: &str) -> String {
        self.wait_event_containing(object, reason, "")
    }

    /// Waits for an event whose message contains `part`, and returns the message of the last one.
    #[track_caller]
    pub fn wait_event_containing(&self, object: &str, reason: &str, part: &str) -> String {
        let mut found = None;
        self.wait(&format!("event {reason} of {object}: {part}"), || {
            found = self.last_event(object, reason, part);
            found.is_some()
        });
        found.expect("an event was found").message
    }

    /// Returns the last event about an object whose message contains `part`.
    #[track_caller]
    pub fn last_event(&self, object: &str, reason: &str, part: &str) -> Option<Event> {
        let matches = |event: &Event| {
            event.object == object && event.reason == reason && event.message.contains(part)
        };
        self.events().into_iter().rfind(matches)
    }

    /// Waits until `holds` returns true for the volume with this handle.
    #[track_caller]
    pub fn wait_volume(&self, handle: &str, what: &str, holds: impl Fn(&Value) -> bool) {
        self.wait(&format!("volume {handle} to be {what}"), || {
            self.volume(handle).is_some_and(|volume| holds(&volume))
        });
    }

    /// Waits until no volume is staged or published, and no directory of a volume is left.
    #[track_caller]
    pub fn wait_no_volumes(&self) {
        self.wait("all volumes to be unstaged", || {
            self.all("volumes").is_empty() && self.leftovers().is_empty()
        });
    }

    /// Returns the agent's events, pods and volumes for a message of a failed test.
    pub(super) fn diagnostics(&self) -> String {
        let output_of = |arguments: &[&str]| {
            if self.is_running() {
                let mut run = self.client(arguments);
                crate::Run::capture_within(&mut run, ANSWER_TIMEOUT)
                    .map_or_else(|| "no answer in time".to_owned(), |run| run.to_string())
            } else {
                "crustlet is not running".to_owned()
            }
        };
        let events = output_of(&["get", "events"]);
        let pods = output_of(&["get", "pods", "-o", "wide"]);
        let volumes = output_of(&["get", "volumes", "-o", "wide"]);
        format!("{events}\n{pods}\n{volumes}")
    }
}
