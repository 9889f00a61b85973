//! `crustlet events`, and the agent's events as objects of Kubernetes.

use std::time::SystemTime;

use anyhow::Result;
use crust_proto::crustlet::v1::event::Type;
use crust_proto::crustlet::v1::{Event, EventsRequest};
use serde_json::{Value, json};

use super::age::moment;
use super::args::{EventOutput, Events};
use super::client::{Client, ClientError};
use super::io::{print, tell};
use super::print::{documents, events};
use super::resource::Resource;
use super::table::Table;
use crate::objects::Kind;
use crate::objects::manifest::DEFAULT_NAMESPACE;

/// Prints events; with `--watch` as they come.
pub(super) async fn events(asked: &Events, client: &Client) -> Result<()> {
    let namespaces = asked.scope.all_namespaces;
    let mut told = client.events(request(asked)?).await?;
    let mut table = Table::default();
    let mut is_headed = asked.no_headers;
    let mut rows = Vec::new();
    while let Some(event) = told.next().await? {
        let object = document(&event);
        if asked.output == Some(EventOutput::Json) {
            print(documents::json_line(&object))?;
            continue;
        }
        if !is_headed {
            rows.push(events::headers(namespaces));
            is_headed = true;
        }
        rows.push(events::row(&object, namespaces, SystemTime::now())?);
        if asked.watch {
            print(table.lines(&rows))?;
            rows.clear();
        }
    }
    if asked.watch {
        return Err(ClientError::Ended.into());
    }
    if rows.is_empty() && asked.output.is_none() {
        tell(nothing(asked.scope.namespace()));
    }
    print(table.lines(&rows))?;
    Ok(())
}

fn request(asked: &Events) -> Result<EventsRequest> {
    let (kind, name) = match &asked.object {
        Some(object) => {
            let (kind, name) = object.split_once('/').unwrap_or((object, ""));
            (Some(kind.parse::<Resource>()?), name)
        }
        None => (None, ""),
    };
    let namespace = match kind {
        Some(kind) if !kind.is_namespaced() => "",
        _ => asked.scope.namespace(),
    };
    Ok(EventsRequest {
        watch: asked.watch,
        kind: kind.map_or("", Resource::kind).to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    })
}

fn nothing(namespace: &str) -> String {
    match namespace {
        "" => "No events found.\n".to_owned(),
        namespace => format!("No events found in {namespace} namespace.\n"),
    }
}

/// Returns `Normal` or `Warning`.
pub(super) fn type_of(event: &Event) -> &'static str {
    match event.r#type() {
        Type::Normal => "Normal",
        Type::Warning => "Warning",
    }
}

/// Returns an event as a `v1 Event`. That of an object without a namespace is in `default`, as in Kubernetes.
pub(super) fn document(event: &Event) -> Value {
    let of = Kind::ALL.into_iter().find(|it| it.as_str() == event.kind);
    let namespace = match event.namespace.as_str() {
        "" => DEFAULT_NAMESPACE,
        namespace => namespace,
    };
    let mut object = json!({
        "apiVersion": of.map_or("", Kind::api_version),
        "kind": event.kind,
        "name": event.name,
    });
    for (key, value) in [("namespace", &event.namespace), ("uid", &event.uid)] {
        if !value.is_empty() {
            object[key] = json!(value);
        }
    }
    let first = time(event.first_ms);
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "creationTimestamp": first,
            "name": format!("{}.{:x}", event.name, event.first_ms),
            "namespace": namespace,
        },
        "involvedObject": object,
        "type": type_of(event),
        "reason": event.reason,
        "message": event.message,
        "firstTimestamp": first,
        "lastTimestamp": time(event.last_ms),
        "count": event.count,
        "reportingComponent": "crustlet",
        "reportingInstance": "",
        "source": {"component": "crustlet"},
    })
}

fn time(ms: i64) -> String {
    humantime::format_rfc3339_seconds(moment(ms)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_kubernetes_own() {
        let event = Event {
            r#type: Type::Warning.into(),
            reason: "FailedMount".to_owned(),
            message: "no driver".to_owned(),
            kind: "Pod".to_owned(),
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
            uid: "uid-1".to_owned(),
            first_ms: 1_000,
            last_ms: 61_999,
            count: 3,
        };
        let found = document(&event);
        assert_eq!(found["metadata"]["namespace"], "shop");
        assert_eq!(found["metadata"]["name"], "web.3e8");
        assert_eq!(found["lastTimestamp"], "1970-01-01T00:01:01Z");
        assert_eq!(
            found["involvedObject"],
            json!({"apiVersion": "v1", "kind": "Pod", "name": "web", "namespace": "shop", "uid": "uid-1"})
        );
        let typed: k8s_openapi::api::core::v1::Event = serde_json::from_value(found).unwrap();
        assert_eq!(
            (typed.count, typed.type_.as_deref()),
            (Some(3), Some("Warning"))
        );

        let of_a_class = Event {
            kind: "StorageClass".to_owned(),
            namespace: String::new(),
            uid: String::new(),
            ..event
        };
        let found = document(&of_a_class);
        assert_eq!(found["metadata"]["namespace"], "default");
        assert_eq!(
            found["involvedObject"],
            json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "name": "web"})
        );
    }
}
