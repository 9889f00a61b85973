//! Binds claims to volumes, and has drivers create, expand and delete the volumes. In a cluster, these are the tasks of
//! kube-controller-manager, external-provisioner and external-resizer.
//!
//! | module | contents |
//! |---|---|
//! | `request` | the request of a claim for a volume, and its storage class |
//! | `binding` | the choice of a claim's volume |
//! | `ephemeral` | the claims of pods' `ephemeral` volumes |
//! | `provision`, `parameters` | the creation of volumes |
//! | `expansion` | the expansion of volumes |
//! | `reclaim` | the deletion of volumes whose claims are gone |
//! | `status` | the status of claims and volumes |
//! | `records`, `store` | the decisions, which are merged into the manifests and kept on the disk |
//!
//! [`plan`] is a pure function of the manifests, the records and the state of the node. A call to a driver is a
//! [`ClaimStep`], and its result becomes a [`RecordUpdate`].

mod binding;
mod ephemeral;
mod expansion;
mod parameters;
mod provision;
mod reclaim;
mod records;
pub(crate) mod request;
pub(crate) mod status;
mod store;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use serde_json::{Value, json};

use crate::csi::DriverCapabilities;
use crate::events::{EventType, Events, Regarding};
use crate::objects::{Kind, Name, Objects, Pod};
use crate::volumes::actual::ActualState;
use crate::volumes::claim_ref::{
    BIND_COMPLETED, ClaimRef, compare_claim_ref, is_deleted, was_bound,
};
use crate::volumes::layout::RootDirLayout;
use crate::volumes::spec::{capacity, ephemeral_claim};
use binding::Binding;
use reclaim::Reclaim;
use status::ClaimStatus;

pub(crate) use expansion::{ControllerExpand, NodeExpand};
pub(crate) use provision::{CreateVolume, ProvisionError};
pub(crate) use reclaim::DeleteVolume;
pub(crate) use records::Records;
pub(crate) use store::{Store, StoreError};

/// The state that steps are planned from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlanInputs<'w> {
    /// The manifests as they were read.
    pub(crate) manifests: &'w Objects,
    /// The manifests merged with the records ([`Records::apply_to`]).
    pub(crate) objects: &'w Objects,
    pub(crate) records: &'w Records,
    /// The pods that are to run or haven't ended yet.
    pub(crate) pods: &'w [Arc<Pod>],
    /// The actual state of the volumes on this node.
    pub(crate) actual: &'w ActualState,
    /// The capabilities of each driver that answers, by the driver's name.
    pub(crate) drivers: &'w BTreeMap<String, DriverCapabilities>,
    pub(crate) layout: &'w RootDirLayout,
    /// Directories of volumes whose records can't be read.
    pub(crate) unreadable_directories: &'w [PathBuf],
    /// Whether all manifests and the container runtime's pods have been read once. Nothing is planned before that,
    /// because a manifest that hasn't been read yet may contain a missing claim, or a volume that fits a claim or is
    /// reserved for one.
    pub(crate) is_complete: bool,
    /// The reason why a manifest can't be read now. `None` if all manifests can be read. Claims are still bound and
    /// volumes created, from the other manifests and the last readable content of this manifest. But nothing is deleted
    /// or forgotten, because the unreadable manifest may say that something has to be kept.
    pub(crate) unreadable_manifest: Option<&'w str>,
}

impl PlanInputs<'_> {
    /// Returns whether a pod uses a claim, or will use it.
    pub(crate) fn is_used(&self, claim: &Name) -> bool {
        self.pods.iter().any(|pod| {
            let volumes = pod.spec.volumes.iter().flatten();
            volumes.into_iter().any(|volume| {
                if let Some(source) = &volume.persistent_volume_claim {
                    pod.name.namespace == claim.namespace && source.claim_name == claim.name
                } else {
                    volume.ephemeral.is_some() && ephemeral_claim(pod, &volume.name) == *claim
                }
            })
        })
    }
}

