//! The documents of objects for `crustlet get`: their manifests, with their status.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::deferral;
use super::pods::{KnownPod, Pods};
use super::volumes::{Busy, Volumes};
use crate::api::Listed;
use crate::claims::Records;
use crate::claims::status::document;
use crate::objects::{Kind, Name, Objects};
use crate::operations::Context;
use crate::pods::Subject;
use crate::sources::LoadedManifests;
use crate::volumes::plan::VolumeStep;
use crate::volumes::spec::VolumeId;
use crate::volumes::view::{MountState, MountView, Spec, Status, VolumeView};

/// 9999-12-31T23:59:59Z, in seconds since 1970.
const LAST: u64 = 253_402_300_799;

/// The state that is listed.
#[derive(Debug, Clone, Copy)]
pub(super) struct ListingInputs<'a> {
    pub(super) loaded: &'a LoadedManifests,
    pub(super) objects: &'a Objects,
    pub(super) records: &'a Records,
    pub(super) pods: &'a Pods,
    pub(super) volumes: &'a Volumes,
    pub(super) context: &'a Context,
}

/// Returns the documents of a listing, by their names.
pub(super) fn documents(look: ListingInputs<'_>, listed: &Listed) -> Vec<String> {
    let is_asked = |name: &Name| {
        let is = |asked: &str, there: &str| asked.is_empty() || asked == there;
        is(&listed.namespace, &name.namespace) && is(&listed.name, &name.name)
    };
    let documents: Vec<(Name, Value)> = match listed.kind {
        None => volumes(look),
        Some(Kind::Pod) => pods(look),
        Some(kind) => {
            let keys = look.objects.documents.keys().filter(|key| key.0 == kind);
            let documents = keys.filter_map(|key| {
                let mut document = document(look.objects, look.records, kind, &key.1)?;
                date(look, key, &mut document);
                Some((key.1.clone(), document))
            });
            documents.collect()
        }
    };
    let asked = documents.into_iter().filter(|(name, _)| is_asked(name));
    asked.map(|(_, document)| document.to_string()).collect()
}

/// An API server says when an object was made. Here it is when it was written, where nobody says.
fn date(look: ListingInputs<'_>, key: &(Kind, Name), document: &mut Value) {
    let metadata = &mut document["metadata"];
    let origin = look.loaded.origins.get(key);
    if let Some(origin) = origin.filter(|_| metadata["creationTimestamp"].is_null()) {
        metadata["creationTimestamp"] = json!(rfc3339(origin.modified));
    }
}

/// A file may have any time, and not every one can be written.
fn rfc3339(time: SystemTime) -> String {
    let last = SystemTime::UNIX_EPOCH + Duration::from_secs(LAST);
    let time = time.clamp(SystemTime::UNIX_EPOCH, last);
    humantime::format_rfc3339_seconds(time).to_string()
}

