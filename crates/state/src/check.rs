//! Checks of a node that `runcrust crust doctor` and `crust_ops --check` share, and the type of their findings.

mod directory;

use std::error::Error;
use std::fmt;
use std::path::Path;

use serde::{Serialize, Serializer};

pub use directory::directory;

use crate::printable::one_line;
use crate::sentence;
use crate::trust::{self, TrustError, in_user_namespace};

/// The verdict of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// All is as it should be.
    Pass,
    /// Containers start, and something that an operator may want doesn't work.
    Warn,
    /// Containers with volumes don't start.
    Fail,
}

/// The finding of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The check's name.
    #[serde(rename = "check")]
    pub what: &'static str,
    /// The verdict.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// The next step; empty if the check has passed.
    #[serde(serialize_with = "unless_empty")]
    pub fix: String,
}

impl Finding {
    /// Returns the finding of a check that has passed.
    pub fn pass(what: &'static str, found: impl Into<String>) -> Self {
        Self::of(what, Verdict::Pass, found, "")
    }

    /// Returns a warning: something doesn't work that may not be needed.
    pub fn warn(what: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::of(what, Verdict::Warn, found, fix)
    }

    /// Returns a failed check: containers with volumes don't start.
    pub fn fail(what: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::of(what, Verdict::Fail, found, fix)
    }

    /// Returns a failed check with an error, whose hint says what to do.
    #[must_use]
    pub fn failed(what: &'static str, error: &(dyn Error + 'static)) -> Self {
        let sentence = sentence(error);
        let (found, fix) = sentence.split_once("; hint: ").unwrap_or((&sentence, ""));
        Self::fail(what, found, fix)
    }

    /// The same as a warning.
    #[must_use]
    pub fn softened(self) -> Self {
        let verdict = self.verdict.min(Verdict::Warn);
        Self { verdict, ..self }
    }

    /// Says what to do where the error didn't.
    #[must_use]
    pub fn or_else(mut self, fix: &str) -> Self {
        if self.fix.is_empty() {
            fix.clone_into(&mut self.fix);
        }
        self
    }

    fn of(
        what: &'static str,
        verdict: Verdict,
        found: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            what,
            verdict,
            found: found.into(),
            fix: fix.into(),
        }
    }
}

/// Writes the line of a check.
impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self.verdict {
            Verdict::Pass => "pass",
            Verdict::Warn => "warn",
            Verdict::Fail => "FAIL",
        };
        let hint = if self.fix.is_empty() { "" } else { "; hint: " };
        let line = format!("{verdict}  {}: {}{hint}{}", self.what, self.found, self.fix);
        formatter.write_str(&one_line(&line))
    }
}

fn unless_empty<S: Serializer>(fix: &str, serializer: S) -> Result<S::Ok, S::Error> {
    (!fix.is_empty()).then_some(fix).serialize(serializer)
}

/// Checks a program that root runs for every container. `hint` is the next step where there is none.
#[must_use]
pub fn program(what: &'static str, path: &Path, hint: &str) -> Finding {
    match trust::resolve_program(path) {
        Ok(_) => Finding::pass(what, path.display().to_string()),
        // It has a hint of its own.
        Err(flaw @ TrustError::Untrusted { .. }) => Finding::failed(what, &flaw),
        Err(flaw) => Finding::fail(what, flaw.to_string(), hint),
    }
}

const WHAT: &str = "user";

/// Whether this is root on the node.
#[must_use]
pub fn user() -> Finding {
    judge(rustix::process::geteuid().as_raw(), in_user_namespace())
}

fn judge(user: u32, in_user_namespace: bool) -> Finding {
    match (user, in_user_namespace) {
        (0, false) => Finding::pass(WHAT, "root"),
        (0, true) => Finding::fail(
            WHAT,
            "root of a user namespace, who can mount no device",
            "start it as root on the node itself; in a pod, without hostUsers: false",
        ),
        (user, _) => Finding::fail(
            WHAT,
            format!("uid {user} isn't root"),
            "start it as root; a rootless caller's containers get no volumes",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Verdict;

    #[test]
    fn an_errors_hint_is_what_to_do() {
        let error = std::io::Error::other("open(/x): ENOENT; hint: make it; really");
        let finding = Finding::failed("file", &error);
        let expected = Finding::fail("file", "open(/x): ENOENT", "make it; really");
        assert_eq!(finding, expected);
        let line = "FAIL  file: open(/x): ENOENT; hint: make it; really";
        assert_eq!(finding.to_string(), line);
        assert_eq!(finding.softened().to_string(), line.replace("FAIL", "warn"));
        let plain = Finding::failed("file", &std::io::Error::other("no"));
        assert_eq!(plain.to_string(), "FAIL  file: no");
    }

    #[test]
    fn what_is_found_is_one_line_and_an_object() {
        let finding = Finding::pass("kernel", "a\nb\u{1b}");
        assert_eq!(finding.to_string(), "pass  kernel: a b\\u{1b}");
        assert_eq!(
            serde_json::to_value(&finding).unwrap(),
            serde_json::json!({"check": "kernel", "verdict": "pass", "found": "a\nb\u{1b}", "fix": null})
        );
        assert_eq!(Finding::pass("x", "y").softened().verdict, Verdict::Pass);
    }

    #[test]
    fn only_root_on_the_node_is_root() {
        for (user, in_user_namespace, expected) in [
            (0, false, Verdict::Pass),
            (0, true, Verdict::Fail),
            (1000, false, Verdict::Fail),
            (1000, true, Verdict::Fail),
        ] {
            let finding = judge(user, in_user_namespace);
            assert_eq!(finding.verdict, expected, "{finding}");
        }
        let line = judge(1000, false).to_string();
        assert!(line.contains("uid 1000 isn't root"), "{line}");
    }
}