/// An event to emit about an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Notice {
    pub(crate) regarding: Regarding,
    pub(crate) kind: EventType,
    /// The event's reason. If Kubernetes' controllers emit the same event, it has the same reason.
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

impl Notice {
    fn new(kind: EventType, object: (Kind, &Name), reason: &'static str, message: String) -> Self {
        Self {
            regarding: Regarding::object(object.0, object.1),
            kind,
            reason,
            message,
        }
    }

    fn about_claim(kind: EventType, claim: &Name, reason: &'static str, message: String) -> Self {
        Self::new(kind, (Kind::PersistentVolumeClaim, claim), reason, message)
    }

    pub(crate) fn emit(self, events: &Events) {
        let Self {
            regarding,
            kind,
            reason,
            message,
        } = self;
        match kind {
            EventType::Normal => events.normal(regarding, reason, message),
            EventType::Warning => events.warning(regarding, reason, message),
        }
    }
}

/// A change to the record of an object ([`Store::write`]).
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RecordUpdate {
    pub(crate) kind: Kind,
    pub(crate) name: Name,
    /// The change, which is merged into the record ([`Records`]).
    pub(crate) patch: Value,
    /// The event to emit after the record was written.
    pub(crate) notice: Option<Notice>,
}

impl RecordUpdate {
    fn claim(name: &Name, patch: Value) -> Self {
        Self {
            kind: Kind::PersistentVolumeClaim,
            name: name.clone(),
            patch,
            notice: None,
        }
    }

    fn volume(name: &str, patch: Value) -> Self {
        Self {
            kind: Kind::PersistentVolume,
            name: Name::new("", name),
            patch,
            notice: None,
        }
    }

    /// Marks an object as deleted. The mark stays in the record after the manifest was removed.
    pub(crate) fn deleted(kind: Kind, name: &Name, now: &str) -> Self {
        Self {
            kind,
            name: name.clone(),
            patch: json!({"metadata": {"deletionTimestamp": now}}),
            notice: None,
        }
    }

    fn status(claim: &Name, status: &ClaimStatus) -> Self {
        Self::claim(claim, json!({ "status": status }))
    }

    fn with_notice(mut self, notice: Notice) -> Self {
        self.notice = Some(notice);
        self
    }
}

impl From<RecordUpdate> for ClaimStep {
    fn from(update: RecordUpdate) -> Self {
        Self::Update(Box::new(update))
    }
}

/// A step for a claim or a volume.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ClaimStep {
    /// Write a record.
    Update(Box<RecordUpdate>),
    /// Remove a record ([`Store::forget`]).
    Forget(Kind, Name),
    /// Remove the manifest of a deleted claim that no pod uses.
    RemoveManifest(Name),
    /// Call `CreateVolume`.
    Create(Box<CreateVolume>),
    /// Call `DeleteVolume`.
    Delete(Box<DeleteVolume>),
    /// Call `ControllerExpandVolume`.
    ControllerExpand(Box<ControllerExpand>),
    /// Call `NodeExpandVolume`.
    NodeExpand(Box<NodeExpand>),
}

impl ClaimStep {
    /// Returns the driver that the step calls, if any.
    pub(crate) fn driver(&self) -> Option<&str> {
        match self {
            Self::Create(create) => Some(&create.driver),
            Self::Delete(delete) => Some(&delete.driver),
            Self::ControllerExpand(expand) => Some(&expand.driver),
            Self::NodeExpand(expand) => Some(&expand.id.driver),
            _ => None,
        }
    }

    /// Returns the object of the step. Each object has one call at a time and its own backoff.
    pub(crate) fn object(&self) -> (Kind, Name) {
        match self {
            Self::Update(update) => (update.kind, update.name.clone()),
            Self::Forget(kind, name) => (*kind, name.clone()),
            Self::RemoveManifest(claim) => (Kind::PersistentVolumeClaim, claim.clone()),
            Self::Create(create) => (Kind::PersistentVolumeClaim, create.claim.clone()),
            Self::Delete(delete) => (Kind::PersistentVolume, Name::new("", &delete.volume)),
            Self::ControllerExpand(expand) => (Kind::PersistentVolumeClaim, expand.claim.clone()),
            Self::NodeExpand(expand) => (Kind::PersistentVolumeClaim, expand.claim.clone()),
        }
    }
}

