//! What holds of every configuration that gets the handler: all else says what it said, a second
//! time changes nothing, and it can be taken back.

use serde_json::Value;
use toml_edit::{DocumentMut, Item};

use crate::containerd;
use crate::crio::CRIO;
use crate::docker;
use crate::edit::{Edit, MARK, Source};
use crate::entry::Wanted;
use crate::error::HandlerError;
use crate::json::Object;
use crate::podman::PODMAN;
use crate::podman::support::LISTS;
use crate::testing::{PROGRAM, UNWANTED, WANTED};

/// A file's text, and what becomes of it; nothing where there was nothing to do.
type Step<'a> = &'a dyn Fn(&str) -> Result<Vec<Edit>, HandlerError>;

/// One engine.
struct Engine<'a> {
    install: Step<'a>,
    uninstall: Step<'a>,
    value: fn(&str) -> Option<Value>,
    /// Where its handlers are, and what else is written down with the first of them.
    runtimes: &'a [&'a [&'a str]],
    besides: &'a [&'a [&'a str]],
    /// Lists that name the handler, and what the engine takes each for that isn't set.
    lists: &'a [(&'a str, &'a [&'a str])],
}

const FILE: &str = "/etc/x/config";

/// containerd's, CRI-O's, podman's.
pub(crate) fn toml(text: &str) {
    let containerd = Engine {
        install: &|text| containerd::install(&[source(text)], None, WANTED),
        uninstall: &|text| Ok(containerd::uninstall(&[source(text)], UNWANTED)?.0),
        value: toml_value,
        runtimes: &[
            &[
                "plugins",
                "io.containerd.grpc.v1.cri",
                "containerd",
                "runtimes",
            ],
            &[
                "plugins",
                "io.containerd.cri.v1.runtime",
                "containerd",
                "runtimes",
            ],
        ],
        besides: &[&["version"]],
        lists: &[],
    };
    holds(&containerd, text);
    // Which is in both of podman's lists.
    let wanted = Wanted {
        is_crun: true,
        ..WANTED
    };
    let lists = LISTS.map(|list| (list.key, list.default));
    for (drop_in, runtimes, lists) in [
        (&CRIO, &["crio", "runtime", "runtimes"][..], &[][..]),
        (&PODMAN, &["engine", "runtimes"], &lists[..]),
    ] {
        let engine = Engine {
            install: &|text| drop_in.install(&[source(text)], wanted),
            uninstall: &|text| Ok(drop_in.uninstall(&[source(text)], UNWANTED)?.0),
            value: toml_value,
            runtimes: &[runtimes],
            besides: &[],
            lists,
        };
        holds(&engine, text);
    }
}

/// docker's.
pub(crate) fn json(text: &str) {
    let docker = Engine {
        install: &|text| Ok(vec![docker::install(&source(text), WANTED)?]),
        uninstall: &|text| Ok(docker::uninstall(&source(text), UNWANTED)?.0),
        value: json_value,
        runtimes: &[&["runtimes"]],
        besides: &[],
        lists: &[],
    };
    holds(&docker, text);
}

fn source(text: &str) -> Source {
    Source::new(FILE.into(), Some(text.to_owned()))
}

fn holds(engine: &Engine<'_>, text: &str) {
    let (Some(before), Ok(edits)) = ((engine.value)(text), (engine.install)(text)) else {
        return;
    };
    let once = only(edits).after.expect("a text");
    let after = (engine.value)(&once);
    let after = after.unwrap_or_else(|| panic!("can't be read any more:\n{once}"));
    assert!(once.contains(PROGRAM), "{once}");
    assert_eq!(engine.others(&after), engine.others(&before), "{once}");
    let twice = (engine.install)(&once);
    let twice = twice.unwrap_or_else(|error| panic!("{error}:\n{once}"));
    assert_eq!(only(twice).after.as_ref(), Some(&once));
    let Ok(edits) = (engine.uninstall)(&once) else {
        // It is the default.
        return;
    };
    let back = only(edits).after.unwrap_or_default();
    let gone = (engine.value)(&back);
    let gone = gone.unwrap_or_else(|| panic!("can't be read any more:\n{back}"));
    assert_eq!(engine.others(&gone), engine.others(&before), "{back}");
    let nothing = (engine.uninstall)(&back).map(|edits| edits.is_empty());
    assert_eq!(nothing.ok(), Some(true), "{back}");
    if engine.had_none(&before) && !text.starts_with(MARK) {
        let mut left = comments(&back);
        for comment in comments(text) {
            let at = left.iter().position(|it| *it == comment);
            left.remove(at.unwrap_or_else(|| panic!("{comment} is gone:\n{back}")));
        }
        // One that stood behind a handler's name in a list has a line of its own then.
        assert!(
            left.iter().all(|it| text.contains(it)),
            "{left:?} came:\n{back}"
        );
    }
}

