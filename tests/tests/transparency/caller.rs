//! A program that calls both twins' runtimes.

use crate::twin::{Answer, Call};
use crate::twins::Twins;

/// A program that calls a runtime, with the same global flags each time.
pub(crate) struct Caller<'a> {
    pub(crate) twins: &'a Twins,
    pub(crate) globals: &'a str,
}

impl Caller<'_> {
    #[track_caller]
    pub(crate) fn says(&self, line: &str) -> Answer {
        self.gives("", line)
    }

    #[track_caller]
    pub(crate) fn gives(&self, stdin: &str, line: &str) -> Answer {
        let line = format!("{} {line}", self.globals);
        self.twins.same_call(Call {
            line: &line,
            stdin,
            ..Call::default()
        })
    }

    /// runc 1.1.5 gives up to freeze processes that get no time on a busy machine.
    #[track_caller]
    pub(crate) fn says_at_last(&self, line: &str) -> Answer {
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
        let [theirs, ours] = worked.map(|answer| answer.expect("one of twenty works"));
        assert_eq!(theirs, ours, "{line}");
        ours
    }

    /// Both fail. With a volume, and where the delegate doesn't know the options either, runcrust
    /// has words of its own.
    #[track_caller]
    pub(crate) fn is_refused(&self, line: &str) {
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
