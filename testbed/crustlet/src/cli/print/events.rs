//! The tables of `kubectl get events` and of `kubectl events`.

use std::time::SystemTime;

use k8s_openapi::api::core::v1::Event;
use serde_json::Value;

use super::{Column, KindTable, PrintError, Row, typed};
use crate::cli::age;
use crate::cli::resource::Resource;

/// The columns of `kubectl get events`.
pub(super) const EVENTS: KindTable = KindTable {
    columns: &[
        ("LAST SEEN", Column::Always),
        ("TYPE", Column::Always),
        ("REASON", Column::Always),
        ("OBJECT", Column::Always),
        ("SUBOBJECT", Column::Wide),
        ("SOURCE", Column::Wide),
        ("MESSAGE", Column::Always),
        ("FIRST SEEN", Column::Wide),
        ("COUNT", Column::Wide),
        ("NAME", Column::Wide),
    ],
    rows,
};

fn rows(document: &Value, now: SystemTime) -> Result<Vec<Row>, serde_json::Error> {
    let event: Event = typed(document)?;
    let text = |text: Option<String>| text.unwrap_or_default();
    let object = event.involved_object;
    let kind = text(object.kind).to_ascii_lowercase();
    Ok(vec![vec![
        age::since(now, event.last_timestamp.as_ref()),
        text(event.type_),
        text(event.reason),
        format!("{kind}/{}", text(object.name)),
        text(object.field_path),
        text(event.reporting_component),
        text(event.message).trim().to_owned(),
        age::since(now, event.first_timestamp.as_ref()),
        event.count.unwrap_or(1).to_string(),
        text(event.metadata.name),
    ]])
}

/// Returns the headers of `kubectl events`.
pub(in crate::cli) fn headers(has_namespaces: bool) -> Row {
    let namespace = has_namespaces.then_some("NAMESPACE");
    let columns = ["LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"];
    let headers = namespace.into_iter().chain(columns);
    headers.map(str::to_owned).collect()
}

/// Returns an event's row in the table of `kubectl events`.
pub(in crate::cli) fn row(
    document: &Value,
    has_namespaces: bool,
    now: SystemTime,
) -> Result<Row, PrintError> {
    let print_error = |source| PrintError {
        kind: Resource::Event.singular_name(),
        source,
    };
    let event: Event = typed(document).map_err(print_error)?;
    let text = |text: Option<String>| text.unwrap_or_default();
    let first = age::since(now, event.first_timestamp.as_ref());
    let last = age::since(now, event.last_timestamp.as_ref());
    let last_seen = match event.count {
        Some(count) if count > 1 => format!("{last} (x{count} over {first})"),
        _ => first,
    };
    let object = event.involved_object;
    let cells = [
        last_seen,
        text(event.type_),
        text(event.reason),
        format!("{}/{}", text(object.kind), text(object.name)),
        text(event.message).trim().to_owned(),
    ];
    let namespace = has_namespaces.then(|| text(event.metadata.namespace));
    Ok(namespace.into_iter().chain(cells).collect())
}
