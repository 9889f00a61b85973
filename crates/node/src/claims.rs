//! Claims, and the volumes that are made for them: what kube-controller-manager, external-provisioner and
//! external-resizer do elsewhere, on one node and without an API server.
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
pub(crate) mod class;
mod ephemeral;
mod expansion;
mod parameters;
mod provision;
mod reclaim;
mod records;
pub(crate) mod status;
mod store;
mod wanted;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use serde_json::{Value, json};

use crate::csi::Abilities;
use crate::events::{Events, Regarding, Type};
use crate::objects::{Kind, Name, Objects, Pod};
use crate::volumes::actual::Actual;
use crate::volumes::spec::{capacity, ephemeral_claim};
use binding::{Binding, Held};
use status::ClaimStatus;

pub(crate) use expansion::{Grow, GrowOnNode};
pub(crate) use provision::{Create, Unprovisionable};
pub(crate) use reclaim::Delete;
pub(crate) use records::Records;
pub(crate) use store::{Store, StoreError};

/// Of a claim that was bound once: without its volume it is lost.
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";

/// All that there is to decide by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct World<'w> {
    /// What people wrote, with what was decided laid over it ([`Records::view`]).
    pub(crate) objects: &'w Objects,
    /// What was decided.
    pub(crate) records: &'w Records,
    /// Pods that are to run, or haven't ended yet.
    pub(crate) pods: &'w [Arc<Pod>],
    /// What there is of volumes on this node.
    pub(crate) actual: &'w Actual,
    /// Drivers that answer, by their names.
    pub(crate) drivers: &'w BTreeMap<String, Abilities>,
    /// Whether all that is wanted is known. Until then nothing is done: a claim that isn't there yet isn't gone,
    /// and a volume that would fit may yet come.
    pub(crate) complete: bool,
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
    pub(crate) kind: Type,
    /// In one word, as Kubernetes has it.
    pub(crate) reason: &'static str,
    /// In a sentence.
    pub(crate) message: String,
}

impl Notice {
    fn new(kind: Type, of: (Kind, &Name), reason: &'static str, message: String) -> Self {
        Self {
            regarding: Regarding::object(of.0, of.1),
            kind,
            reason,
            message,
        }
    }

    fn of_claim(kind: Type, claim: &Name, reason: &'static str, message: String) -> Self {
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
            Type::Normal => events.normal(regarding, reason, message),
            Type::Warning => events.warning(regarding, reason, message),
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

    /// Of a claim that is to go: what is left when its manifest is.
    pub(crate) fn deleted(claim: &Name, now: &str) -> Self {
        Self::claim(claim, json!({"metadata": {"deletionTimestamp": now}}))
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
    /// Which object it is for: one call at a time for each, and the backoff is its.
    pub(crate) fn of(&self) -> (Kind, Name) {
        match self {
            Self::Write(write) => (write.kind, write.name.clone()),
            Self::Forget(kind, name) => (*kind, name.clone()),
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
    /// What claims wait for. To be told where it wasn't there before.
    pub(crate) waiting: Vec<Notice>,
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
    if !world.complete {
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
        if let Some(next) = reclaim::delete(world, name, volume) {
            plan.add(next.map(|it| Step::Delete(Box::new(it))));
        }
    }
    let forgotten = world.records.gone(world);
    plan.steps
        .extend(forgotten.map(|(kind, name)| Step::Forget(kind, name)));
    plan
}

fn of_claim<'w>(
    world: &World<'w>,
    plan: &mut Plan,
    taken: &mut BTreeSet<&'w str>,
    name: &Name,
    claim: &PersistentVolumeClaim,
) {
    if world
        .records
        .get(Kind::PersistentVolumeClaim, name)
        .is_none()
    {
        // It is given a uid, by which it is told from others of its name that were before and will be.
        let uid = claim.metadata.uid.as_ref();
        let patch = uid.map_or_else(|| json!({}), |uid| json!({"metadata": {"uid": uid}}));
        plan.steps.push(Write::claim(name, patch).into());
        return;
    }
    match binding::decide(world, taken, name, claim) {
        Binding::Bound(volume) => {
            if let Some(next) = expansion::next(world, name, claim, volume) {
                plan.add(next);
            }
        }
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
    let to = (binding::held(volume, name, uid) != Held::This).then(|| {
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
