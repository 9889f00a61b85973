//! Implements `crustlet events`, and converts the agent's events to Kubernetes objects.

use std::time::SystemTime;

use anyhow::Result;
use crust_proto::crustlet::v1::event::Type;
use crust_proto::crustlet::v1::{Event, EventsRequest};
use serde_json::{Value, json};

use super::age::from_millis;
use super::args::{EventOutputFormat, EventsArgs};
use super::client::{Client, ClientError};
use super::io::{eprint, print};
use super::print::{documents, events};
use super::resource::Resource;
use super::table::Table;
use crate::objects::Kind;
use crate::objects::manifest::DEFAULT_NAMESPACE;

/// Prints events. With `--watch`, also prints new events as they happen.
pub(super) async fn events(args: &EventsArgs, client: &Client) -> Result<()> {
    let has_namespaces = args.scope.all_namespaces;
    let mut stream = client.events(request(args)?).await?;
    let mut table = Table::default();
    let mut has_headers = args.no_headers;
    let mut rows = Vec::new();
    while let Some(event) = stream.next().await? {
        let object = document(&event);
        if args.output == Some(EventOutputFormat::Json) {
            print(documents::json_line(&object))?;
            continue;
        }
        if !has_headers {
            rows.push(events::headers(has_namespaces));
            has_headers = true;
        }
        rows.push(events::row(&object, has_namespaces, SystemTime::now())?);
        if args.watch {
            print(table.lines(&rows))?;
            rows.clear();
        }
    }
    if args.watch {
        return Err(ClientError::EventsEnded.into());
    }
    if rows.is_empty() && args.output.is_none() {
        eprint(no_events_message(args.scope.namespace()));
    }
    print(table.lines(&rows))?;
    Ok(())
}

fn request(args: &EventsArgs) -> Result<EventsRequest> {
    let (kind, name) = match &args.object {
        Some(object) => {
            let (kind, name) = object.split_once('/').unwrap_or((object, ""));
            (Some(kind.parse::<Resource>()?), name)
        }
        None => (None, ""),
    };
    let namespace = match kind {
        Some(kind) if !kind.is_namespaced() => "",
        _ => args.scope.namespace(),
    };
    Ok(EventsRequest {
        watch: args.watch,
        kind: kind.map_or("", Resource::kind).to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    })
}

fn no_events_message(namespace: &str) -> String {
    match namespace {
        "" => "No events found.\n".to_owned(),
        namespace => format!("No events found in {namespace} namespace.\n"),
    }
}

/// Returns the event's type, `Normal` or `Warning`.
pub(super) fn event_type(event: &Event) -> &'static str {
    match event.r#type() {
        Type::Normal => "Normal",
        Type::Warning => "Warning",
    }
}

/// Converts an event to a `v1 Event`. As in Kubernetes, the event of a cluster-scoped object is in `default`.
pub(super) fn document(event: &Event) -> Value {
    let kind = Kind::ALL
        .into_iter()
        .find(|candidate| candidate.as_str() == event.kind);
    let namespace = match event.namespace.as_str() {
        "" => DEFAULT_NAMESPACE,
        namespace => namespace,
    };
    let mut object = json!({
        "apiVersion": kind.map_or("", Kind::api_version),
        "kind": event.kind,
        "name": event.name,
    });
    for (key, value) in [("namespace", &event.namespace), ("uid", &event.uid)] {
        if !value.is_empty() {
            object[key] = json!(value);
        }
    }
    let first = rfc3339(event.first_ms);
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "creationTimestamp": first,
            "name": format!("{}.{:x}", event.name, event.first_ms),
            "namespace": namespace,
        },
        "involvedObject": object,
        "type": event_type(event),
        "reason": event.reason,
        "message": event.message,
        "firstTimestamp": first,
        "lastTimestamp": rfc3339(event.last_ms),
        "count": event.count,
        "reportingComponent": "crustlet",
        "reportingInstance": "",
        "source": {"component": "crustlet"},
    })
}

fn rfc3339(ms: i64) -> String {
    humantime::format_rfc3339_seconds(from_millis(ms)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_becomes_a_kubernetes_event() {
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

        let cluster_scoped = Event {
            kind: "StorageClass".to_owned(),
            namespace: String::new(),
            uid: String::new(),
            ..event
        };
        let found = document(&cluster_scoped);
        assert_eq!(found["metadata"]["namespace"], "default");
        assert_eq!(
            found["involvedObject"],
            json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "name": "web"})
        );
    }
}
