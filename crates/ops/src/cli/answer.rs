//! Parses the answers of the CLI: a JSON object on standard output, or a line with an error on standard error
//! (docs/protocol.md, "Command line").

use std::path::Path;

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};

use super::CliError;
use super::run::Output;

/// The answer of `stats`.
#[derive(Debug, Deserialize)]
pub(crate) struct VolumeStats {
    #[serde(default)]
    pub(crate) usage: Vec<UnitUsage>,
    pub(crate) volume_condition: VolumeCondition,
}

/// The usage of a volume in one unit.
#[derive(Debug, Deserialize)]
pub(crate) struct UnitUsage {
    pub(crate) unit: Unit,
    #[serde(deserialize_with = "amount")]
    pub(crate) total: i64,
    #[serde(deserialize_with = "amount")]
    pub(crate) used: i64,
    #[serde(deserialize_with = "amount")]
    pub(crate) available: i64,
}

/// Parses an amount. The gRPC interfaces have signed numbers, but an amount is never negative.
fn amount<'de, D: Deserializer<'de>>(from: D) -> Result<i64, D::Error> {
    let amount = u64::deserialize(from)?;
    i64::try_from(amount).map_err(D::Error::custom)
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum Unit {
    Bytes,
    Inodes,
}

/// The condition of a volume, as in CSI.
#[derive(Debug, Deserialize)]
pub(crate) struct VolumeCondition {
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
    let invalid = |problem| CliError::InvalidAnswer {
        program: program.to_owned(),
        problem,
    };
    if output.is_too_long {
        return Err(invalid("its answer is too long".to_owned()));
    }
    if output.success {
        return serde_json::from_slice(&output.stdout).map_err(|error| {
            // The parser's error may quote any text of the output.
            let error = excerpt(&error.to_string());
            invalid(format!("its answer can't be read: {error}"))
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
        Err(_) => Err(invalid(format!(
            "it failed ({}): {}",
            output.status,
            excerpt(last)
        ))),
    }
}

/// Parses an error code of the CLI (docs/protocol.md). An unknown code is an internal error.
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

/// Returns the first 200 characters of a text, escaped, because an invalid answer may have any content and length.
fn excerpt(line: &str) -> String {
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
            is_too_long: false,
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
    fn the_error_of_an_invalid_answer_is_short() {
        let unit = "x\n".repeat(1000);
        let usage = json!({"unit": unit, "total": 1, "used": 1, "available": 1});
        let stats = json!({"usage": [usage], "volume_condition": {"abnormal": false}});
        let answer: Result<VolumeStats, _> =
            read(Path::new("/c"), &output(true, &stats.to_string(), ""));
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
        for (stderr, expected) in [
            ("", "nothing on standard error"),
            ("panicked\u{7}", "panicked\\u{7}"),
        ] {
            let error = capacity(&output(false, "{\"capacity_bytes\":7}", stderr)).unwrap_err();
            assert!(
                error.contains(&format!("it failed (exit status: 3): {expected};")),
                "{error}"
            );
        }
    }

    #[test]
    fn an_unknown_code_is_internal() {
        assert_eq!(code("NO_SUCH_CODE"), tonic::Code::Internal);
        assert_eq!(code("INTERNAL"), tonic::Code::Internal);
    }
}
