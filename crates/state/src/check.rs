//! The node checks that `runcrust crust doctor` and `crust_ops --check` share, and the type of their findings.

mod directory;

use std::error::Error;
use std::fmt;
use std::path::Path;

use serde::{Serialize, Serializer};

pub use directory::directory;

use crate::error_message;
use crate::printable::one_line;
use crate::trust::{self, TrustError, in_user_namespace};

/// The verdict of a check, from best to worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckVerdict {
    Pass,
    /// Containers start, but something that an operator may want doesn't work.
    Warn,
    /// Containers with volumes don't start.
    Fail,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub check: &'static str,
    pub verdict: CheckVerdict,
    pub found: String,
    /// The next step for the operator; empty if nothing has to be done.
    #[serde(serialize_with = "empty_as_null")]
    pub fix: String,
}

impl Finding {
    pub fn pass(check: &'static str, found: impl Into<String>) -> Self {
        Self::new(check, CheckVerdict::Pass, found, "")
    }

    /// Returns a warning: something that may not be needed doesn't work.
    pub fn warn(check: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::new(check, CheckVerdict::Warn, found, fix)
    }

    /// Returns a failed check: containers with volumes don't start.
    pub fn fail(check: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::new(check, CheckVerdict::Fail, found, fix)
    }

    /// Returns a failed check. The error's hint becomes the next step.
    #[must_use]
    pub fn from_error(check: &'static str, error: &(dyn Error + 'static)) -> Self {
        let message = error_message(error);
        let (found, fix) = message.split_once("; hint: ").unwrap_or((&message, ""));
        Self::fail(check, found, fix)
    }

    /// Turns a failure into a warning.
    #[must_use]
    pub fn at_most_warning(self) -> Self {
        let verdict = self.verdict.min(CheckVerdict::Warn);
        Self { verdict, ..self }
    }

    /// Sets the next step, unless the finding already has one.
    #[must_use]
    pub fn or_fix(mut self, fix: &str) -> Self {
        if self.fix.is_empty() {
            fix.clone_into(&mut self.fix);
        }
        self
    }

    fn new(
        check: &'static str,
        verdict: CheckVerdict,
        found: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            check,
            verdict,
            found: found.into(),
            fix: fix.into(),
        }
    }
}

/// Formats the finding as one line: `FAIL  <check>: <found>; hint: <fix>`.
impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self.verdict {
            CheckVerdict::Pass => "pass",
            CheckVerdict::Warn => "warn",
            CheckVerdict::Fail => "FAIL",
        };
        let hint = if self.fix.is_empty() { "" } else { "; hint: " };
        let line = format!(
            "{verdict}  {}: {}{hint}{}",
            self.check, self.found, self.fix
        );
        formatter.write_str(&one_line(&line))
    }
}

/// Serializes an empty string as `null`.
fn empty_as_null<S: Serializer>(fix: &str, serializer: S) -> Result<S::Ok, S::Error> {
    (!fix.is_empty()).then_some(fix).serialize(serializer)
}

/// Checks that a program exists, can be executed, and that root alone can change it. `hint` is the next step for
/// errors without a hint.
#[must_use]
pub fn program(check: &'static str, path: &Path, hint: &str) -> Finding {
    match trust::resolve_program(path) {
        Ok(_) => Finding::pass(check, path.display().to_string()),
        // This error has a hint already.
        Err(error @ TrustError::Untrusted { .. }) => Finding::from_error(check, &error),
        Err(error) => Finding::fail(check, error.to_string(), hint),
    }
}

const USER_CHECK: &str = "user";

/// Checks that this process is root on the node.
#[must_use]
pub fn root_user() -> Finding {
    user_finding(rustix::process::geteuid().as_raw(), in_user_namespace())
}

fn user_finding(user: u32, in_user_namespace: bool) -> Finding {
    match (user, in_user_namespace) {
        (0, false) => Finding::pass(USER_CHECK, "root"),
        (0, true) => Finding::fail(
            USER_CHECK,
            "root of a user namespace, which can't mount a device",
            "start it as root on the node itself; in a pod, without hostUsers: false",
        ),
        (user, _) => Finding::fail(
            USER_CHECK,
            format!("uid {user} isn't root"),
            "start it as root; a rootless caller's containers get no volumes",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::CheckVerdict;

    #[test]
    fn the_hint_of_an_error_is_the_next_step() {
        let error = std::io::Error::other("open(/x): ENOENT; hint: make it; really");
        let finding = Finding::from_error("file", &error);
        let expected = Finding::fail("file", "open(/x): ENOENT", "make it; really");
        assert_eq!(finding, expected);
        let line = "FAIL  file: open(/x): ENOENT; hint: make it; really";
        assert_eq!(finding.to_string(), line);
        assert_eq!(
            finding.at_most_warning().to_string(),
            line.replace("FAIL", "warn")
        );
        let plain = Finding::from_error("file", &std::io::Error::other("no"));
        assert_eq!(plain.to_string(), "FAIL  file: no");
    }

    #[test]
    fn a_finding_is_one_line_or_one_json_object() {
        let finding = Finding::pass("kernel", "a\nb\u{1b}");
        assert_eq!(finding.to_string(), "pass  kernel: a b\\u{1b}");
        assert_eq!(
            serde_json::to_value(&finding).unwrap(),
            serde_json::json!({"check": "kernel", "verdict": "pass", "found": "a\nb\u{1b}", "fix": null})
        );
        assert_eq!(
            Finding::pass("x", "y").at_most_warning().verdict,
            CheckVerdict::Pass
        );
    }

    #[test]
    fn root_in_a_user_namespace_fails_the_check() {
        for (user, in_user_namespace, expected) in [
            (0, false, CheckVerdict::Pass),
            (0, true, CheckVerdict::Fail),
            (1000, false, CheckVerdict::Fail),
            (1000, true, CheckVerdict::Fail),
        ] {
            let finding = user_finding(user, in_user_namespace);
            assert_eq!(finding.verdict, expected, "{finding}");
        }
        let line = user_finding(1000, false).to_string();
        assert!(line.contains("uid 1000 isn't root"), "{line}");
    }
}
