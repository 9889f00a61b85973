//! `crustlet events`

use std::time::SystemTime;

use anyhow::Result;
use crust_proto::crustlet::v1::EventsRequest;

use super::args::{EventOutput, Events};
use super::client::{Client, ClientError};
use super::event;
use super::output::{print, tell};
use super::print::{documents, events};
use super::resource::Resource;
use super::table::Table;

/// Shows events, as they come where they are watched.
pub(super) async fn events(asked: &Events, client: &Client) -> Result<()> {
    let namespaces = asked.scope.all_namespaces;
    let mut told = client.events(request(asked)?).await?;
    let mut table = Table::default();
    let mut is_headed = asked.no_headers;
    let mut rows = Vec::new();
    while let Some(event) = told.next().await? {
        let document = event::document(&event);
        if asked.output == Some(EventOutput::Json) {
            print(documents::json_line(&document))?;
            continue;
        }
        if !is_headed {
            rows.push(events::headers(namespaces));
            is_headed = true;
        }
        rows.push(events::row(&document, namespaces, SystemTime::now())?);
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
