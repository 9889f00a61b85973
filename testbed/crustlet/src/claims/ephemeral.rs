//! The claims of pods' `ephemeral` volumes, which are made of a template and go with the pod.

use k8s_openapi::api::core::v1::Volume;
use serde_json::json;

use super::{Notice, World, Write};
use crate::events::{EventType, Regarding};
use crate::objects::Pod;
use crate::objects::manifest::is_name;
use crate::volumes::spec::ephemeral_claim;

/// Those that there aren't yet. One that is there by the name and isn't the pod's stays: the pod's volume tells.
pub(super) fn claims(world: &World<'_>) -> Vec<Result<Write, Notice>> {
    let pods = world.pods.iter().filter(|pod| !pod.is_deleted());
    let mut claims = Vec::new();
    for pod in pods {
        for volume in pod.spec.volumes.iter().flatten() {
            if volume.ephemeral.is_some()
                && !world
                    .objects
                    .claims
                    .contains_key(&ephemeral_claim(pod, &volume.name))
            {
                claims.push(claim(pod, volume).map_err(|why| Notice {
                    regarding: Regarding::from(&**pod),
                    kind: EventType::Warning,
                    reason: "FailedBinding",
                    message: format!("ephemeral volume {}: {why}", volume.name),
                }));
            }
        }
    }
    claims
}

fn claim(pod: &Pod, volume: &Volume) -> Result<Write, String> {
    let name = ephemeral_claim(pod, &volume.name);
    if !is_name(&name.name) {
        let longer = format!("{:?} is no claim's name; hint: shorter names", name.name);
        return Err(longer);
    }
    let source = volume.ephemeral.as_ref();
    let template = source.and_then(|it| it.volume_claim_template.as_ref());
    let template = template.ok_or("it has no volumeClaimTemplate")?;
    let mut metadata = json!({
        "ownerReferences": [{
            "apiVersion": "v1",
            "kind": "Pod",
            "name": pod.name.name,
            "uid": pod.uid,
            "controller": true,
            "blockOwnerDeletion": true,
        }],
    });
    let given = template.metadata.as_ref();
    for (key, map) in [
        ("labels", given.and_then(|it| it.labels.as_ref())),
        ("annotations", given.and_then(|it| it.annotations.as_ref())),
    ] {
        if let Some(map) = map {
            metadata[key] = json!(map);
        }
    }
    let patch = json!({"metadata": metadata, "spec": template.spec});
    Ok(Write::claim(&name, patch))
}
