//! A node, and what `doctor` says of it.

use std::process::Command;

use runcrust_tests::{Delegate, Node, Run};
use serde::Deserialize;
use serde_json::Value;

/// All of them, in their order; where the configuration can be read.
pub(crate) const CHECKS: [&str; 17] = [
    "kernel",
    "mount API",
    "user",
    "capabilities",
    "configuration",
    "file systems",
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

pub(crate) fn in_order(delegate: Delegate) -> Node {
    Node::well_configured(delegate, "")
}

/// One finding.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Finding {
    pub(crate) check: String,
    pub(crate) verdict: String,
    pub(crate) found: String,
    pub(crate) fix: Option<String>,
}

/// A report.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) findings: Vec<Finding>,
    pub(crate) whole: Value,
    pub(crate) succeeded: bool,
}

impl Told {
    /// A check has this verdict, and found what has these words.
    #[track_caller]
    pub(crate) fn assert(&self, check: &str, verdict: &str, words: &str) -> &Finding {
        let mut all = self.findings.iter().filter(|it| it.check == check);
        let found = all.find(|it| it.verdict == verdict && it.found.contains(words));
        let found =
            found.unwrap_or_else(|| panic!("no {verdict} {words:?} of {check} in {self:#?}"));
        assert_eq!(found.fix.is_none(), verdict == "pass", "{found:?}");
        found
    }

    /// There is no such check.
    #[track_caller]
    pub(crate) fn assert_none(&self, check: &str) {
        let found = self.findings.iter().find(|it| it.check == check);
        assert!(found.is_none(), "{found:?}");
    }
}

/// The report on a node.
#[track_caller]
pub(crate) fn doctor(node: &Node) -> Told {
    let mut command = node.handler().command();
    told(&mut command)
}

/// The same by another program, which runs it.
#[track_caller]
pub(crate) fn doctor_by(node: &Node, program: &str, arguments: &[&str]) -> Told {
    let mut by = Command::new(program);
    told(by.args(arguments).arg(node.handler().path()))
}

#[track_caller]
fn told(command: &mut Command) -> Told {
    let run = Run::of(command.args(["crust", "doctor", "--json"]));
    assert_eq!(
        (run.stderr.as_str(), run.stdout.lines().count()),
        ("", 1),
        "{run}"
    );
    let whole: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|_| panic!("{run}"));
    let checks = whole["checks"].clone();
    let told = Told {
        findings: serde_json::from_value(checks).unwrap_or_else(|error| panic!("{error}: {run}")),
        succeeded: run.status.success(),
        whole,
    };
    let failed = told.findings.iter().any(|it| it.verdict == "fail");
    assert_eq!(told.succeeded, !failed, "{run}");
    told
}
