//! `crustlet get`

use std::time::SystemTime;

use anyhow::Result;
use crust_proto::crustlet::v1::EventsRequest;
use serde_json::Value;

use super::args::{Get, Output, Scope};
use super::client::Client;
use super::events::document;
use super::io::{print, tell};
use super::print::{self, Form, documents};
use super::resource::Resource;
use super::selection::{Selection, select};
use super::table::Table;

/// Objects that can't be shown.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum GetError {
    /// A table is of one kind.
    #[error("{} aren't shown together; hint: one kind after the other", .0.join(" and "))]
    Kinds(Vec<String>),
    /// A name may be in several namespaces.
    #[error("names are looked for in one namespace; hint: --namespace for --all-namespaces")]
    AllNamespaces,
    /// There are no such objects.
    #[error("{}", missing(*.resource, names))]
    Missing {
        /// The kind.
        resource: Resource,
        names: Vec<String>,
    },
}

/// Returns the error of an API server for missing objects.
pub(super) fn missing(resource: Resource, names: &[String]) -> String {
    let names = names.iter().map(|name| format!("{name:?}"));
    let names = names.collect::<Vec<_>>().join(", ");
    format!("{} {names} not found", resource.many())
}

/// Shows objects.
pub(super) async fn get(asked: &Get, client: &Client) -> Result<()> {
    let (resource, names) = one_kind(select(&asked.objects)?)?;
    if asked.scope.all_namespaces && !names.is_empty() && resource.is_namespaced() {
        return Err(GetError::AllNamespaces.into());
    }
    let namespace = namespace(resource, &asked.scope);
    let mut found = Vec::new();
    let mut missing = Vec::new();
    if names.is_empty() {
        found = list(client, resource, namespace, "").await?;
    }
    for name in &names {
        let there = list(client, resource, namespace, name).await?;
        if there.is_empty() {
            missing.push(name.clone());
        }
        found.extend(there);
    }
    if names.is_empty() || !found.is_empty() {
        show(asked, resource, names.len() == 1, found)?;
    }
    if missing.is_empty() {
        Ok(())
    } else {
        let names = missing;
        Err(GetError::Missing { resource, names }.into())
    }
}

fn one_kind(selection: Selection) -> Result<(Resource, Vec<String>), GetError> {
    match selection {
        Selection::All(resource) => Ok((resource, Vec::new())),
        Selection::Named(resource, names) => Ok((resource, names)),
        Selection::Mixed(named) => {
            let kinds = named.into_iter().map(|(resource, _)| resource.many());
            let mut kinds: Vec<String> = kinds.collect();
            kinds.sort();
            kinds.dedup();
            Err(GetError::Kinds(kinds))
        }
    }
}

/// Returns the namespace of a request. Empty stands for all, and for kinds without namespaces.
fn namespace(resource: Resource, scope: &Scope) -> &str {
    if resource.is_namespaced() {
        scope.namespace()
    } else {
        ""
    }
}

async fn list(
    client: &Client,
    resource: Resource,
    namespace: &str,
    name: &str,
) -> Result<Vec<Value>> {
    if resource != Resource::Event {
        return Ok(client.list(resource.kind(), namespace, name).await?);
    }
    let request = EventsRequest {
        namespace: namespace.to_owned(),
        ..EventsRequest::default()
    };
    let mut events = client.events(request).await?;
    let mut found = Vec::new();
    while let Some(event) = events.next().await? {
        let document = document(&event);
        if name.is_empty() || document["metadata"]["name"] == name {
            found.push(document);
        }
    }
    Ok(found)
}

fn show(asked: &Get, resource: Resource, is_one: bool, mut found: Vec<Value>) -> Result<()> {
    let document = |found: &mut Vec<Value>| match found.pop() {
        Some(one) if is_one && found.is_empty() => one,
        last => {
            found.extend(last);
            documents::list(std::mem::take(found))
        }
    };
    match asked.output {
        Some(Output::Yaml) => print(documents::yaml(&document(&mut found))?)?,
        Some(Output::Json) => print(documents::json(&document(&mut found)))?,
        Some(Output::Name) => print(names(resource, &found))?,
        None | Some(Output::Wide) if found.is_empty() => {
            tell(nothing(namespace(resource, &asked.scope)));
        }
        None | Some(Output::Wide) => {
            let form = Form {
                wide: asked.output.is_some(),
                namespaces: asked.scope.all_namespaces,
                headers: !asked.no_headers,
            };
            let rows = print::rows(resource, &found, form, SystemTime::now())?;
            print(Table::default().lines(&rows))?;
        }
    }
    Ok(())
}

fn names(resource: Resource, found: &[Value]) -> String {
    let names = found.iter().map(|document| {
        let name = document["metadata"]["name"].as_str().unwrap_or_default();
        format!("{}/{name}\n", resource.one())
    });
    names.collect()
}

fn nothing(namespace: &str) -> String {
    match namespace {
        "" => "No resources found\n".to_owned(),
        namespace => format!("No resources found in {namespace} namespace.\n"),
    }
}
