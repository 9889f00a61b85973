//! Finds the field that can't be deserialized. serde reports what is wrong, but not where.

use std::fmt::Write as _;

use serde::de::DeserializeOwned;
use serde_json::Value;

/// The largest number of children of a value that is searched. The search deserializes the whole document once for each
/// child.
const MAX_CHILDREN: usize = 256;

/// The largest document that is searched, in bytes.
const MAX_DOCUMENT_SIZE: usize = 64 << 10;

/// A segment of a field's path.
#[derive(Clone)]
enum PathSegment {
    Field(String),
    Item(usize),
}

/// Returns the path of the innermost field whose removal removes or changes the error, such as
/// `spec.containers[0].ports`. Empty if no field is found, and for a document that is too large.
pub(super) fn find_unreadable_field<T: DeserializeOwned>(document: &Value) -> String {
    // The search deserializes the document many times.
    if document.to_string().len() > MAX_DOCUMENT_SIZE {
        return String::new();
    }
    let error_of = |document: &Value| {
        T::deserialize(document)
            .err()
            .map(|error| error.to_string())
    };
    let error = error_of(document);
    let mut path = Vec::new();
    let without = |parents: &[PathSegment], child: &PathSegment| {
        let mut document = document.clone();
        if let Some(parent) = value_at(&mut document, parents) {
            remove(parent, child);
        }
        error_of(&document)
    };
    let mut document = document.clone();
    while let Some(value) = value_at(&mut document, &path) {
        let mut children = children(value).into_iter();
        match children.find(|child| without(&path, child) != error) {
            Some(child) => path.push(child),
            None => break,
        }
    }
    format_path(&path)
}

fn value_at<'v>(document: &'v mut Value, path: &[PathSegment]) -> Option<&'v mut Value> {
    path.iter()
        .try_fold(document, |value, segment| match segment {
            PathSegment::Field(name) => value.get_mut(name),
            PathSegment::Item(index) => value.get_mut(index),
        })
}

fn children(value: &Value) -> Vec<PathSegment> {
    match value {
        Value::Object(fields) if fields.len() <= MAX_CHILDREN => {
            fields.keys().cloned().map(PathSegment::Field).collect()
        }
        Value::Array(items) if items.len() <= MAX_CHILDREN => {
            (0..items.len()).map(PathSegment::Item).collect()
        }
        _ => Vec::new(),
    }
}

fn remove(parent: &mut Value, child: &PathSegment) {
    match (parent, child) {
        (Value::Object(fields), PathSegment::Field(name)) => drop(fields.remove(name)),
        (Value::Array(items), PathSegment::Item(index)) => drop(items.remove(*index)),
        _ => {}
    }
}

fn format_path(segments: &[PathSegment]) -> String {
    let mut path = String::new();
    for segment in segments {
        // Writing to a string can't fail.
        let _ = match segment {
            PathSegment::Field(name) if path.is_empty() => write!(path, "{name}"),
            PathSegment::Field(name) => write!(path, ".{name}"),
            PathSegment::Item(index) => write!(path, "[{index}]"),
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
    fn the_innermost_field_is_found() {
        let app = json!({"name": "app", "env": [{"name": "A"}, {"name": "B", "value": 7}]});
        for (document, expected) in [
            (json!({"spec": {"containers": {}}}), "spec.containers"),
            (
                json!({"spec": {"hostNetwork": true, "containers": [{"name": "a"}, app]}}),
                "spec.containers[1].env[1].value",
            ),
            (json!({"metadata": [], "spec": {}}), "metadata"),
            // If there are two errors, the first one is found.
            (
                json!({"spec": {"containers": {}, "hostNetwork": 3}}),
                "spec.containers",
            ),
            (json!([]), ""),
        ] {
            assert_eq!(
                find_unreadable_field::<Pod>(&document),
                expected,
                "{document}"
            );
        }
    }
}
