//! Objects as `crustlet get` shows them: their manifests with their status.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::deferral;
use super::pods::{KnownPod, Pods};
use super::volumes::{OngoingOperation, Volumes};
use crate::api::ObjectSelector;
use crate::claims::Records;
use crate::claims::status::document;
use crate::objects::{Kind, Name, Objects};
use crate::operations::Context;
use crate::pods::StepSubject;
use crate::sources::LoadedManifests;
use crate::volumes::plan::VolumeStep;
use crate::volumes::spec::{Lifecycle, VolumeId};
use crate::volumes::view::{MountState, MountView, Spec, Status, VolumeView};

/// The latest time that RFC 3339 can express, 9999-12-31T23:59:59Z, in seconds since 1970.
const MAX_RFC3339_SECONDS: u64 = 253_402_300_799;

/// The agent's state that objects are listed from.
#[derive(Debug, Clone, Copy)]
pub(super) struct ListingInputs<'a> {
    pub(super) loaded: &'a LoadedManifests,
    pub(super) objects: &'a Objects,
    pub(super) records: &'a Records,
    pub(super) pods: &'a Pods,
    pub(super) volumes: &'a Volumes,
    pub(super) context: &'a Context,
}

/// Returns the documents of the selected objects, sorted by name.
pub(super) fn documents(inputs: ListingInputs<'_>, selector: &ObjectSelector) -> Vec<String> {
    let is_selected = |name: &Name| {
        let matches = |selected: &str, value: &str| selected.is_empty() || selected == value;
        matches(&selector.namespace, &name.namespace) && matches(&selector.name, &name.name)
    };
    let documents: Vec<(Name, Value)> = match selector.kind {
        None => volumes(inputs),
        Some(Kind::Pod) => pods(inputs),
        Some(kind) => {
            let keys = inputs.objects.documents.keys().filter(|key| key.0 == kind);
            let documents = keys.filter_map(|key| {
                let mut document = document(inputs.objects, inputs.records, kind, &key.1)?;
                set_creation_time(inputs, key, &mut document);
                Some((key.1.clone(), document))
            });
            documents.collect()
        }
    };
    let selected = documents.into_iter().filter(|(name, _)| is_selected(name));
    selected.map(|(_, document)| document.to_string()).collect()
}

/// Sets `creationTimestamp` to the modification time of the manifest's file, unless the manifest has one. In
/// Kubernetes, the API server sets it.
fn set_creation_time(inputs: ListingInputs<'_>, key: &(Kind, Name), document: &mut Value) {
    let metadata = &mut document["metadata"];
    let origin = inputs.loaded.origins.get(key);
    if let Some(origin) = origin.filter(|_| metadata["creationTimestamp"].is_null()) {
        metadata["creationTimestamp"] = json!(rfc3339(origin.modified));
    }
}

/// Formats a time. A file may have a time that RFC 3339 can't express: it becomes the nearest time that RFC 3339 can
/// express.
fn rfc3339(time: SystemTime) -> String {
    let last = SystemTime::UNIX_EPOCH + Duration::from_secs(MAX_RFC3339_SECONDS);
    let time = time.clamp(SystemTime::UNIX_EPOCH, last);
    humantime::format_rfc3339_seconds(time).to_string()
}

fn pods(inputs: ListingInputs<'_>) -> Vec<(Name, Value)> {
    let mut pods = Vec::new();
    for (uid, known) in inputs.pods.known() {
        let Some(name) = known.name() else {
            continue;
        };
        let manifest = inputs.objects.documents.get(&(Kind::Pod, name.clone()));
        let mut document = match manifest.filter(|_| known.has_manifest) {
            Some(document) => document.as_ref().clone(),
            // The manifest is gone, and the pod is ending.
            None => json!({
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name.name, "namespace": name.namespace},
                "spec": known.pod.as_ref().map(|pod| &pod.spec),
            }),
        };
        let metadata = &mut document["metadata"];
        metadata["namespace"] = json!(name.namespace);
        metadata["uid"] = json!(uid);
        set_creation_time(inputs, &(Kind::Pod, name.clone()), &mut document);
        let metadata = &mut document["metadata"];
        if let Some(since) = known
            .without_manifest_since
            .filter(|_| metadata["deletionTimestamp"].is_null())
        {
            metadata["deletionTimestamp"] = json!(rfc3339(since));
        }
        document["spec"]["nodeName"] = json!(&*inputs.context.node);
        if let Some(pod) = &known.pod {
            let deferred = deferral::deferred_volumes(inputs.objects, inputs.volumes, pod);
            set_deferral(&mut document, &deferred);
        }
        let mut status = json!(known.status);
        if let Some(failure) = known.failures.get(&StepSubject::Sandbox) {
            status["message"] = json!(failure.message);
        }
        document["status"] = status;
        pods.push((name, document));
    }
    // These pods wait for another pod with the same UID to end, so the agent has no state of them.
    for name in inputs.pods.waiting_for_uid() {
        let key = (Kind::Pod, name.clone());
        if let Some(document) = inputs.objects.documents.get(&key) {
            let mut document = document.as_ref().clone();
            set_creation_time(inputs, &key, &mut document);
            document["metadata"]["namespace"] = json!(name.namespace);
            document["status"] = json!({"phase": "Pending"});
            pods.push((name.clone(), document));
        }
    }
    pods.sort_by(|one, other| one.0.cmp(&other.0));
    pods
}