/// The next steps, and the events about objects that wait for something.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Plan {
    /// The steps in the order in which they have to be carried out: a volume is bound before its claim.
    pub(crate) steps: Vec<ClaimStep>,
    /// Events about objects that wait for a driver or its capabilities. Emit those that weren't in the last plan.
    pub(crate) waiting: Vec<Notice>,
    /// Other events about objects, such as those that wait for a manifest. Emit those that weren't in the last plan.
    pub(crate) notices: Vec<Notice>,
}

impl Plan {
    fn add_step_or_waiting(&mut self, next: Result<ClaimStep, Notice>) {
        match next {
            Ok(step) => self.steps.push(step),
            Err(notice) => self.waiting.push(notice),
        }
    }
}

/// Plans the next steps of all claims, and of provisioned volumes.
pub(crate) fn plan(inputs: &PlanInputs<'_>) -> Plan {
    let mut plan = Plan::default();
    if !inputs.is_complete {
        plan.notices.extend(unbound_claims(inputs));
        return plan;
    }
    for next in ephemeral::claims(inputs) {
        plan.add_step_or_waiting(next.map(ClaimStep::from));
    }
    let mut taken = BTreeSet::new();
    for (name, claim) in &inputs.objects.claims {
        plan_claim(inputs, &mut plan, &mut taken, name, claim);
    }
    for (name, volume) in &inputs.objects.volumes {
        if inputs.records.is_provisioned(name) {
            plan_volume(inputs, &mut plan, name, volume);
        }
    }
    for (claim, volume) in inputs.records.claims_without_manifest(inputs) {
        let message = format!(
            "the manifest is missing, but the claim was not deleted: volume {volume} is kept for it; hint: restore the manifest, then delete the claim with crustlet delete if you don't need it"
        );
        let notice = Notice::about_claim(EventType::Warning, claim, "ManifestMissing", message);
        plan.notices.push(notice);
    }
    if inputs.unreadable_manifest.is_none() {
        let forgettable = inputs.records.forgettable(inputs);
        plan.steps
            .extend(forgettable.map(|(kind, name)| ClaimStep::Forget(kind, name)));
    }
    plan
}

/// Returns an event for each unbound claim while a manifest that can't be read keeps claims from being bound.
fn unbound_claims<'w>(inputs: &PlanInputs<'w>) -> impl Iterator<Item = Notice> + 'w {
    let claims = inputs.objects.claims.iter();
    let waiting = claims.filter(|(_, claim)| !was_bound(claim) && !is_deleted(claim));
    let waiting = waiting.zip(inputs.unreadable_manifest.into_iter().cycle());
    waiting.map(|((name, _), unreadable_manifest)| {
        Notice::about_claim(
            EventType::Warning,
            name,
            "FailedBinding",
            unreadable_manifest.to_owned(),
        )
    })
}

/// Plans the next step of a provisioned volume.
fn plan_volume(inputs: &PlanInputs<'_>, plan: &mut Plan, name: &str, volume: &PersistentVolume) {
    let object = Name::new("", name);
    let immutable_changes = inputs.records.immutable_changes(inputs.manifests, name);
    if !immutable_changes.is_empty() {
        let message = format!(
            "{} can't change after the volume was provisioned; hint: create another PersistentVolume with a different name",
            immutable_changes.join(", ")
        );
        let about = (Kind::PersistentVolume, &object);
        let notice = Notice::new(EventType::Warning, about, "FailedUpdate", message);
        plan.notices.push(notice);
    }
    // The record is updated before the volume is deleted, because the manifest may say that it has to be kept.
    if let Some(update) = inputs.records.manifest_update(inputs.manifests, name) {
        plan.steps.push(update.into());
        return;
    }
    match reclaim::next(inputs, name, volume) {
        Reclaim::Keep => {}
        Reclaim::Release(update) => plan.steps.push(update.into()),
        Reclaim::Delete(delete) => plan.steps.push(ClaimStep::Delete(Box::new(delete))),
        Reclaim::Forget(notice) => {
            plan.notices.push(notice);
            plan.steps
                .push(ClaimStep::Forget(Kind::PersistentVolume, object));
        }
        Reclaim::Blocked(notice) => plan.notices.push(notice),
        Reclaim::Wait(notice) => plan.waiting.push(notice),
    }
}

