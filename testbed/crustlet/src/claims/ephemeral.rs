//! The claims of pods' `ephemeral` volumes. They are created from a template and deleted with the pod.

use k8s_openapi::api::core::v1::Volume;
use serde_json::json;

use super::{Notice, PlanInputs, RecordUpdate};
use crate::events::{EventType, Regarding};
use crate::objects::Pod;
use crate::objects::manifest::is_name;
use crate::volumes::spec::ephemeral_claim;

/// Returns the claims to create. An existing claim with the same name isn't changed. If it doesn't belong to the pod,
/// the pod's volume can't be resolved, and an event about that is emitted elsewhere.
pub(super) fn claims(inputs: &PlanInputs<'_>) -> Vec<Result<RecordUpdate, Notice>> {
    let pods = inputs.pods.iter().filter(|pod| !pod.is_deleted());
    let mut claims = Vec::new();
    for pod in pods {
        for volume in pod.spec.volumes.iter().flatten() {
            if volume.ephemeral.is_some()
                && !inputs
                    .objects
                    .claims
                    .contains_key(&ephemeral_claim(pod, &volume.name))
            {
                claims.push(claim(pod, volume).map_err(|reason| Notice {
                    regarding: Regarding::from(&**pod),
                    kind: EventType::Warning,
                    reason: "FailedBinding",
                    message: format!("ephemeral volume {}: {reason}", volume.name),
                }));
            }
        }
    }
    claims
}

fn claim(pod: &Pod, volume: &Volume) -> Result<RecordUpdate, String> {
    let name = ephemeral_claim(pod, &volume.name);
    if !is_name(&name.name) {
        let reason = format!(
            "{:?} is not a valid claim name; hint: shorten the names of the pod and the volume",
            name.name
        );
        return Err(reason);
    }
    let source = volume.ephemeral.as_ref();
    let template = source.and_then(|source| source.volume_claim_template.as_ref());
    let template = template.ok_or("volumeClaimTemplate is missing")?;
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
    let template_metadata = template.metadata.as_ref();
    for (key, map) in [
        (
            "labels",
            template_metadata.and_then(|metadata| metadata.labels.as_ref()),
        ),
        (
            "annotations",
            template_metadata.and_then(|metadata| metadata.annotations.as_ref()),
        ),
    ] {
        if let Some(map) = map {
            metadata[key] = json!(map);
        }
    }
    let patch = json!({"metadata": metadata, "spec": template.spec});
    Ok(RecordUpdate::claim(&name, patch))
}