/// Sets `deferFSMount` of each deferred volume. For any other volume, the field is set to false if the manifest has it.
fn set_deferral(document: &mut Value, deferred: &BTreeSet<String>) {
    const FIELD: &str = "deferFSMount";
    let volumes = document["spec"]["volumes"].as_array_mut();
    for volume in volumes.into_iter().flatten() {
        let is_deferred = volume["name"]
            .as_str()
            .is_some_and(|name| deferred.contains(name));
        for source in ["persistentVolumeClaim", "ephemeral", "csi"] {
            let source = volume.get_mut(source).and_then(Value::as_object_mut);
            if let Some(source) = source.filter(|source| is_deferred || source.contains_key(FIELD))
            {
                source.insert(FIELD.to_owned(), json!(is_deferred));
            }
        }
    }
}

fn volumes(inputs: ListingInputs<'_>) -> Vec<(Name, Value)> {
    let (desired, actual) = (inputs.volumes.desired(), inputs.volumes.actual());
    let ids: BTreeSet<&VolumeId> = desired
        .volumes
        .keys()
        .chain(actual.volumes.keys())
        .collect();
    let mut volumes: Vec<(Name, Value)> = ids
        .into_iter()
        .map(|id| {
            let volume = volume(inputs, id);
            (Name::new("", &volume.metadata.name), json!(volume))
        })
        .collect();
    volumes.sort_by(|one, other| one.0.cmp(&other.0));
    volumes
}

fn volume(inputs: ListingInputs<'_>, id: &VolumeId) -> VolumeView {
    let desired = inputs.volumes.desired().volumes.get(id);
    let actual = inputs.volumes.actual().volumes.get(id);
    let desired_mounts = desired.into_iter().flat_map(|desired| &desired.mounts);
    let actual_mounts = actual.into_iter().flat_map(|actual| &actual.mounts);
    let mut uids: BTreeSet<&String> = desired_mounts.clone().map(|(uid, _)| uid).collect();
    uids.extend(actual_mounts.clone().map(|(uid, _)| uid));
    let directory = |uid: &str| {
        let actual = actual_mounts.clone().find(|(pod, _)| *pod == uid);
        let desired = desired_mounts.clone().find(|(pod, _)| *pod == uid);
        let actual = actual.map(|(_, mount)| mount.directory.clone());
        let desired = desired.map(|(_, mount)| mount.volume.directory.clone());
        actual.or(desired).unwrap_or_default()
    };
    let last_error = |step: &VolumeStep| {
        inputs
            .volumes
            .failed()
            .get(&(id.clone(), step.clone()))
            .cloned()
    };
    let mounts: Vec<MountView> = uids
        .iter()
        .map(|uid| {
            let mount = actual_mounts
                .clone()
                .find(|(pod, _)| pod == uid)
                .map(|(_, mount)| mount);
            let name = inputs.pods.known().get(*uid).and_then(KnownPod::name);
            let error_of = |step: fn(String) -> VolumeStep| last_error(&step((*uid).clone()));
            MountView {
                pod: name.map(|name| name.to_string()),
                pod_uid: (*uid).clone(),
                target_path: inputs
                    .context
                    .layout
                    .target(uid, &directory(uid))
                    .display()
                    .to_string(),
                mounter: mount.map(|mount| mount.mounter),
                state: mount.map_or(MountState::Pending, |mount| mount.certainty.into()),
                message: error_of(VolumeStep::Publish).or_else(|| error_of(VolumeStep::Unpublish)),
            }
        })
        .collect();
    let lifecycle = actual.map(|actual| actual.lifecycle);
    let lifecycle = lifecycle.or_else(|| {
        desired?
            .mounts
            .values()
            .next()
            .map(|mount| mount.volume.lifecycle)
    });
    let spec = Spec {
        driver: id.driver.clone(),
        volume_handle: id.handle.clone(),
        lifecycle: lifecycle.unwrap_or(Lifecycle::Persistent),
    };
    let operation = inputs
        .volumes
        .in_progress()
        .get(id)
        .map(|operation| call_name(operation).to_owned());
    let status = Status {
        staged: actual.and_then(|actual| actual.staged).into(),
        operation,
        message: last_error(&VolumeStep::Stage).or_else(|| last_error(&VolumeStep::Unstage)),
        mounts,
    };
    // If a volume is staged but not published, only its handle is known.
    let first = uids.first().map(|uid| directory(uid));
    let name = first.unwrap_or_else(|| id.handle.clone());
    VolumeView::new(&name, spec, status)
}

const fn call_name(operation: &OngoingOperation) -> &'static str {
    match operation {
        OngoingOperation::Step(VolumeStep::Stage) => "NodeStageVolume",
        OngoingOperation::Step(VolumeStep::Publish(_)) => "NodePublishVolume",
        OngoingOperation::Step(VolumeStep::Unpublish(_)) => "NodeUnpublishVolume",
        OngoingOperation::Step(VolumeStep::Unstage) => "NodeUnstageVolume",
        OngoingOperation::ClaimCall(call) => call,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_outside_of_rfc3339_are_clamped() {
        let second = Duration::from_secs(1);
        let (first, last) = (
            SystemTime::UNIX_EPOCH,
            Duration::from_secs(MAX_RFC3339_SECONDS),
        );
        assert_eq!(rfc3339(first - second), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(first + last + second), "9999-12-31T23:59:59Z");
        assert_eq!(rfc3339(first + second), "1970-01-01T00:00:01Z");
    }
}
