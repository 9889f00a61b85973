//! The report, as text or JSON.

use std::process::ExitCode;

use serde_json::{Value, json};

use crate::options::{Options, Output, Selection};
use crate::requirement::{Group, Level, Requirement};
use crate::runner::CheckOutcome;

/// A report. In text form each outcome is printed when it is added; JSON is printed at the end.
#[derive(Debug)]
pub(crate) struct Report {
    json: bool,
    runtime: String,
    group: &'static str,
    passed: u32,
    failed: u32,
    skipped: u32,
    must_failed: bool,
    entries: Vec<Value>,
}

impl Report {
    pub(crate) fn new(options: &Options) -> Self {
        let suite = &options.suite;
        let report = Self {
            json: options.output == Output::Json,
            runtime: suite.runtime.display().to_string(),
            group: "",
            passed: 0,
            failed: 0,
            skipped: 0,
            must_failed: false,
            entries: Vec::new(),
        };
        if !report.json {
            println!(
                "{}, with the crust directory {}",
                report.runtime,
                suite.crust_root.display()
            );
        }
        report
    }

    pub(crate) fn add(
        &mut self,
        (group, requirement): (&'static Group, &'static Requirement),
        outcome: CheckOutcome,
    ) {
        let (count, word, result, reason) = match outcome {
            CheckOutcome::Passed => (&mut self.passed, "ok", "passed", None),
            CheckOutcome::Failed(reason) => (&mut self.failed, "FAIL", "failed", Some(reason)),
            CheckOutcome::Skipped(reason) => (&mut self.skipped, "skip", "skipped", Some(reason)),
        };
        *count += 1;
        self.must_failed |= result == "failed" && requirement.level == Level::Must;
        if self.json {
            let mut entry = describe_requirement(group, requirement);
            entry["result"] = result.into();
            entry["reason"] = reason.into();
            self.entries.push(entry);
            return;
        }
        if self.group != group.name {
            println!("\n{}", group.name);
            self.group = group.name;
        }
        let reason = reason.map_or(String::new(), |reason| format!(" — {reason}"));
        // Only a failure marks its level: a runtime may choose to fail a SHOULD.
        let level = match (result, requirement.level) {
            ("failed", Level::Should) => " (SHOULD)",
            _ => "",
        };
        println!(
            "{word:4}  {:32}  {}{level}{reason}",
            requirement.id, requirement.sentence
        );
    }

    pub(crate) fn finish(self) -> ExitCode {
        let total = self.passed + self.failed + self.skipped;
        if self.json {
            let report = json!({
                "runtime": self.runtime,
                "requirements": self.entries,
                "summary": {
                    "total": total,
                    "passed": self.passed,
                    "failed": self.failed,
                    "skipped": self.skipped,
                },
            });
            println!("{report:#}");
        } else {
            println!(
                "\n{total} requirements: {} passed, {} failed, {} skipped",
                self.passed, self.failed, self.skipped
            );
        }
        if self.must_failed {
            ExitCode::FAILURE
        } else {
            ExitCode::SUCCESS
        }
    }
}

/// Prints the table of requirements.
pub(crate) fn list(selection: &Selection) {
    for (_, requirement) in selection.requirements() {
        println!(
            "{:32}  {:8}  {:6}  {}  [{}]",
            requirement.id,
            requirement.kind.name(),
            requirement.level.name(),
            requirement.sentence,
            requirement.source
        );
    }
}

fn describe_requirement(group: &Group, requirement: &Requirement) -> Value {
    json!({
        "id": requirement.id,
        "group": group.name,
        "kind": requirement.kind.name(),
        "level": requirement.level.name(),
        "source": requirement.source,
        "sentence": requirement.sentence,
    })
}
