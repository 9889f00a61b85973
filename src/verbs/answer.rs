//! What a verb answers. The verbs that CSI drivers call say one JSON object; those that people call
//! say the same in words, unless they are asked for the object.

use std::fmt::{self, Display};

use crust_state::printable::printable_json;
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
pub(super) struct Answer {
    text: String,
    /// What was asked about isn't as it should be.
    is_of_a_failure: bool,
}

impl Answer {
    /// A report in the form that was asked for.
    pub(super) fn new(report: &impl Report, form: Form) -> Self {
        if form.json {
            return report.json().into();
        }
        Self::saying(report.to_string())
    }

    /// The same with an exit code that says so.
    pub(super) fn of_a_failure(self) -> Self {
        Self {
            is_of_a_failure: true,
            ..self
        }
    }

    /// Whether it is one.
    pub(super) const fn is_of_a_failure(&self) -> bool {
        self.is_of_a_failure
    }

    const fn saying(text: String) -> Self {
        Self {
            text,
            is_of_a_failure: false,
        }
    }
}

impl From<Value> for Answer {
    fn from(object: Value) -> Self {
        Self::saying(printable_json(&object.to_string()).into_owned())
    }
}

impl Display for Answer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}
