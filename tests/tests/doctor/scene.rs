//! A node, and `doctor`'s report on it.

use std::process::Command;

use runcrust_tests::{Delegate, Node, Run};
use serde::Deserialize;
use serde_json::Value;

/// All checks in their order. With an invalid configuration some of them are left out.
pub(crate) const CHECKS: [&str; 18] = [
    "kernel",
    "mount API",
    "user",
    "capabilities",
    "configuration",
    "file systems",
    "NFS client",
    "delegate",
    "cgroups",
    "hook",
    "crust directory",
    "state directory",
    "leftovers",
    "log",
    "kubelet's directories",
    "propagation",
    "handler",
    "crust_ops",
];

pub(crate) fn well_configured(delegate: Delegate) -> Node {
    Node::well_configured(delegate, "")
}

/// One finding of the report.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Finding {
    pub(crate) check: String,
    pub(crate) verdict: String,
    pub(crate) found: String,
    pub(crate) fix: Option<String>,
}

/// A report of `doctor --json`.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) findings: Vec<Finding>,
    pub(crate) whole: Value,
    pub(crate) succeeded: bool,
}

impl Report {
    /// Asserts that a check has this verdict, with a finding that contains `words`, and a fix unless it passed.
    #[track_caller]
    pub(crate) fn assert(&self, check: &str, verdict: &str, words: &str) -> &Finding {
        let mut all = self.findings.iter().filter(|it| it.check == check);
        let found = all.find(|it| it.verdict == verdict && it.found.contains(words));
        let found =
            found.unwrap_or_else(|| panic!("no {verdict} {words:?} of {check} in {self:#?}"));
        assert_eq!(found.fix.is_none(), verdict == "pass", "{found:?}");
        found
    }

    /// Asserts that the report has no such check.
    #[track_caller]
    pub(crate) fn assert_none(&self, check: &str) {
        let found = self.findings.iter().find(|it| it.check == check);
        assert!(found.is_none(), "{found:?}");
    }
}

/// Runs `doctor` on a node.
#[track_caller]
pub(crate) fn doctor(node: &Node) -> Report {
    let mut command = node.handler().command();
    report(&mut command)
}

/// Runs `doctor` through another program, such as `unshare`.
#[track_caller]
pub(crate) fn doctor_by(node: &Node, program: &str, arguments: &[&str]) -> Report {
    let mut by = Command::new(program);
    report(by.args(arguments).arg(node.handler().path()))
}

#[track_caller]
fn report(command: &mut Command) -> Report {
    let run = Run::capture(command.args(["crust", "doctor", "--json"]));
    assert_eq!(
        (run.stderr.as_str(), run.stdout.lines().count()),
        ("", 1),
        "{run}"
    );
    let whole: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|_| panic!("{run}"));
    let checks = whole["checks"].clone();
    let report = Report {
        findings: serde_json::from_value(checks).unwrap_or_else(|error| panic!("{error}: {run}")),
        succeeded: run.status.success(),
        whole,
    };
    let failed = report.findings.iter().any(|it| it.verdict == "fail");
    assert_eq!(report.succeeded, !failed, "{run}");
    report
}
