//! Checks properties that hold for every configuration text, for `fuzz/` and the tests. Releases don't contain this
//! module.

use std::path::{Path, PathBuf};

use crust_state::DelegateKind;
use serde_json::Value;

use crate::ENGINES;
use crate::config_file::EngineConfigFile;
use crate::engine::{Engine, HandlerSpec};
use crate::error::Result;
use crate::handler::{plan_install, plan_uninstall};
use crate::plan::{ChangePlan, FileChange};

/// The program of the handler that is installed.
pub(crate) const PROGRAM: &str = "/usr/local/bin/runcrust";

pub(crate) const TEST_HANDLER: HandlerSpec<'_> = HandlerSpec {
    name: "crust",
    program: PROGRAM,
    // With crun, the handler is added to all lists of podman.
    delegate: Some(DelegateKind::Crun),
    systemd_cgroup: None,
};

/// Checks a configuration of containerd, CRI-O or podman.
///
/// # Panics
///
/// If a property doesn't hold.
pub fn toml(bytes: &[u8]) {
    check_all(bytes, false);
}

/// Checks a `daemon.json` of docker.
///
/// # Panics
///
/// If a property doesn't hold.
pub fn json(bytes: &[u8]) {
    check_all(bytes, true);
}

fn check_all(bytes: &[u8], wants_json: bool) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    for engine in ENGINES
        .iter()
        .filter(|engine| is_json(**engine) == wants_json)
    {
        check(*engine, text);
    }
}

/// Checks that a second `install` changes nothing, and that `uninstall` restores the values and comments of the text.
/// Passes if `install` refuses the text.
pub(crate) fn check(engine: &dyn Engine, text: &str) {
    let (Some(_), Ok(once)) = (value(engine, text), try_install(engine, Some(text))) else {
        return;
    };
    assert!(value(engine, &once).is_some(), "no longer valid:\n{once}");
    assert!(once.contains(PROGRAM), "{once}");
    if !text.contains("crust") {
        let values = value(engine, text).zip(value(engine, &once));
        assert!(
            values.is_none_or(|(before, after)| includes(&after, &before)),
            "{once}"
        );
    }
    let twice = try_install(engine, Some(&once)).expect("a second install");
    assert_eq!(twice, once);
    let Ok(back) = try_uninstall(engine, &once) else {
        // A handler that is the default runtime can't be uninstalled.
        return;
    };
    let back = back.unwrap_or_default();
    let repeated = try_uninstall(engine, &back).expect("nothing to remove");
    assert_eq!(repeated.as_deref(), Some(&*back));
    if text.contains("Added by runcrust install") {
        return;
    }
    let before = try_uninstall(engine, text)
        .ok()
        .flatten()
        .unwrap_or_default();
    let remaining = |text| value(engine, text).map(without_leftovers);
    assert_eq!(remaining(&back), remaining(&before), "{once}");
    if !text.contains("crust") {
        let is_comment = |line: &&str| line.trim().starts_with('#');
        for comment in text.lines().filter(is_comment) {
            assert!(back.contains(comment.trim()), "{comment} is gone:\n{back}");
        }
    }
}

/// Returns the engine's default file with this text.
pub(crate) fn file(engine: &dyn Engine, text: Option<&str>) -> EngineConfigFile {
    EngineConfigFile::new(engine.info().file, text.map(str::to_owned))
}

/// Returns the text of the only file after an `install`.
pub(crate) fn try_install(engine: &dyn Engine, text: Option<&str>) -> Result<String> {
    let plan = plan_install(engine, vec![file(engine, text)], &TEST_HANDLER)?;
    Ok(edits(plan).remove(0).1.expect("a text"))
}

/// Returns the text of the only file after an `uninstall`; `None` if the file is removed.
pub(crate) fn try_uninstall(engine: &dyn Engine, text: &str) -> Result<Option<String>> {
    let plan = plan_uninstall(
        engine,
        vec![file(engine, Some(text))],
        TEST_HANDLER.name,
        None,
    )?;
    let edit = edits(plan).pop();
    Ok(edit.map_or_else(|| Some(text.to_owned()), |edit| edit.1))
}

/// Returns the files of a plan, and their new texts.
pub(crate) fn edits(plan: ChangePlan) -> Vec<(PathBuf, Option<String>)> {
    let changes = plan.changes.into_iter();
    changes.map(FileChange::into_edit).collect()
}

fn is_json(engine: &dyn Engine) -> bool {
    let extension = Path::new(engine.info().file).extension();
    extension.is_some_and(|extension| extension == "json")
}

/// Parses a text; `None` if it is invalid.
fn value(engine: &dyn Engine, text: &str) -> Option<Value> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if !is_json(engine) {
        return ::toml::from_str(text).ok();
    }
    if text.matches("runtimes\"").count() > 1 {
        // Go merges objects with the same name, while a `Value` contains only one of them.
        return None;
    }
    let text = if text.trim().is_empty() { "{}" } else { text };
    serde_json::from_str(text).ok()
}

/// Returns whether a value includes everything in an earlier one. An earlier `null` is included in any value: docker
/// may have had an empty file.
fn includes(after: &Value, before: &Value) -> bool {
    match (after, before) {
        (Value::Object(after), Value::Object(before)) => {
            let mut members = before.iter();
            members.all(|(name, value)| after.get(name).is_some_and(|found| includes(found, value)))
        }
        (Value::Array(after), Value::Array(before)) => {
            before.iter().all(|value| after.contains(value))
        }
        (after, before) => after == before || before.is_null(),
    }
}

/// Returns containerd's default runtime, as it is added together with the first handler.
fn default_runtime() -> Value {
    serde_json::json!({"runtime_type": "io.containerd.runc.v2"})
}

/// Returns a value without what an installation may leave behind: a version, empty tables, and `runc` in a table that
/// can't have a comment.
fn without_leftovers(value: Value) -> Value {
    let is_set = |value: &Value| match value {
        Value::Object(members) => !members.is_empty(),
        value => !value.is_null(),
    };
    match value {
        Value::Object(members) => {
            let members = members
                .into_iter()
                .map(|(name, value)| (name, without_leftovers(value)));
            let kept = members.filter(|(name, value)| {
                let is_leftover =
                    name == "version" || (name == "runc" && *value == default_runtime());
                !is_leftover && is_set(value)
            });
            Value::Object(kept.collect())
        }
        Value::Array(values) => {
            let kept = values
                .into_iter()
                .filter(|value| value != TEST_HANDLER.name);
            Value::Array(kept.map(without_leftovers).collect())
        }
        other => other,
    }
}