/// Plans the next step of a claim. `taken` has the volumes that this plan gives to other claims.
fn plan_claim<'w>(
    inputs: &PlanInputs<'w>,
    plan: &mut Plan,
    taken: &mut BTreeSet<&'w str>,
    name: &Name,
    claim: &PersistentVolumeClaim,
) {
    let records = inputs.records;
    if is_deleted(claim) && inputs.manifests.claims.contains_key(name) && !inputs.is_used(name) {
        match inputs.unreadable_manifest {
            None => plan.steps.push(ClaimStep::RemoveManifest(name.clone())),
            Some(unreadable_manifest) => {
                let kind = EventType::Warning;
                let notice =
                    Notice::about_claim(kind, name, "FailedDelete", unreadable_manifest.to_owned());
                plan.notices.push(notice);
            }
        }
        return;
    }
    if records.get(Kind::PersistentVolumeClaim, name).is_none() {
        // The first record gives the claim a UID, which distinguishes it from earlier and later claims with its name.
        let uid = claim.metadata.uid.as_ref();
        let patch = uid.map_or_else(|| json!({}), |uid| json!({"metadata": {"uid": uid}}));
        plan.steps.push(RecordUpdate::claim(name, patch).into());
        return;
    }
    // The record belongs to an earlier claim with this name, and has to be removed first.
    if records.is_for_deleted_claim(name, claim) {
        return;
    }
    match binding::decide(inputs, taken, name, claim) {
        Binding::Bound(volume) => {
            if let Some(next) = expansion::next(inputs, name, claim, volume) {
                plan.add_step_or_waiting(next);
            }
        }
        // A deleted claim doesn't get a volume any more. It is removed when its last pod has ended.
        _ if is_deleted(claim) => {}
        Binding::Bind(volume) => {
            taken.insert(volume);
            let updates = bind(name, claim, volume, &inputs.objects.volumes[volume]);
            plan.steps.extend(updates.map(ClaimStep::from));
        }
        Binding::Provision(driver, class) => {
            let driver = (driver, &inputs.drivers[driver].controller);
            let create = CreateVolume::new((name, claim), class, driver);
            let failure_notice =
                |error: ProvisionError| provision::class_failure_notice(name, class, &error);
            let step = create.map(|create| ClaimStep::Create(Box::new(create)));
            plan.add_step_or_waiting(step.map_err(failure_notice));
        }
        Binding::Wait(notice) => plan.waiting.push(notice),
    }
}

/// Returns the updates that bind a volume to a claim. The volume is updated first, as in Kubernetes: if crustlet stops
/// between the two updates, no other claim gets the volume.
fn bind(
    name: &Name,
    claim: &PersistentVolumeClaim,
    volume_name: &str,
    volume: &PersistentVolume,
) -> impl Iterator<Item = RecordUpdate> {
    let uid = claim.metadata.uid.as_deref().unwrap_or_default();
    let volume_update = (compare_claim_ref(volume, name, uid) != ClaimRef::Claimed).then(|| {
        let patch = json!({"spec": {"claimRef": binding::claim_reference(name, uid)}});
        RecordUpdate::volume(volume_name, patch)
    });
    let modes = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.access_modes.clone());
    let status = ClaimStatus::bound(capacity(volume), modes.unwrap_or_default());
    let patch = json!({
        "metadata": {"annotations": {BIND_COMPLETED: "yes"}},
        "spec": {"volumeName": volume_name},
        "status": status,
    });
    volume_update
        .into_iter()
        .chain([RecordUpdate::claim(name, patch)])
}

#[cfg(test)]
mod tests;
