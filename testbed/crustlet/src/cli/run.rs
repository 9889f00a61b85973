//! Implements `crustlet run`.

mod follow;
mod progress;

use std::time::SystemTime;

use anyhow::{Context as _, Result};
use crust_proto::crustlet::v1::apply_response::Applied;
use crust_proto::crustlet::v1::apply_response::applied::Outcome;

use super::args::RunArgs;
use super::client::Client;
use super::io::{print, read_manifest};
use super::resource::Resource;
use crate::objects::{Kind, Name};

/// Applies manifests, and waits until their pods are running or have ended.
pub(super) async fn run(args: &RunArgs, client: &Client) -> Result<()> {
    let since = SystemTime::now();
    // All manifests are read before anything is applied.
    let texts = args.files.iter().map(|path| read_manifest(path));
    let texts: Vec<String> = texts.collect::<Result<_, _>>()?;
    let mut pods = Vec::new();
    for (path, text) in args.files.iter().zip(texts) {
        let response = client.apply(text).await;
        let response = response.with_context(|| path.display().to_string())?;
        for applied in response.objects {
            print(result_line(&applied))?;
            if applied.kind == Kind::Pod.as_str() {
                pods.push(Name::new(&applied.namespace, &applied.name));
            }
        }
    }
    if args.no_wait || pods.is_empty() {
        return Ok(());
    }
    follow::follow(client, pods, since, args.timeout).await
}

/// Returns the line that kubectl prints for an applied object.
fn result_line(applied: &Applied) -> String {
    let outcome = match applied.outcome() {
        Outcome::Created => "created",
        Outcome::Configured => "configured",
        Outcome::Unchanged => "unchanged",
    };
    let kind = applied.kind.parse().map_or_else(
        |_| applied.kind.to_ascii_lowercase(),
        |resource: Resource| resource.singular_name(),
    );
    format!("{kind}/{} {outcome}\n", applied.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_applied_object_is_reported_as_by_kubectl() {
        let applied = |kind: &str, outcome: Outcome| Applied {
            kind: kind.to_owned(),
            namespace: String::new(),
            name: "a".to_owned(),
            outcome: outcome.into(),
        };
        for (kind, outcome, expected) in [
            ("Pod", Outcome::Created, "pod/a created\n"),
            (
                "PersistentVolumeClaim",
                Outcome::Unchanged,
                "persistentvolumeclaim/a unchanged\n",
            ),
            (
                "StorageClass",
                Outcome::Configured,
                "storageclass.storage.k8s.io/a configured\n",
            ),
            ("Later", Outcome::Created, "later/a created\n"),
        ] {
            assert_eq!(result_line(&applied(kind, outcome)), expected);
        }
    }
}
