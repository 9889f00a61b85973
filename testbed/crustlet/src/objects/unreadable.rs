//! Finds the field for which a document can't be read: serde says what is wrong, and not where.

use std::fmt::Write as _;

use serde::de::DeserializeOwned;
use serde_json::Value;

/// The most children of a value that are tried, each by reading the whole document.
const MOST: usize = 256;

/// In bytes: what a larger document lacks is told without the field.
const LARGEST: usize = 64 << 10;

/// A step into a value.
#[derive(Clone)]
enum Step {
    Field(String),
    Item(usize),
}

/// Returns the path of the field, `spec.containers[0].ports`: the innermost without which the document could be read,
/// or is refused for another reason. Empty is the whole.
pub(super) fn unreadable_field<T: DeserializeOwned>(document: &Value) -> String {
    // Who looks for it reads the whole again and again.
    if document.to_string().len() > LARGEST {
        return String::new();
    }
    let reason = |document: &Value| T::deserialize(document).err().map(|it| it.to_string());
    let told = reason(document);
    let mut steps = Vec::new();
    let without = |steps: &[Step], child: &Step| {
        let mut document = document.clone();
        if let Some(parent) = at(&mut document, steps) {
            remove(parent, child);
        }
        reason(&document)
    };
    let mut document = document.clone();
    while let Some(value) = at(&mut document, &steps) {
        let mut children = children(value).into_iter();
        match children.find(|child| without(&steps, child) != told) {
            Some(child) => steps.push(child),
            None => break,
        }
    }
    path(&steps)
}

fn at<'v>(document: &'v mut Value, steps: &[Step]) -> Option<&'v mut Value> {
    steps.iter().try_fold(document, |value, step| match step {
        Step::Field(name) => value.get_mut(name),
        Step::Item(index) => value.get_mut(index),
    })
}

fn children(value: &Value) -> Vec<Step> {
    match value {
        Value::Object(fields) if fields.len() <= MOST => {
            fields.keys().cloned().map(Step::Field).collect()
        }
        Value::Array(items) if items.len() <= MOST => (0..items.len()).map(Step::Item).collect(),
        _ => Vec::new(),
    }
}

fn remove(parent: &mut Value, child: &Step) {
    match (parent, child) {
        (Value::Object(fields), Step::Field(name)) => drop(fields.remove(name)),
        (Value::Array(items), Step::Item(index)) => drop(items.remove(*index)),
        _ => {}
    }
}

fn path(steps: &[Step]) -> String {
    let mut path = String::new();
    for step in steps {
        // What is written to a text is written.
        let _ = match step {
            Step::Field(name) if path.is_empty() => write!(path, "{name}"),
            Step::Field(name) => write!(path, ".{name}"),
            Step::Item(index) => write!(path, "[{index}]"),
        };
    }
    path
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_field_is_found_however_deep_it_is() {
        let app = json!({"name": "app", "env": [{"name": "A"}, {"name": "B", "value": 7}]});
        for (document, expected) in [
            (json!({"spec": {"containers": {}}}), "spec.containers"),
            (
                json!({"spec": {"hostNetwork": true, "containers": [{"name": "a"}, app]}}),
                "spec.containers[1].env[1].value",
            ),
            (json!({"metadata": [], "spec": {}}), "metadata"),
            // Each of two would be told with the other gone.
            (
                json!({"spec": {"containers": {}, "hostNetwork": 3}}),
                "spec.containers",
            ),
            (json!([]), ""),
        ] {
            assert_eq!(unreadable_field::<Pod>(&document), expected, "{document}");
        }
    }
}
