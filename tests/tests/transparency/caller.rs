//! A program that calls the bare delegate and runcrust in the same way.

use crate::compared_container::{Answer, Call};
use crate::container_pair::ContainerPair;

/// A program that calls both [`ContainerPair`], with the same global flags each time.
pub(crate) struct Caller<'a> {
    pub(crate) pair: &'a ContainerPair,
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
        self.pair.assert_same_call(Call {
            line: &line,
            stdin,
            ..Call::default()
        })
    }

    /// Retries a call until it succeeds: runc 1.1.5 fails to freeze processes that get no CPU time on a busy machine.
    #[track_caller]
    pub(crate) fn call_until_success(&self, line: &str) -> Answer {
        let line = format!("{} {line}", self.globals);
        let worked = self.pair.members().map(|member| {
            let calls = (0..20).map(|_| {
                member.call(&Call {
                    line: &line,
                    ..Call::default()
                })
            });
            calls.into_iter().find(|answer| answer.status.success())
        });
        let [bare, wrapped] = worked.map(|answer| answer.expect("a success in twenty attempts"));
        assert_eq!(bare, wrapped, "{line}");
        wrapped
    }

    /// Asserts that both calls fail, each with its own message. The message is runcrust's own for a container with a
    /// volume, and for options that the delegate does not know either.
    #[track_caller]
    pub(crate) fn assert_refused(&self, line: &str) {
        let line = format!("{} {line}", self.globals);
        let [bare, wrapped] = self.pair.answers(&line);
        assert!(!bare.status.success(), "{bare:#?} {wrapped:#?}");
        assert_eq!(
            (wrapped.status.code(), &*wrapped.stdout),
            (Some(1), ""),
            "{wrapped:#?}"
        );
        assert!(!wrapped.stderr.is_empty(), "{wrapped:#?}");
    }
}
