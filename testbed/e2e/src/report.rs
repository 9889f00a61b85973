//! The results of the scenarios, as lines of text and as JSON.

use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};

/// How a scenario ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    /// The error, and what the API server reported on the scenario's pods.
    Failed {
        error: String,
        details: Vec<String>,
    },
    /// The reason, such as a class that the cluster doesn't have.
    Skipped(String),
}

impl Outcome {
    const fn name(&self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed { .. } => "failed",
            Self::Skipped(_) => "skipped",
        }
    }
}

/// The error of a scenario that can't be run on this cluster.
#[derive(Debug)]
pub(crate) struct Skip(pub(crate) String);

impl fmt::Display for Skip {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Skip {}

/// The result of one scenario.
#[derive(Debug)]
pub(crate) struct ScenarioResult {
    pub(crate) name: &'static str,
    pub(crate) outcome: Outcome,
    pub(crate) duration: Duration,
}

/// The versions of what was tested.
#[derive(Debug, Default)]
pub(crate) struct Versions {
    pub(crate) kubernetes: String,
    pub(crate) engine: String,
    pub(crate) kernel: String,
    pub(crate) runcrust: String,
}

/// The results of all scenarios.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) versions: Versions,
    pub(crate) results: Vec<ScenarioResult>,
}

impl Report {
    pub(crate) fn has_failed(&self) -> bool {
        let failed = |result: &ScenarioResult| matches!(result.outcome, Outcome::Failed { .. });
        self.results.iter().any(failed)
    }

    pub(crate) fn to_json(&self) -> Value {
        let Versions {
            kubernetes,
            engine,
            kernel,
            runcrust,
        } = &self.versions;
        let results = self.results.iter().map(|result| {
            let mut value = json!({
                "name": result.name,
                "outcome": result.outcome.name(),
                "seconds": (result.duration.as_secs_f64() * 1000.0).round() / 1000.0,
            });
            match &result.outcome {
                Outcome::Passed => {}
                Outcome::Failed { error, details } => {
                    value["error"] = json!(error);
                    value["details"] = json!(details);
                }
                Outcome::Skipped(reason) => value["reason"] = json!(reason),
            }
            value
        });
        json!({
            "versions": {
                "kubernetes": kubernetes,
                "engine": engine,
                "kernel": kernel,
                "runcrust": runcrust,
            },
            "scenarios": results.collect::<Vec<_>>(),
            "summary": {
                "total": self.results.len(),
                "passed": self.count("passed"),
                "failed": self.count("failed"),
                "skipped": self.count("skipped"),
            },
        })
    }

    /// Returns the number of scenarios with an outcome.
    fn count(&self, outcome: &str) -> usize {
        let results = self.results.iter();
        results
            .filter(|result| result.outcome.name() == outcome)
            .count()
    }
}

/// The table that ends the output.
impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.results.iter().map(|result| result.name.len()).max();
        let width = width.unwrap_or_default();
        for result in &self.results {
            let (name, outcome) = (result.name, result.outcome.name());
            let seconds = result.duration.as_secs_f64();
            write!(formatter, "{name:width$}  {outcome:7}  {seconds:6.1} s")?;
            match &result.outcome {
                Outcome::Passed => writeln!(formatter)?,
                Outcome::Failed { error, .. } => writeln!(formatter, "  {error}")?,
                Outcome::Skipped(reason) => writeln!(formatter, "  {reason}")?,
            }
        }
        let [passed, failed, skipped] =
            ["passed", "failed", "skipped"].map(|outcome| self.count(outcome));
        write!(
            formatter,
            "{passed} passed, {failed} failed, {skipped} skipped"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let result = |name, outcome| ScenarioResult {
            name,
            outcome,
            duration: Duration::from_millis(1500),
        };
        let failed = Outcome::Failed {
            error: "pod a: not running after 3 s".to_owned(),
            details: vec!["pod a: Pending".to_owned()],
        };
        let skipped = Outcome::Skipped("no class".to_owned());
        Report {
            versions: Versions::default(),
            results: vec![
                result("job", Outcome::Passed),
                result("crash-loop", failed),
                result("nfs", skipped),
            ],
        }
    }

    #[test]
    fn a_table_and_the_totals_end_the_output() {
        let expected = "\
job         passed      1.5 s
crash-loop  failed      1.5 s  pod a: not running after 3 s
nfs         skipped     1.5 s  no class
1 passed, 1 failed, 1 skipped";
        assert_eq!(report().to_string(), expected);
        assert!(report().has_failed());
    }

    #[test]
    fn json_has_the_reasons_and_the_times() {
        let scenarios = report().to_json()["scenarios"].clone();
        assert_eq!(
            scenarios[0],
            json!({"name": "job", "outcome": "passed", "seconds": 1.5})
        );
        assert_eq!(scenarios[1]["details"], json!(["pod a: Pending"]));
        assert_eq!(scenarios[2]["reason"], "no class");
        let summary = json!({"total": 3, "passed": 1, "failed": 1, "skipped": 1});
        assert_eq!(report().to_json()["summary"], summary);
    }
}
