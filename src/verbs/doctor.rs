//! `doctor`: checks this node for problems.

use std::ffi::OsString;
use std::fmt::{self, Display};

use crust_state::Config;
use crust_state::check::{CheckVerdict, Finding};
use crust_state::config::ConfigError;
use serde_json::{Value, json};

use super::output::{CommandOutput, OutputFormat, Printable};
use crate::doctor;

#[derive(Debug, clap::Args)]
pub(super) struct DoctorArgs {
    #[command(flatten)]
    format: OutputFormat,
}

pub(super) fn run(
    arguments: &DoctorArgs,
    argv0: Option<&OsString>,
    config: Result<Config, ConfigError>,
) -> CommandOutput {
    let findings = Findings(doctor::examine(config, argv0.cloned()));
    let output = CommandOutput::new(&findings, arguments.format);
    match findings.count(CheckVerdict::Fail) {
        0 => output,
        _ => output.with_failure(),
    }
}

struct Findings(Vec<Finding>);

impl Findings {
    fn count(&self, verdict: CheckVerdict) -> usize {
        let all = self.0.iter();
        all.filter(|finding| finding.verdict == verdict).count()
    }
}

impl Printable for Findings {
    fn json(&self) -> Value {
        json!({
            "checks": self.0,
            "passed": self.count(CheckVerdict::Pass),
            "warned": self.count(CheckVerdict::Warn),
            "failed": self.count(CheckVerdict::Fail),
        })
    }
}

impl Display for Findings {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        formatter.write_str(&lines.join("\n"))
    }
}
