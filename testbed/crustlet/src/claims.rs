//! Claims, and the volumes that are made for them: the part of kube-controller-manager, external-provisioner and
//! external-resizer, on one node and without an API server.
//!
//! | room | what is there |
//! |---|---|
//! | `class`, `wanted` | what a claim asks for |
//! | `binding` | which volume a claim gets |
//! | `ephemeral` | claims that pods bring |
//! | `provision`, `parameters` | volumes that are made |
//! | `expansion` | volumes that grow |
//! | `reclaim` | volumes that nobody has any more |
//! | `status` | how claims and volumes are |
//! | `records`, `store` | what was decided, laid over what people write, and kept |
//!
//! All is decided anew from what is there. What a driver is to be asked for comes out as a step; its answer comes
//! back as what is to be written.

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

pub(crate) use expansion::{Grow, GrowOnNode};
pub(crate) use provision::{Create, Unprovisionable};
pub(crate) use reclaim::Delete;
pub(crate) use records::Records;
pub(crate) use store::{Store, StoreError};

/// All that there is to decide by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct World<'w> {
    /// What people wrote.
    pub(crate) written: &'w Objects,
    /// The same, with what was decided laid over it ([`Records::view`]).
    pub(crate) objects: &'w Objects,
    /// What was decided.
    pub(crate) records: &'w Records,
    /// Pods that are to run, or haven't ended yet.
    pub(crate) pods: &'w [Arc<Pod>],
    /// What there is of volumes on this node.
    pub(crate) actual: &'w ActualState,
    /// Drivers that answer, by their names.
    pub(crate) drivers: &'w BTreeMap<String, DriverCapabilities>,
    /// Where those are, and their directories.
    pub(crate) layout: &'w RootDirLayout,
    /// Directories there that can't be told whose they are.
    pub(crate) broken: &'w [PathBuf],
    /// Whether all that is wanted was known once. Until then nothing is done: a claim that isn't there yet isn't gone,
    /// and a volume that would fit, or was meant for a claim long ago, may yet come.
    pub(crate) is_known: bool,
    /// Which manifest can't be read now, in a sentence. All others count, and those that could be read as they were:
    /// so claims are bound and volumes made, as they are elsewhere before somebody writes more. But what isn't known
    /// may be what somebody wrote to keep something: nothing is destroyed or forgotten as long as that isn't mended.
    pub(crate) unread: Option<&'w str>,
}

impl World<'_> {
    /// Whether a pod has a claim, or is to have it.
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

/// Something to be told as an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Notice {
    /// What it is about.
    pub(crate) regarding: Regarding,
    /// Whether it is what one would expect.
    pub(crate) kind: EventType,
    /// In one word, as Kubernetes has it.
    pub(crate) reason: &'static str,
    /// In a sentence.
    pub(crate) message: String,
}

impl Notice {
    fn new(kind: EventType, of: (Kind, &Name), reason: &'static str, message: String) -> Self {
        Self {
            regarding: Regarding::object(of.0, of.1),
            kind,
            reason,
            message,
        }
    }

    fn of_claim(kind: EventType, claim: &Name, reason: &'static str, message: String) -> Self {
        Self::new(kind, (Kind::PersistentVolumeClaim, claim), reason, message)
    }

    /// Tells it.
    pub(crate) fn tell(self, events: &Events) {
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

/// What is to be written of an object ([`Store::write`]).
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Write {
    /// Of what.
    pub(crate) kind: Kind,
    /// Which.
    pub(crate) name: Name,
    /// Laid over what was decided before.
    pub(crate) patch: Value,
    /// To be told once it is written.
    pub(crate) notice: Option<Notice>,
}

impl Write {
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

    /// Of what is to go: of a claim it is what is left when its manifest is.
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

    fn telling(mut self, notice: Notice) -> Self {
        self.notice = Some(notice);
        self
    }
}

impl From<Write> for Step {
    fn from(write: Write) -> Self {
        Self::Write(Box::new(write))
    }
}

/// Something to be done.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Step {
    /// To be written.
    Write(Box<Write>),
    /// To be forgotten ([`Store::forget`]).
    Forget(Kind, Name),
    /// A claim that was deleted and that no pod has: its manifest is to go.
    Remove(Name),
    /// `CreateVolume`
    Create(Box<Create>),
    /// `DeleteVolume`
    Delete(Box<Delete>),
    /// `ControllerExpandVolume`
    Grow(Box<Grow>),
    /// `NodeExpandVolume`
    GrowOnNode(Box<GrowOnNode>),
}

impl Step {
    /// Who is to be asked.
    pub(crate) fn driver(&self) -> Option<&str> {
        match self {
            Self::Create(it) => Some(&it.driver),
            Self::Delete(it) => Some(&it.driver),
            Self::Grow(it) => Some(&it.driver),
            Self::GrowOnNode(it) => Some(&it.id.driver),
            _ => None,
        }
    }

