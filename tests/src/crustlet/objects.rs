//! The objects of the agent, as `crustlet get … -o json` prints them, which is the format of kubectl.

use serde_json::Value;

use super::Crustlet;

/// An event about an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The object, such as `pod/web`.
    pub object: String,
    pub kind: String,
    pub reason: String,
    pub message: String,
    pub count: u64,
}

impl Crustlet {
    /// Returns all objects of a kind: `pods`, `pvc`, `volumes`, …
    #[track_caller]
    pub fn all(&self, kind: &str) -> Vec<Value> {
        let run = self.cli(&["get", kind, "-o", "json"]).success();
        let mut list = json(&run.stdout);
        match list["items"].take() {
            Value::Array(items) => items,
            _ => panic!("no list: {list}"),
        }
    }

    /// Returns an object with its status.
    #[track_caller]
    pub fn get(&self, kind: &str, name: &str) -> Value {
        json(
            &self
                .cli(&["get", kind, name, "-o", "json"])
                .success()
                .stdout,
        )
    }

    /// Returns a pod with its status.
    #[track_caller]
    pub fn pod(&self, name: &str) -> Value {
        self.get("pod", name)
    }

    /// Returns whether an object exists.
    #[track_caller]
    pub fn has(&self, kind: &str, name: &str) -> bool {
        let all = self.all(kind);
        all.iter().any(|object| object["metadata"]["name"] == name)
    }

    /// Returns the volume with this handle.
    #[track_caller]
    pub fn volume(&self, handle: &str) -> Option<Value> {
        let mut all = self.all("volumes").into_iter();
        all.find(|volume| volume["spec"]["volumeHandle"] == handle)
    }

    /// Returns all events, oldest first.
    #[track_caller]
    pub fn events(&self) -> Vec<Event> {
        self.all("events").iter().map(event).collect()
    }
}

#[track_caller]
fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn event(event: &Value) -> Event {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let object = &event["involvedObject"];
    let kind = text(&object["kind"]).to_ascii_lowercase();
    Event {
        object: format!("{kind}/{}", text(&object["name"])),
        kind: text(&event["type"]),
        reason: text(&event["reason"]),
        message: text(&event["message"]),
        count: event["count"].as_u64().unwrap_or(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_read_as_kubernetes_writes_it() {
        let text = r#"{
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": "web.1", "namespace": "default"},
            "involvedObject": {"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "u"},
            "type": "Warning", "reason": "FailedMount", "message": "no", "count": 3
        }"#;
        let expected = Event {
            object: "pod/web".to_owned(),
            kind: "Warning".to_owned(),
            reason: "FailedMount".to_owned(),
            message: "no".to_owned(),
            count: 3,
        };
        assert_eq!(event(&json(text)), expected);
    }
}
