//! What the command lines of docker and podman have in common.

use std::time::Duration;

use crate::Run;
use crate::node::WAIT_TIMEOUT;
use crate::wait::holds_within_polling;

/// The time between two questions to an engine.
pub(crate) const INTERVAL: Duration = Duration::from_millis(50);

/// A container engine with docker's command line.
pub trait Engine {
    /// Runs its client.
    fn run(&self, arguments: &[&str]) -> Run;

    /// Runs a shell script in a running container, and returns its trimmed standard output.
    #[track_caller]
    fn sh(&self, name: &str, script: &str) -> String {
        let run = self.run(&["exec", name, "/bin/sh", "-ec", script]);
        run.success().stdout.trim().to_owned()
    }

    /// Returns what the engine says of a container, by a Go template.
    #[track_caller]
    fn inspect(&self, name: &str, format: &str) -> String {
        let run = self.run(&["inspect", "--format", format, name]);
        run.success().stdout.trim().to_owned()
    }

    /// Waits until the engine says this of a container, by a Go template.
    #[track_caller]
    fn wait_until(&self, name: &str, format: &str, expected: &str) {
        let mut found = String::new();
        let came = holds_within_polling(INTERVAL, WAIT_TIMEOUT, || {
            found = self.inspect(name, format);
            found == expected
        });
        assert!(came, "{format} of {name} is {found}, not {expected}");
    }

    /// Waits until a file in a container that may start meanwhile has this content.
    #[track_caller]
    fn wait_for_content(&self, name: &str, path: &str, expected: &str) {
        let mut look = None;
        let came = holds_within_polling(INTERVAL, WAIT_TIMEOUT, || {
            look.insert(self.run(&["exec", name, "cat", path])).stdout == expected
        });
        assert!(came, "{path} isn't {expected:?}: {look:?}");
    }
}