    /// Which object it is for: one call at a time for each, and the backoff is its.
    pub(crate) fn of(&self) -> (Kind, Name) {
        match self {
            Self::Write(write) => (write.kind, write.name.clone()),
            Self::Forget(kind, name) => (*kind, name.clone()),
            Self::Remove(claim) => (Kind::PersistentVolumeClaim, claim.clone()),
            Self::Create(it) => (Kind::PersistentVolumeClaim, it.claim.clone()),
            Self::Delete(it) => (Kind::PersistentVolume, Name::new("", &it.volume)),
            Self::Grow(it) => (Kind::PersistentVolumeClaim, it.claim.clone()),
            Self::GrowOnNode(it) => (Kind::PersistentVolumeClaim, it.claim.clone()),
        }
    }
}

/// What is to be done, and what can't be yet.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Plan {
    /// In this order: a volume is bound before its claim.
    pub(crate) steps: Vec<Step>,
    /// What claims and volumes wait for, and drivers may bring. To be told where it wasn't there before.
    pub(crate) waiting: Vec<Notice>,
    /// The same, where it is somebody's to do something, or nobody's.
    pub(crate) notices: Vec<Notice>,
}

impl Plan {
    fn add(&mut self, next: Result<Step, Notice>) {
        match next {
            Ok(step) => self.steps.push(step),
            Err(notice) => self.waiting.push(notice),
        }
    }
}

/// The next steps of all claims, and of the volumes that are nobody's.
pub(crate) fn plan(world: &World<'_>) -> Plan {
    let mut plan = Plan::default();
    if !world.is_known {
        plan.notices.extend(unknown(world));
        return plan;
    }
    for next in ephemeral::claims(world) {
        plan.add(next.map(Step::from));
    }
    let mut taken = BTreeSet::new();
    for (name, claim) in &world.objects.claims {
        of_claim(world, &mut plan, &mut taken, name, claim);
    }
    for (name, volume) in &world.objects.volumes {
        if world.records.has_made(name) {
            of_volume(world, &mut plan, name, volume);
        }
    }
    for (claim, volume) in world.records.missed(world) {
        let message = format!(
            "its manifest is away, and wasn't deleted: volume {volume} is kept for it; hint: put it back, and crustlet delete it if it is to go"
        );
        let notice = Notice::of_claim(EventType::Warning, claim, "ManifestMissing", message);
        plan.notices.push(notice);
    }
    if world.unread.is_none() {
        let forgotten = world.records.gone(world);
        plan.steps
            .extend(forgotten.map(|(kind, name)| Step::Forget(kind, name)));
    }
    plan
}

/// Claims that would be bound if all were known, and why it isn't.
fn unknown<'w>(world: &World<'w>) -> impl Iterator<Item = Notice> + 'w {
    let claims = world.objects.claims.iter();
    let waiting = claims.filter(|(_, claim)| !was_bound(claim) && !is_deleted(claim));
    let told = waiting.zip(world.unread.into_iter().cycle());
    told.map(|((name, _), unread)| {
        Notice::of_claim(EventType::Warning, name, "FailedBinding", unread.to_owned())
    })
}