fn pods(look: ListingInputs<'_>) -> Vec<(Name, Value)> {
    let mut pods = Vec::new();
    for (uid, known) in look.pods.known() {
        let Some(name) = known.name() else {
            continue;
        };
        let written = look.objects.documents.get(&(Kind::Pod, name.clone()));
        let mut document = match written.filter(|_| known.is_written) {
            Some(document) => document.as_ref().clone(),
            // Its manifest is gone, and it ends.
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
        date(look, &(Kind::Pod, name.clone()), &mut document);
        let metadata = &mut document["metadata"];
        if let Some(gone) = known
            .gone
            .filter(|_| metadata["deletionTimestamp"].is_null())
        {
            metadata["deletionTimestamp"] = json!(rfc3339(gone));
        }
        document["spec"]["nodeName"] = json!(&*look.context.node);
        if let Some(pod) = &known.pod {
            let deferred = deferral::of(look.objects, look.volumes, pod);
            show_deferral(&mut document, &deferred);
        }
        let mut status = json!(known.status);
        if let Some(failure) = known.failures.of(&Subject::Sandbox) {
            status["message"] = json!(failure.message);
        }
        document["status"] = status;
        pods.push((name, document));
    }
    // They wait for the end of others, by their uids, and nothing was decided about them yet.
    for name in look.pods.waiting() {
        let key = (Kind::Pod, name.clone());
        if let Some(document) = look.objects.documents.get(&key) {
            let mut document = document.as_ref().clone();
            date(look, &key, &mut document);
            document["metadata"]["namespace"] = json!(name.namespace);
            document["status"] = json!({"phase": "Pending"});
            pods.push((name.clone(), document));
        }
    }
    pods.sort_by(|one, other| one.0.cmp(&other.0));
    pods
}

/// A volume says whether it is deferred: where it isn't, only if something was said.
fn show_deferral(document: &mut Value, deferred: &BTreeSet<String>) {
    const FIELD: &str = "deferFSMount";
    let volumes = document["spec"]["volumes"].as_array_mut();
    for volume in volumes.into_iter().flatten() {
        let is_deferred = volume["name"]
            .as_str()
            .is_some_and(|it| deferred.contains(it));
        for source in ["persistentVolumeClaim", "ephemeral", "csi"] {
            let source = volume.get_mut(source).and_then(Value::as_object_mut);
            if let Some(source) = source.filter(|it| is_deferred || it.contains_key(FIELD)) {
                source.insert(FIELD.to_owned(), json!(is_deferred));
            }
        }
    }
}

fn volumes(look: ListingInputs<'_>) -> Vec<(Name, Value)> {
    let (desired, actual) = (look.volumes.desired(), look.volumes.actual());
    let ids: BTreeSet<&VolumeId> = desired
        .volumes
        .keys()
        .chain(actual.volumes.keys())
        .collect();
    let mut volumes: Vec<(Name, Value)> = ids
        .into_iter()
        .map(|id| {
            let volume = volume(look, id);
            (Name::new("", &volume.metadata.name), json!(volume))
        })
        .collect();
    volumes.sort_by(|one, other| one.0.cmp(&other.0));
    volumes
}

fn volume(look: ListingInputs<'_>, id: &VolumeId) -> VolumeView {
    let desired = look.volumes.desired().volumes.get(id);
    let actual = look.volumes.actual().volumes.get(id);
    let wanted = desired.into_iter().flat_map(|it| &it.mounts);
    let there = actual.into_iter().flat_map(|it| &it.mounts);
    let mut uids: BTreeSet<&String> = wanted.clone().map(|(uid, _)| uid).collect();
    uids.extend(there.clone().map(|(uid, _)| uid));
    let directory = |uid: &str| {
        let there = there.clone().find(|(pod, _)| *pod == uid);
        let wanted = wanted.clone().find(|(pod, _)| *pod == uid);
        let there = there.map(|(_, mount)| mount.directory.clone());
        let wanted = wanted.map(|(_, mount)| mount.volume.directory.clone());
        there.or(wanted).unwrap_or_default()
    };
    let failed = |step: &VolumeStep| {
        look.volumes
            .failed()
            .get(&(id.clone(), step.clone()))
            .cloned()
    };
    let mounts: Vec<MountView> = uids
        .iter()
        .map(|uid| {
            let mount = there.clone().find(|(pod, _)| pod == uid).map(|(_, it)| it);
            let name = look.pods.known().get(*uid).and_then(KnownPod::name);
            let pod = |step: fn(String) -> VolumeStep| failed(&step((*uid).clone()));
            MountView {
                pod: name.map(|name| name.to_string()),
                pod_uid: (*uid).clone(),
                target_path: look
                    .context
                    .layout
                    .target(uid, &directory(uid))
                    .display()
                    .to_string(),
                mounter: mount.map(|it| it.mounter),
                state: mount.map_or(MountState::Pending, |it| it.certainty.into()),
                message: pod(VolumeStep::Publish).or_else(|| pod(VolumeStep::Unpublish)),
            }
        })
        .collect();
    let lifecycle = actual.map(|it| it.lifecycle);
    let lifecycle = lifecycle.or_else(|| {
        desired?
            .mounts
            .values()
            .next()
            .map(|it| it.volume.lifecycle)
    });
    let spec = Spec {
        driver: id.driver.clone(),
        volume_handle: id.handle.clone(),
        lifecycle: lifecycle.unwrap_or(crate::volumes::spec::Lifecycle::Persistent),
    };
    let operation = look
        .volumes
        .under_way()
        .get(id)
        .map(|busy| call(busy).to_owned());
    let status = Status {
        staged: actual.and_then(|it| it.staged).into(),
        operation,
        message: failed(&VolumeStep::Stage).or_else(|| failed(&VolumeStep::Unstage)),
        mounts,
    };
    // One that is staged and no pod's is known by its handle alone.
    let first = uids.first().map(|uid| directory(uid));
    let name = first.unwrap_or_else(|| id.handle.clone());
    VolumeView::new(&name, spec, status)
}

const fn call(busy: &Busy) -> &'static str {
    match busy {
        Busy::Step(VolumeStep::Stage) => "NodeStageVolume",
        Busy::Step(VolumeStep::Publish(_)) => "NodePublishVolume",
        Busy::Step(VolumeStep::Unpublish(_)) => "NodeUnpublishVolume",
        Busy::Step(VolumeStep::Unstage) => "NodeUnstageVolume",
        Busy::Claim(call) => call,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_cannot_be_written_is_the_nearest_that_can() {
        let second = Duration::from_secs(1);
        let (first, last) = (SystemTime::UNIX_EPOCH, Duration::from_secs(LAST));
        assert_eq!(rfc3339(first - second), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(first + last + second), "9999-12-31T23:59:59Z");
        assert_eq!(rfc3339(first + second), "1970-01-01T00:00:01Z");
    }
}
