//! Objects as YAML and JSON. Keys are sorted, as kubectl sorts them.

use crust_state::printable::{printable, printable_json};
use serde::Serialize as _;
use serde_json::{Value, json};

/// Returns a `v1 List` of the documents.
pub(in crate::cli) fn list(documents: Vec<Value>) -> Value {
    let items = Value::Array(documents);
    json!({
        "apiVersion": "v1",
        "items": items,
        "kind": "List",
        "metadata": {"resourceVersion": ""},
    })
}

/// Formats a document as JSON, indented by four spaces.
pub(in crate::cli) fn json(document: &Value) -> String {
    let mut text = Vec::new();
    let indent = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    let mut serializer = serde_json::Serializer::with_formatter(&mut text, indent);
    // Cannot fail: the output is in memory, and all keys are strings.
    let _ = sort_keys(document).serialize(&mut serializer);
    let text = String::from_utf8_lossy(&text);
    text.lines()
        .flat_map(|line| [printable_json(line), "\n".into()])
        .collect()
}

/// Formats a document as one line of JSON.
pub(in crate::cli) fn json_line(document: &Value) -> String {
    printable_json(&sort_keys(document).to_string()).into_owned() + "\n"
}

/// The error of an object with a value that YAML can't represent.
#[derive(Debug, thiserror::Error)]
#[error("cannot write an object as YAML: {0}; hint: use -o json")]
pub(in crate::cli) struct YamlError(#[from] serde_saphyr::ser_error::Error);

/// Formats a document as YAML, without the `---` marker.
pub(in crate::cli) fn yaml(document: &Value) -> Result<String, YamlError> {
    // Long strings aren't wrapped, so that they can be searched for.
    let options = serde_saphyr::ser_options! {
        folded_wrap_chars: usize::MAX,
    };
    let text = serde_saphyr::to_string_with_options(&sort_keys(document), options)?;
    if text.lines().all(|line| printable(line) == line) {
        return Ok(text);
    }
    // Plain and block scalars can't escape unprintable characters. JSON strings can, and JSON is valid YAML.
    Ok(json(document))
}

fn sort_keys(document: &Value) -> Value {
    let mut document = document.clone();
    document.sort_all_objects();
    document
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod() -> Value {
        json!({
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": {"namespace": "default", "name": "web", "labels": {}},
            "spec": {
                "volumes": [{"name": "v", "persistentVolumeClaim": {"deferFSMount": true, "claimName": "data"}}],
                "containers": [{
                    "name": "app",
                    "command": ["sh", "-c", "echo yes\nsleep 1\n"],
                    "args": ["true", "1", "", "a: b"],
                }],
            },
            "status": {"message": "x ".repeat(60), "phase": "Running"},
        })
    }

    #[test]
    fn yaml_has_kubectls_format() {
        let text = yaml(&pod()).unwrap();
        let expected = "\
apiVersion: v1
kind: Pod
metadata:
  labels: {}
  name: web
  namespace: default
spec:
  containers:
  - args:
    - \"true\"
    - \"1\"
    - \"\"
    - \"a: b\"
    command:
    - sh
    - -c
    - |
      echo yes
      sleep 1
    name: app
  volumes:
  - name: v
    persistentVolumeClaim:
      claimName: data
      deferFSMount: true
";
        assert!(text.starts_with(expected), "{text}");
        let parsed: Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(parsed, pod());
    }

    #[test]
    fn several_objects_are_a_list() {
        let text = yaml(&list(vec![json!({"kind": "Pod"})])).unwrap();
        let expected =
            "apiVersion: v1\nitems:\n- kind: Pod\nkind: List\nmetadata:\n  resourceVersion: \"\"\n";
        assert_eq!(text, expected);
        assert!(yaml(&list(Vec::new())).unwrap().contains("items: []\n"));
    }

    #[test]
    fn json_is_indented_or_one_line() {
        let document = json!({"kind": "Pod", "apiVersion": "v1", "spec": {"a": [1]}});
        let expected = r#"{
    "apiVersion": "v1",
    "kind": "Pod",
    "spec": {
        "a": [
            1
        ]
    }
}
"#;
        assert_eq!(json(&document), expected);
        let line = "{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"spec\":{\"a\":[1]}}\n";
        assert_eq!(json_line(&document), line);
        let document = json!({"message": "a\u{202e}b"});
        assert_eq!(json_line(&document), "{\"message\":\"a\\u202eb\"}\n");
        assert_eq!(json(&document), "{\n    \"message\": \"a\\u202eb\"\n}\n");
        assert_eq!(yaml(&document).unwrap(), json(&document));
    }
}
