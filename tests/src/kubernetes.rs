//! Manifests, parsed as strictly as by the API server, and pods that are run from them through a CRI.

mod config_map;
mod pod;

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

pub use self::config_map::write_config_map;
pub use self::pod::Kubelet;

/// Returns the path of this workspace's `deploy/kubernetes`.
pub fn manifests() -> PathBuf {
    // Read at run time, because in the guest the sources are elsewhere.
    let package =
        std::env::var_os("CARGO_MANIFEST_DIR").expect("CARGO_MANIFEST_DIR: cargo sets it");
    Path::new(&package).join("../deploy/kubernetes")
}

/// Parses a file that must be one YAML document.
#[track_caller]
pub fn document(path: &Path) -> Value {
    let text =
        fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    yaml(&text)
}

/// Parses a text that must be one YAML document.
#[track_caller]
pub fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Returns the document after the JSON patches (RFC 6902) of a component. Panics if the component has other patches, or
/// one that does not apply.
#[track_caller]
pub fn with_component(mut document: Value, component: &str) -> Value {
    let file = format!("components/{component}/kustomization.yaml");
    let component = self::document(&manifests().join(file));
    for patch in component["patches"].as_array().expect("patches") {
        let target = &patch["target"];
        if target["kind"] != document["kind"] || target["name"] != document["metadata"]["name"] {
            continue;
        }
        let operations = yaml(patch["patch"].as_str().expect("a patch"));
        let operations: json_patch::Patch =
            serde_json::from_value(operations).expect("a JSON patch");
        json_patch::patch(&mut document, &operations).expect("a patch that fits");
    }
    document
}

/// Converts a document to its type, and fails if the type does not serialize to the same document. This detects fields
/// that the type does not have or that are in the wrong place.
pub fn parse_strictly<T: DeserializeOwned + Serialize>(document: &Value) -> Result<T, String> {
    let typed: T = serde_json::from_value(document.clone()).map_err(|error| error.to_string())?;
    let back = serde_json::to_value(&typed).map_err(|error| error.to_string())?;
    match difference("", document, &back) {
        None => Ok(typed),
        Some(lost) => Err(lost),
    }
}

/// Returns a description of the first difference.
fn difference(at: &str, written: &Value, understood: &Value) -> Option<String> {
    match (written, understood) {
        (Value::Object(written), Value::Object(understood)) => {
            let lost = written.keys().find(|key| !understood.contains_key(*key));
            let missing = understood.keys().find(|key| !written.contains_key(*key));
            let unknown = lost.map(|key| format!("{at}.{key}: unknown field"));
            let missing = missing.map(|key| format!("{at}.{key}: required field is missing"));
            unknown.or(missing).or_else(|| {
                written.iter().find_map(|(key, value)| {
                    difference(&format!("{at}.{key}"), value, &understood[key])
                })
            })
        }
        (Value::Array(written), Value::Array(understood)) if written.len() == understood.len() => {
            let mut pairs = written.iter().zip(understood).enumerate();
            pairs.find_map(|(index, (written, understood))| {
                difference(&format!("{at}[{index}]"), written, understood)
            })
        }
        (written, understood) if written == understood => None,
        _ => Some(format!("{at}: {written} was parsed as {understood}")),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    use super::*;

    fn pod(container: &Value) -> Result<Pod, String> {
        let spec = json!({"containers": [container]});
        parse_strictly(
            &json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": spec}),
        )
    }

    #[test]
    fn unknown_and_missing_fields_are_reported_with_their_path() {
        let good = json!({"name": "a", "securityContext": {"runAsUser": 1000}});
        assert_eq!(pod(&good).unwrap().metadata.name.unwrap(), "a");
        for (container, expected) in [
            (
                json!({"name": "a", "runAsUser": 1}),
                ".spec.containers[0].runAsUser: unknown field",
            ),
            (
                json!({"image": "a"}),
                ".spec.containers[0].name: required field is missing",
            ),
            (
                json!({"name": "a", "command": "sh"}),
                "invalid type: string \"sh\"",
            ),
        ] {
            let error = pod(&container).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
