//! `crustlet run`

mod follow;
mod progress;

use std::time::SystemTime;

use anyhow::{Context as _, Result};
use crust_proto::crustlet::v1::apply_response::Applied;
use crust_proto::crustlet::v1::apply_response::applied::Outcome;

use super::args::Run;
use super::client::Client;
use super::io::{print, read_manifest};
use super::resource::Resource;
use crate::objects::{Kind, Name};

/// Applies manifests, and waits until their pods run or have ended.
pub(super) async fn run(asked: &Run, client: &Client) -> Result<()> {
    let since = SystemTime::now();
    // All are read before anything is changed.
    let texts = asked.files.iter().map(|path| read_manifest(path));
    let texts: Vec<String> = texts.collect::<Result<_, _>>()?;
    let mut pods = Vec::new();
    for (path, text) in asked.files.iter().zip(texts) {
        let answer = client.apply(text).await;
        let answer = answer.with_context(|| path.display().to_string())?;
        for applied in answer.objects {
            print(line(&applied))?;
            if applied.kind == Kind::Pod.as_str() {
                pods.push(Name::new(&applied.namespace, &applied.name));
            }
        }
    }
    if asked.no_wait || pods.is_empty() {
        return Ok(());
    }
    follow::follow(client, pods, since, asked.timeout).await
}

/// Returns kubectl's line about an object.
fn line(applied: &Applied) -> String {
    let outcome = match applied.outcome() {
        Outcome::Created => "created",
        Outcome::Configured => "configured",
        Outcome::Unchanged => "unchanged",
    };
    let kind = applied.kind.parse().map_or_else(
        |_| applied.kind.to_ascii_lowercase(),
        |it: Resource| it.one(),
    );
    format!("{kind}/{} {outcome}\n", applied.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_became_of_an_object_is_told_as_kubectl_tells_it() {
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
            assert_eq!(line(&applied(kind, outcome)), expected);
        }
    }
}