/// Of a volume that was made here.
fn of_volume(world: &World<'_>, plan: &mut Plan, name: &str, volume: &PersistentVolume) {
    let of = Name::new("", name);
    let immutable = world.records.immutable(world.written, name);
    if !immutable.is_empty() {
        let message = format!(
            "{} can't change: the volume stays what its driver has made; hint: another PersistentVolume, by another name",
            immutable.join(", ")
        );
        let of = (Kind::PersistentVolume, &of);
        let notice = Notice::new(EventType::Warning, of, "FailedUpdate", message);
        plan.notices.push(notice);
    }
    // First of all: it may say that the volume is to be kept.
    if let Some(write) = world.records.taken_over(world.written, name) {
        plan.steps.push(write.into());
        return;
    }
    match reclaim::next(world, name, volume) {
        Reclaim::Keep => {}
        Reclaim::Release(write) => plan.steps.push(write.into()),
        Reclaim::Delete(it) => plan.steps.push(Step::Delete(Box::new(it))),
        Reclaim::Forget(notice) => {
            plan.notices.push(notice);
            plan.steps.push(Step::Forget(Kind::PersistentVolume, of));
        }
        Reclaim::Blocked(notice) => plan.notices.push(notice),
        Reclaim::Wait(notice) => plan.waiting.push(notice),
    }
}

fn of_claim<'w>(
    world: &World<'w>,
    plan: &mut Plan,
    taken: &mut BTreeSet<&'w str>,
    name: &Name,
    claim: &PersistentVolumeClaim,
) {
    let records = world.records;
    if is_deleted(claim) && world.written.claims.contains_key(name) && !world.is_used(name) {
        match world.unread {
            None => plan.steps.push(Step::Remove(name.clone())),
            Some(unread) => {
                let kind = EventType::Warning;
                let notice = Notice::of_claim(kind, name, "FailedDelete", unread.to_owned());
                plan.notices.push(notice);
            }
        }
        return;
    }
    if records.get(Kind::PersistentVolumeClaim, name).is_none() {
        // It is given a uid, by which it is told from others of its name that were before and will be.
        let uid = claim.metadata.uid.as_ref();
        let patch = uid.map_or_else(|| json!({}), |uid| json!({"metadata": {"uid": uid}}));
        plan.steps.push(Write::claim(name, patch).into());
        return;
    }
    // The other is forgotten first.
    if records.are_over(name, claim) {
        return;
    }
    match binding::decide(world, taken, name, claim) {
        Binding::Bound(volume) => {
            if let Some(next) = expansion::next(world, name, claim, volume) {
                plan.add(next);
            }
        }
        // It is to go with the last of its pods, and gets nothing any more.
        _ if is_deleted(claim) => {}
        Binding::Bind(volume) => {
            taken.insert(volume);
            let writes = bind(name, claim, volume, &world.objects.volumes[volume]);
            plan.steps.extend(writes.map(Step::from));
        }
        Binding::Provision(driver, class) => {
            let driver = (driver, &world.drivers[driver].controller);
            let create = Create::of((name, claim), class, driver);
            let failed = |error: Unprovisionable| provision::failed(name, class, &error);
            plan.add(create.map(|it| Step::Create(Box::new(it))).map_err(failed));
        }
        Binding::Wait(notice) => plan.waiting.push(notice),
    }
}

/// The volume first, as Kubernetes does: whatever happens between the two, nobody else gets it.
fn bind(
    name: &Name,
    claim: &PersistentVolumeClaim,
    volume_name: &str,
    volume: &PersistentVolume,
) -> impl Iterator<Item = Write> {
    let uid = claim.metadata.uid.as_deref().unwrap_or_default();
    let to = (compare_claim_ref(volume, name, uid) != ClaimRef::Claimed).then(|| {
        let patch = json!({"spec": {"claimRef": binding::reference(name, uid)}});
        Write::volume(volume_name, patch)
    });
    let modes = volume.spec.as_ref().and_then(|it| it.access_modes.clone());
    let status = ClaimStatus::bound(capacity(volume), modes.unwrap_or_default());
    let patch = json!({
        "metadata": {"annotations": {BIND_COMPLETED: "yes"}},
        "spec": {"volumeName": volume_name},
        "status": status,
    });
    to.into_iter().chain([Write::claim(name, patch)])
}

#[cfg(test)]
mod tests;
