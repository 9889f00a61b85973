//! Properties of the parser of answers, for any bytes that a CLI may print.

use std::path::Path;

use serde_json::Value;

use super::CliError;
use super::answer::{Capabilities, Capacity, Stats, read};
use super::run::Output;

/// More bytes than any sentence has, with the start of the output that it quotes.
const LONGEST: usize = 4096;

/// Panics where a property doesn't hold of `said`, as an answer or as an error.
pub(crate) fn check(said: &[u8]) {
    let answered = output(true, said);
    let value: Option<Value> = serde_json::from_slice(said).ok();
    let number = |value: &Value, key: &str| value.get(key).and_then(Value::as_i64);
    if let Some(stats) = read_one::<Stats>(&answered) {
        let value = value.as_ref().expect("what was read is JSON");
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
        let value = value.as_ref().expect("what was read is JSON");
        assert_eq!(value["capabilities"], Value::from(all.capabilities));
        assert_eq!(value["file_systems"], Value::from(all.file_systems));
    }
    assert!(
        read_one::<Capacity>(&output(false, said)).is_none(),
        "it failed"
    );
}

fn read_one<T: serde::de::DeserializeOwned>(output: &Output) -> Option<T> {
    match read(Path::new("/usr/bin/runcrust"), output) {
        Ok(answer) => Some(answer),
        Err(CliError::Refused { code, .. }) => {
            assert!(!output.success && code != tonic::Code::Ok);
            None
        }
        Err(error @ CliError::Answer { .. }) => {
            let sentence = error.to_string();
            assert!(sentence.len() < LONGEST, "{} bytes", sentence.len());
            assert!(!sentence.contains(char::is_control), "{sentence:?}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn output(success: bool, said: &[u8]) -> Output {
    Output {
        success,
        status: "exit status: 1".to_owned(),
        stdout: said.to_vec(),
        stderr: said.to_vec(),
        too_long: false,
    }
}
