//! Implements `crustlet get`.

use std::time::SystemTime;

use anyhow::Result;
use crust_proto::crustlet::v1::EventsRequest;
use serde_json::Value;

use super::args::{GetArgs, OutputFormat, Scope};
use super::client::Client;
use super::events::document;
use super::io::{eprint, print};
use super::print::{self, TableOptions, documents};
use super::resource::Resource;
use super::selection::{Selection, select};
use super::table::Table;

/// The reason why objects can't be shown.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum GetError {
    /// A table can show only one kind.
    #[error("cannot get {} together; hint: get one kind at a time", .0.join(" and "))]
    SeveralKinds(Vec<String>),
    /// The same name can exist in several namespaces.
    #[error(
        "cannot get objects by name in all namespaces; hint: use --namespace instead of --all-namespaces"
    )]
    AllNamespaces,
    #[error("{}", not_found(*.resource, names))]
    NotFound {
        resource: Resource,
        names: Vec<String>,
    },
}

/// Returns the API server's error for missing objects.
pub(super) fn not_found(resource: Resource, names: &[String]) -> String {
    let names = names.iter().map(|name| format!("{name:?}"));
    let names = names.collect::<Vec<_>>().join(", ");
    format!("{} {names} not found", resource.plural_name())
}

pub(super) async fn get(args: &GetArgs, client: &Client) -> Result<()> {
    let (resource, names) = one_kind(select(&args.objects)?)?;
    if args.scope.all_namespaces && !names.is_empty() && resource.is_namespaced() {
        return Err(GetError::AllNamespaces.into());
    }
    let namespace = namespace(resource, &args.scope);
    let mut found = Vec::new();
    let mut missing = Vec::new();
    if names.is_empty() {
        found = list(client, resource, namespace, "").await?;
    }
    for name in &names {
        let objects = list(client, resource, namespace, name).await?;
        if objects.is_empty() {
            missing.push(name.clone());
        }
        found.extend(objects);
    }
    if names.is_empty() || !found.is_empty() {
        show(args, resource, names.len() == 1, found)?;
    }
    if missing.is_empty() {
        Ok(())
    } else {
        let names = missing;
        Err(GetError::NotFound { resource, names }.into())
    }
}

fn one_kind(selection: Selection) -> Result<(Resource, Vec<String>), GetError> {
    match selection {
        Selection::All(resource) => Ok((resource, Vec::new())),
        Selection::Named(resource, names) => Ok((resource, names)),
        Selection::Mixed(named) => {
            let kinds = named
                .into_iter()
                .map(|(resource, _)| resource.plural_name());
            let mut kinds: Vec<String> = kinds.collect();
            kinds.sort();
            kinds.dedup();
            Err(GetError::SeveralKinds(kinds))
        }
    }
}

/// Returns the namespace of a request. Empty means all namespaces, or a cluster-scoped kind.
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

fn show(args: &GetArgs, resource: Resource, is_one: bool, mut found: Vec<Value>) -> Result<()> {
    let document = |found: &mut Vec<Value>| match found.pop() {
        Some(object) if is_one && found.is_empty() => object,
        last => {
            found.extend(last);
            documents::list(std::mem::take(found))
        }
    };
    match args.output {
        Some(OutputFormat::Yaml) => print(documents::yaml(&document(&mut found))?)?,
        Some(OutputFormat::Json) => print(documents::json(&document(&mut found)))?,
        Some(OutputFormat::Name) => print(names(resource, &found))?,
        None | Some(OutputFormat::Wide) if found.is_empty() => {
            eprint(no_resources_message(namespace(resource, &args.scope)));
        }
        None | Some(OutputFormat::Wide) => {
            let options = TableOptions {
                is_wide: args.output.is_some(),
                has_namespaces: args.scope.all_namespaces,
                has_headers: !args.no_headers,
            };
            let rows = print::rows(resource, &found, options, SystemTime::now())?;
            print(Table::default().lines(&rows))?;
        }
    }
    Ok(())
}

fn names(resource: Resource, found: &[Value]) -> String {
    let names = found.iter().map(|document| {
        let name = document["metadata"]["name"].as_str().unwrap_or_default();
        format!("{}/{name}\n", resource.singular_name())
    });
    names.collect()
}

fn no_resources_message(namespace: &str) -> String {
    match namespace {
        "" => "No resources found\n".to_owned(),
        namespace => format!("No resources found in {namespace} namespace.\n"),
    }
}
