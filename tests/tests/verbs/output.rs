//! Strict parsing of what `runcrust crust` prints.

use runcrust_tests::Run;
use runcrust_tests::refusal::assert_contains;
use serde_json::Value;

/// Asserts success with the empty JSON object as the only output.
#[track_caller]
pub(crate) fn assert_done(run: Run) {
    let run = run.success();
    assert_eq!((run.stdout.as_str(), run.stderr.as_str()), ("{}\n", ""));
}

/// Asserts a failure with one line of JSON on standard error, and returns its code and message.
#[track_caller]
pub(crate) fn error(run: Run) -> (String, String) {
    let run = run.failure();
    assert_eq!(run.stdout, "", "{run}");
    let line = run.stderr.strip_suffix('\n').unwrap_or_default();
    assert!(!line.contains('\n'), "not one line: {run}");
    let answer: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {run}"));
    let keys = |value: &Value| -> Vec<String> {
        let object = value.as_object().unwrap_or_else(|| panic!("{run}"));
        object.keys().cloned().collect()
    };
    assert_eq!(keys(&answer), ["error"], "{run}");
    assert_eq!(keys(&answer["error"]), ["code", "message"], "{run}");
    let text = |key: &str| answer["error"][key].as_str().expect("a string").to_owned();
    let message = text("message");
    assert!(!message.is_empty() && !message.contains('\n'), "{run}");
    (text("code"), message)
}

/// Asserts a failure with this code, and a message that contains all of `names`.
#[track_caller]
pub(crate) fn assert_error(run: Run, expected: &str, names: &[&str]) {
    let (code, message) = error(run);
    assert_eq!(code, expected, "{message}");
    assert_contains(&message, names);
}
