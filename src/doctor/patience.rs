//! A look at something that hangs has an end: each is a thread's, and is waited for only so long.

use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use crust_state::check::Finding;

/// For all of them, which look at the same time.
const PATIENCE: Duration = Duration::from_secs(8);

/// A check that has begun.
pub(super) struct Check {
    what: &'static str,
    findings: Receiver<Vec<Finding>>,
}

impl Check {
    /// Begins to look.
    pub(super) fn new(
        what: &'static str,
        look: impl FnOnce() -> Vec<Finding> + Send + 'static,
    ) -> Self {
        let (tell, findings) = channel();
        // A thread that can't be started tells nothing, as one that has panicked.
        let _ = thread::Builder::new().spawn(move || {
            // Who waited no longer hears nothing.
            let _ = tell.send(look());
        });
        Self { what, findings }
    }
}

/// What was found, in the order of the checks.
pub(super) fn answers(checks: Vec<Check>) -> Vec<Finding> {
    answers_by(Instant::now() + PATIENCE, checks)
}

fn answers_by(end: Instant, checks: Vec<Check>) -> Vec<Finding> {
    let answers = checks.into_iter().map(|check| {
        let left = end.saturating_duration_since(Instant::now());
        check.findings.recv_timeout(left).unwrap_or_else(|_| {
            vec![Finding::fail(
                check.what,
                format!("there was no answer in {} seconds", PATIENCE.as_secs()),
                "a file system or a device that it looks at may hang: `ps` shows who waits, in \
                 state D",
            )]
        })
    });
    answers.flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hangs_is_told_and_holds_nothing_up() {
        let (hold, endless) = channel::<()>();
        let checks = vec![
            Check::new("hangs", move || {
                let _ = endless.recv();
                Vec::new()
            }),
            Check::new("fine", || vec![Finding::pass("fine", "all")]),
            Check::new("panics", || panic!("on purpose")),
        ];
        // The others have told before it is asked.
        while checks[1].findings.try_recv().is_err() {
            thread::yield_now();
        }
        let findings = answers_by(Instant::now(), checks);
        let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
        assert!(lines[0].starts_with("FAIL  hangs: there was no answer"));
        drop(hold);
    }
}
