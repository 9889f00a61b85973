//! A program that calls the bare delegate and runcrust in the same way.

use crate::twin::{Answer, Call};
use crate::twins::Twins;

/// A program that calls both [`Twins`], with the same global flags each time.
pub(crate) struct Caller<'a> {
    pub(crate) twins: &'a Twins,
    pub(crate) globals: &'a str,
}

impl Caller<'_> {
    /// Calls both runtimes and asserts that they answer the same.
    #[track_caller]
    pub(crate) fn call(&self, line: &str) -> Answer {
        self.call_with_stdin("", line)
    }

    #[track_caller]
    pub(crate) fn call_with_stdin(&self, stdin: &str, line: &str) -> Answer {
        let line = format!("{} {line}", self.globals);
        self.twins.assert_same_call(Call {
            line: &line,
            stdin,
            ..Call::default()
        })
    }

    /// Retries a call until it succeeds: runc 1.1.5 fails to freeze processes that get no CPU time on a busy machine.
    #[track_caller]
    pub(crate) fn call_until_success(&self, line: &str) -> Answer {
        let line = format!("{} {line}", self.globals);
        let worked = self.twins.both().map(|twin| {
            let calls = (0..20).map(|_| {
                twin.call(&Call {
                    line: &line,
                    ..Call::default()
                })
            });
            calls.into_iter().find(|answer| answer.status.success())
        });
        let [theirs, ours] = worked.map(|answer| answer.expect("a success in twenty attempts"));
        assert_eq!(theirs, ours, "{line}");
        ours
    }

    /// Asserts that both calls fail, each with its own message. The message is runcrust's own for a container with a
    /// volume, and for options that the delegate does not know either.
    #[track_caller]
    pub(crate) fn assert_refused(&self, line: &str) {
        let line = format!("{} {line}", self.globals);
        let [theirs, ours] = self.twins.answers(&line);
        assert!(!theirs.status.success(), "{theirs:#?} {ours:#?}");
        assert_eq!(
            (ours.status.code(), &*ours.stdout),
            (Some(1), ""),
            "{ours:#?}"
        );
        assert!(!ours.stderr.is_empty(), "{ours:#?}");
    }
}
