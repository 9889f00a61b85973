//! The program that `runtime-cli` names.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use runcrust_tests::Run;
use runcrust_tests::node::utf8;
use serde_json::Value;

use super::{Entry, expect};
use crate::suite::Suite;

/// The program, to be called about a volume in use.
#[derive(Debug)]
pub(crate) struct Cli {
    program: PathBuf,
    timeout: Duration,
}

impl Cli {
    /// Finds the program of an entry as `crust_ops` does.
    #[track_caller]
    pub(crate) fn read(entry: &Entry, suite: &Suite) -> Self {
        let file = entry.runtime_cli();
        let text = fs::read_to_string(&file);
        let text = text.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let line = text.strip_suffix('\n').unwrap_or(&text);
        let program = PathBuf::from(line);
        assert!(
            program.is_absolute() && program.is_file() && !line.contains('\n'),
            "runtime-cli is not one line with the absolute path of a program: {text:?}"
        );
        Self {
            program,
            timeout: suite.timeout,
        }
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Run {
        let mut command = Command::new(&self.program);
        command.env_clear().arg("crust").args(arguments);
        Run::capture_within(&mut command, self.timeout).unwrap_or_else(|| {
            panic!(
                "{} crust {}: not ended within {:?}",
                self.program.display(),
                arguments.join(" "),
                self.timeout
            )
        })
    }

    pub(crate) fn stats(&self, target: &Path) -> Run {
        self.run(&["stats", utf8(target)])
    }

    pub(crate) fn resize(&self, target: &Path, min: u64, max: u64) -> Run {
        let (min, max) = (min.to_string(), max.to_string());
        self.run(&["resize", utf8(target), &min, &max])
    }
}

/// Asserts success, and returns the JSON object on standard output.
#[track_caller]
pub(crate) fn json_output(run: &Run) -> Value {
    assert!(run.status.success(), "the command failed: {run}");
    let answer: Value = serde_json::from_str(&run.stdout).unwrap_or_default();
    assert!(
        answer.is_object(),
        "standard output is not a JSON object: {run}"
    );
    answer
}

/// Asserts that a command failed with a JSON error of this code, and printed nothing on standard output.
#[track_caller]
pub(crate) fn assert_error(run: &Run, code: &str) {
    assert!(!run.status.success(), "the command did not fail: {run}");
    expect("standard output of a failure", &run.stdout, &String::new());
    let error: Value = serde_json::from_str(&run.stderr).unwrap_or_default();
    let message = error["error"]["message"].as_str().unwrap_or_default();
    assert!(
        error["error"]["code"] == code && !message.is_empty(),
        "standard error is not one JSON object with an error {code}: {run}"
    );
}