fn only(edits: Vec<Edit>) -> Edit {
    let [edit] = <[Edit; 1]>::try_from(edits).expect("one file, and one edit");
    edit
}

impl Engine<'_> {
    /// All but the handler, and what comes and goes with it. What is empty says nothing.
    fn others(&self, value: &Value) -> Value {
        let mut value = value.clone();
        for keys in self.besides {
            remove(&mut value, keys);
        }
        for (key, default) in self.lists {
            let Some(Value::Array(names)) = find(&mut value, &["engine", key]) else {
                continue;
            };
            names.retain(|name| name != "crust");
            if names == default {
                remove(&mut value, &["engine", key]);
            }
        }
        for keys in self.runtimes {
            remove(&mut value, &[keys, &["crust"][..]].concat());
            if self.besides.is_empty() {
                continue;
            }
            let runc = [keys, &["runc"][..]].concat();
            if find(&mut value, &runc) == Some(&mut added_default()) {
                remove(&mut value, &runc);
            }
        }
        let keys = self.runtimes.iter();
        for keys in keys {
            for depth in (1..=keys.len()).rev() {
                let is_nothing = |value: &Value| {
                    value.is_null() || value.as_object().is_some_and(serde_json::Map::is_empty)
                };
                if find(&mut value, &keys[..depth]).is_some_and(|it| is_nothing(it)) {
                    remove(&mut value, &keys[..depth]);
                }
            }
        }
        value
    }

    fn had_none(&self, before: &Value) -> bool {
        let mut before = before.clone();
        let mut runtimes = self.runtimes.iter();
        runtimes.all(|keys| find(&mut before, &[keys, &["crust"][..]].concat()).is_none())
    }
}

/// containerd's own default, which is written down beside ours.
fn added_default() -> Value {
    serde_json::json!({"runtime_type": "io.containerd.runc.v2"})
}

fn find<'v>(value: &'v mut Value, keys: &[&str]) -> Option<&'v mut Value> {
    keys.iter()
        .try_fold(value, |value, key| value.get_mut(*key))
}

fn remove(value: &mut Value, keys: &[&str]) {
    let Some((last, keys)) = keys.split_last() else {
        return;
    };
    if let Some(Value::Object(parent)) = find(value, keys) {
        parent.remove(*last);
    }
}

/// The operator's own words; the order and the blanks around them may be others.
fn comments(text: &str) -> Vec<&str> {
    let lines = text.lines().map(str::trim);
    let mut comments: Vec<&str> = lines.filter(|line| line.starts_with('#')).collect();
    comments.sort_unstable();
    comments
}

/// As dockerd reads it; nothing of one where a name stands twice, of which `Value` forgets one.
fn json_value(text: &str) -> Option<Value> {
    let text = if text.trim().is_empty() { "{}" } else { text };
    let value: Value = serde_json::from_str(text).ok()?;
    let count = |value: &Value| value.as_object().map_or(0, serde_json::Map::len);
    let root = Object::parse(text).ok()?;
    let is_whole = |object: &Object<'_>, value: &Value| object.len() == count(value);
    let has_all = match root.object("runtimes") {
        Some(Ok(runtimes)) => is_whole(&runtimes, &value["runtimes"]),
        _ => true,
    };
    (has_all && is_whole(&root, &value)).then_some(value)
}

fn toml_value(text: &str) -> Option<Value> {
    let document: DocumentMut = text.parse().ok()?;
    Some(item_value(document.as_item()))
}

fn item_value(item: &Item) -> Value {
    if let Some(table) = item.as_table_like() {
        let members = table.iter();
        let members = members.map(|(key, item)| (key.to_owned(), item_value(item)));
        return Value::Object(members.collect());
    }
    if let Some(tables) = item.as_array_of_tables() {
        let tables = tables
            .iter()
            .map(|table| item_value(&Item::Table(table.clone())));
        return tables.collect();
    }
    match item.as_value() {
        None => Value::Null,
        Some(toml_edit::Value::String(text)) => text.value().as_str().into(),
        Some(toml_edit::Value::Array(array)) => {
            let values = array.iter();
            values
                .map(|value| item_value(&Item::Value(value.clone())))
                .collect()
        }
        Some(other) => {
            let mut other = other.clone();
            other.decor_mut().clear();
            other.to_string().trim().into()
        }
    }
}
