//! The command line that docker and podman have in common.

use crate::Run;
use crate::node::WAIT_TIMEOUT;
use crate::wait::holds_within;

/// A container engine with docker's command line.
pub trait Engine {
    /// Runs the client with these arguments.
    fn run(&self, arguments: &[&str]) -> Run;

    /// Runs a shell script in a running container, which must succeed, and returns its trimmed output.
    #[track_caller]
    fn sh(&self, name: &str, script: &str) -> String {
        let run = self.run(&["exec", name, "/bin/sh", "-ec", script]);
        run.success().stdout.trim().to_owned()
    }

    /// Returns a property of a container, selected by a Go template.
    #[track_caller]
    fn inspect(&self, name: &str, format: &str) -> String {
        let run = self.run(&["inspect", "--format", format, name]);
        run.success().stdout.trim().to_owned()
    }

    /// Waits until a property of a container, selected by a Go template, has this value.
    #[track_caller]
    fn wait_until(&self, name: &str, format: &str, expected: &str) {
        let mut found = String::new();
        let matched = holds_within(WAIT_TIMEOUT, || {
            found = self.inspect(name, format);
            found == expected
        });
        assert!(matched, "{format} of {name} is {found}, not {expected}");
    }

    /// Waits until a file in a container has this content. The container need not be running yet.
    #[track_caller]
    fn wait_for_content(&self, name: &str, path: &str, expected: &str) {
        let mut last = None;
        let matched = holds_within(WAIT_TIMEOUT, || {
            last.insert(self.run(&["exec", name, "cat", path])).stdout == expected
        });
        assert!(matched, "{path} isn't {expected:?}: {last:?}");
    }
}
