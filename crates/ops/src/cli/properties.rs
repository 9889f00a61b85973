//! Property checks of the answer parser, for arbitrary output of a CLI.

use std::path::Path;

use serde_json::Value;

use super::CliError;
use super::answer::{Capabilities, Capacity, VolumeStats, read};
use super::run::Output;

/// A limit that no error message exceeds, including the excerpt of the output in it.
const MAX_MESSAGE_LENGTH: usize = 4096;

/// Parses `bytes` as the output of a successful and of a failed CLI. Panics if a property is violated.
pub(crate) fn check(bytes: &[u8]) {
    let answered = output(true, bytes);
    let value: Option<Value> = serde_json::from_slice(bytes).ok();
    let number = |value: &Value, key: &str| value.get(key).and_then(Value::as_i64);
    if let Some(stats) = read_one::<VolumeStats>(&answered) {
        let value = value.as_ref().expect("a parsed answer is JSON");
        let usage = value.get("usage").and_then(Value::as_array);
        let usage: Vec<&Value> = usage.into_iter().flatten().collect();
        assert_eq!(stats.usage.len(), usage.len());
        for (read, value) in stats.usage.iter().zip(usage) {
            for (amount, key) in [
                (read.total, "total"),
                (read.used, "used"),
                (read.available, "available"),
            ] {
                assert!(amount >= 0, "{key}");
                assert_eq!(number(value, key), Some(amount));
            }
        }
        let message = value["volume_condition"].get("message");
        let message = message.and_then(Value::as_str).unwrap_or_default();
        assert_eq!(stats.volume_condition.message, message);
        assert_eq!(
            value["volume_condition"]["abnormal"],
            stats.volume_condition.abnormal
        );
    }
    if let Some(capacity) = read_one::<Capacity>(&answered) {
        assert!(capacity.capacity_bytes >= 0);
        let value = value.as_ref().and_then(|it| number(it, "capacity_bytes"));
        assert_eq!(value, Some(capacity.capacity_bytes));
    }
    if let Some(all) = read_one::<Capabilities>(&answered) {
        let value = value.as_ref().expect("a parsed answer is JSON");
        assert_eq!(value["capabilities"], Value::from(all.capabilities));
        assert_eq!(value["file_systems"], Value::from(all.file_systems));
    }
    assert!(
        read_one::<Capacity>(&output(false, bytes)).is_none(),
        "a failed call has no answer"
    );
}

fn read_one<T: serde::de::DeserializeOwned>(output: &Output) -> Option<T> {
    match read(Path::new("/usr/bin/runcrust"), output) {
        Ok(answer) => Some(answer),
        Err(CliError::Refused { code, .. }) => {
            assert!(!output.success && code != tonic::Code::Ok);
            None
        }
        Err(error @ CliError::InvalidAnswer { .. }) => {
            let message = error.to_string();
            assert!(
                message.len() < MAX_MESSAGE_LENGTH,
                "{} bytes",
                message.len()
            );
            assert!(!message.contains(char::is_control), "{message:?}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn output(success: bool, bytes: &[u8]) -> Output {
    Output {
        success,
        status: "exit status: 1".to_owned(),
        stdout: bytes.to_vec(),
        stderr: bytes.to_vec(),
        is_too_long: false,
    }
}
