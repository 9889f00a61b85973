//! Parses the answers of the CLI: one JSON object on standard output, or one line with an error on standard
//! error (docs/protocol.md, "Command line").

use std::path::Path;

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};

use super::CliError;
use super::run::Output;

/// The answer of `stats`.
#[derive(Debug, Deserialize)]
pub(crate) struct Stats {
    #[serde(default)]
    pub(crate) usage: Vec<Usage>,
    pub(crate) volume_condition: Condition,
}

/// How full a volume is, in one unit.
#[derive(Debug, Deserialize)]
pub(crate) struct Usage {
    pub(crate) unit: Unit,
    #[serde(deserialize_with = "amount")]
    pub(crate) total: i64,
    #[serde(deserialize_with = "amount")]
    pub(crate) used: i64,
    #[serde(deserialize_with = "amount")]
    pub(crate) available: i64,
}

/// The interfaces have signed numbers, and none is ever negative.
fn amount<'de, D: Deserializer<'de>>(from: D) -> Result<i64, D::Error> {
    let amount = u64::deserialize(from)?;
    i64::try_from(amount).map_err(D::Error::custom)
}

/// The unit of a usage.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum Unit {
    Bytes,
    Inodes,
}

/// How a volume fares.
#[derive(Debug, Deserialize)]
pub(crate) struct Condition {
    pub(crate) abnormal: bool,
    #[serde(default)]
    pub(crate) message: String,
}

/// The answer of `resize`.
#[derive(Debug, Deserialize)]
pub(crate) struct Capacity {
    #[serde(deserialize_with = "amount")]
    pub(crate) capacity_bytes: i64,
}

/// The answer of `capabilities`.
#[derive(Debug, Deserialize)]
pub(crate) struct Capabilities {
    pub(crate) capabilities: Vec<String>,
    pub(crate) file_systems: Vec<String>,
}

#[derive(Deserialize)]
struct Failure {
    error: Error,
}

#[derive(Deserialize)]
struct Error {
    code: String,
    message: String,
}

pub(super) fn read<T: DeserializeOwned>(program: &Path, output: &Output) -> Result<T, CliError> {
    let wrong = |what| CliError::Answer {
        program: program.to_owned(),
        what,
    };
    if output.too_long {
        return Err(wrong("its answer is too long".to_owned()));
    }
    if output.success {
        return serde_json::from_slice(&output.stdout).map_err(|error| {
            // It repeats what it doesn't know.
            let error = start_of(&error.to_string());
            wrong(format!("its answer can't be read: {error}"))
        });
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let last = stderr.lines().rfind(|line| !line.trim().is_empty());
    let last = last.unwrap_or("nothing on standard error");
    match serde_json::from_str(last) {
        Ok(Failure { error }) => Err(CliError::Refused {
            code: code(&error.code),
            message: error.message,
        }),
        Err(_) => Err(wrong(format!(
            "it failed ({}): {}",
            output.status,
            start_of(last)
        ))),
    }
}

/// Returns a code of the CLI (docs/protocol.md). An unknown one is an internal error.
fn code(name: &str) -> tonic::Code {
    match name {
        "NOT_FOUND" => tonic::Code::NotFound,
        "FAILED_PRECONDITION" => tonic::Code::FailedPrecondition,
        "INVALID_ARGUMENT" => tonic::Code::InvalidArgument,
        "OUT_OF_RANGE" => tonic::Code::OutOfRange,
        "RESOURCE_EXHAUSTED" => tonic::Code::ResourceExhausted,
        "UNIMPLEMENTED" => tonic::Code::Unimplemented,
        _ => tonic::Code::Internal,
    }
}

/// Returns the first 200 characters of a line, escaped: an answer in another form may have any content and length.
fn start_of(line: &str) -> String {
    let start: String = line.chars().take(200).collect();
    start.escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn output(success: bool, stdout: &str, stderr: &str) -> Output {
        Output {
            success,
            status: "exit status: 3".to_owned(),
            stdout: stdout.into(),
            stderr: stderr.into(),
            too_long: false,
        }
    }

    fn capacity(output: &Output) -> Result<i64, String> {
        let answer: Result<Capacity, _> = read(Path::new("/bin/cli"), output);
        answer
            .map(|it| it.capacity_bytes)
            .map_err(|e| e.to_string())
    }

    #[test]
    fn a_success_is_one_object() {
        assert_eq!(
            capacity(&output(true, "{\"capacity_bytes\":7}\n", "")),
            Ok(7)
        );
        for garbage in [
            "{\"capacity_bytes\":-7}",
            "",
            "7",
            "{}",
            "{\"capacity_bytes\":7} {}",
            "\u{1}",
        ] {
            let error = capacity(&output(true, garbage, "")).unwrap_err();
            assert!(
                error.starts_with("/bin/cli: its answer can't be read: ")
                    && error.contains("hint: "),
                "{error}"
            );
        }
    }

    #[test]
    fn of_an_answer_that_is_none_little_is_told() {
        let unit = "x\n".repeat(1000);
        let usage = json!({"unit": unit, "total": 1, "used": 1, "available": 1});
        let stats = json!({"usage": [usage], "volume_condition": {"abnormal": false}});
        let answer: Result<Stats, _> = read(Path::new("/c"), &output(true, &stats.to_string(), ""));
        let error = answer.unwrap_err().to_string();
        assert!(error.len() < 400 && !error.contains('\n'), "{error:?}");
    }

    #[test]
    fn a_failure_is_the_last_line() {
        let line = r#"{"error":{"code":"OUT_OF_RANGE","message":"too small"}}"#;
        let stderr = format!("warning\n{line}\n\n");
        let answer: Result<Capacity, _> = read(Path::new("/c"), &output(false, "", &stderr));
        assert!(
            matches!(&answer, Err(CliError::Refused { code: tonic::Code::OutOfRange, message }) if message == "too small"),
            "{answer:?}"
        );
        for (stderr, said) in [
            ("", "nothing on standard error"),
            ("panicked\u{7}", "panicked\\u{7}"),
        ] {
            let error = capacity(&output(false, "{\"capacity_bytes\":7}", stderr)).unwrap_err();
            assert!(
                error.contains(&format!("it failed (exit status: 3): {said};")),
                "{error}"
            );
        }
    }

    #[test]
    fn a_code_that_is_none_is_the_nodes_fault() {
        assert_eq!(code("NO_SUCH_CODE"), tonic::Code::Internal);
        assert_eq!(code("INTERNAL"), tonic::Code::Internal);
    }
}
