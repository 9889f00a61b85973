//! What a verb answers. The verbs that CSI drivers call say one JSON object; those that people call
//! say the same in words, unless they are asked for the object.

use std::fmt::{self, Display};

use serde_json::Value;

/// Which form an answer has.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(super) struct Form {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What has a form for people, which is how it is displayed (lines, without the last one's end), and
/// one for programs.
pub(super) trait Report: Display {
    /// One object.
    fn json(&self) -> Value;
}

/// What is printed.
#[derive(Debug)]
pub(super) struct Answer(String);

impl Answer {
    /// A report in the form that was asked for.
    pub(super) fn new(report: &impl Report, form: Form) -> Self {
        if form.json {
            return report.json().into();
        }
        Self(report.to_string())
    }
}

impl From<Value> for Answer {
    fn from(object: Value) -> Self {
        Self(object.to_string())
    }
}

impl Display for Answer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}
