//! Claims: binds them to volumes that are made, grown and deleted, and keeps the records of that.

mod call;
mod driver_abilities;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::mpsc;

use super::Done;
use super::pods::Pods;
use super::volumes::Volumes;
use crate::claims::{Notice, Records, Step, Store, StoreError, World, Write, plan};
use crate::csi::DriverCapabilities;
use crate::events::{Events, Regarding};
use crate::objects::{Kind, Name, Objects, Pod};
use crate::operations::Context;
use crate::sources::{self, LoadedManifests};
use crate::volumes::backoff::Backoff;
use crate::volumes::spec::VolumeId;

use call::{Call, OnNode};
use driver_abilities::{ASK_AGAIN, DriverAbilities, ask};

/// The most rounds of steps that follow from one another: made, bound, written. More are a bug.
const ROUNDS: usize = 16;

/// An object. Each has one step at a time.
type Key = (Kind, Name);

/// All claims of the node.
#[derive(Debug)]
pub(crate) struct Claims {
    context: Context,
    done: mpsc::UnboundedSender<Done>,
    store: Store,
    asking: DriverAbilities,
    backoff: Backoff<Key>,
    /// Drivers that came or went since the last look.
    changed: BTreeSet<String>,
    /// Manifests that were taken away.
    gone: Vec<PathBuf>,
    /// The calls under way, with the volume whose turn each has.
    under_way: BTreeMap<Key, Option<VolumeId>>,
    /// The notices that were given: of what claims and volumes wait for, and others.
    told: [Vec<Notice>; 2],
}

/// The end of a call.
#[derive(Debug)]
pub(crate) enum ClaimDone {
    /// A driver has said what it can do, or doesn't answer.
    Asked(String, Option<DriverCapabilities>),
    /// A step.
    Step {
        key: Key,
        is_ok: bool,
        /// To be written.
        writes: Vec<Write>,
        /// To be forgotten.
        forget: Option<Key>,
        /// To be told.
        notice: Option<Notice>,
    },
    /// The driver can do something else than it could: nothing was done.
    Other(Key, String, DriverCapabilities),
}

/// The state by which steps are decided.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClaimInputs<'a> {
    pub(super) loaded: &'a LoadedManifests,
    pub(super) objects: &'a Arc<Objects>,
    pub(super) pods: &'a Pods,
    /// ManifestDirectories of volumes that can't be told which they are.
    pub(super) broken: &'a [PathBuf],
    pub(super) is_known: bool,
}

impl Claims {
    /// Those that are on the disk.
    pub(super) fn open(
        context: &Context,
        done: mpsc::UnboundedSender<Done>,
    ) -> Result<Self, StoreError> {
        Ok(Self {
            store: Store::open(context.layout.root())?,
            context: context.clone(),
            done,
            asking: DriverAbilities::default(),
            backoff: Backoff::default(),
            changed: BTreeSet::new(),
            gone: Vec::new(),
            under_way: BTreeMap::new(),
            told: [Vec::new(), Vec::new()],
        })
    }

    /// Returns the records of the decisions.
    pub(super) const fn records(&self) -> &Records {
        self.store.records()
    }

    /// These drivers came or went: what failed for one of them is tried at once.
    pub(super) fn drivers_changed(&mut self, changed: BTreeSet<String>) {
        self.asking.drivers_changed();
        self.changed.extend(changed);
    }

    /// Begins what can be begun. Whether something was written: the objects are others then, and there may be
    /// more to do. When to look again though nothing happens.
    pub(super) fn step(
        &mut self,
        look: ClaimInputs<'_>,
        volumes: &mut Volumes,
        now: Instant,
    ) -> (bool, Option<Duration>) {
        let pods: Vec<Arc<Pod>> = look.pods.written().values().cloned().collect();
        let unread = look.loaded.errors.first();
        let unread = unread.map(|error| {
            format!(
                "it waits until all manifests can be read: {error}; hint: mend that, or remove it"
            )
        });
        let plan = plan(&World {
            written: &look.loaded.objects,
            objects: look.objects,
            records: self.store.records(),
            pods: &pods,
            actual: volumes.actual(),
            layout: &self.context.layout,
            broken: look.broken,
            drivers: self.asking.known(),
            is_known: look.is_known,
            unread: unread.as_deref(),
        });
        let (names, is_idle) = (drivers_of(look.objects), plan.waiting.is_empty());
        for name in self.asking.due(&names, is_idle, now) {
            ask(name, &self.context, &self.done);
        }
        let mut pause = (!is_idle).then_some(ASK_AGAIN);
        let [waiting, notices] = &mut self.told;
        if !self.asking.is_young(now) {
            tell(waiting, plan.waiting, &self.context.events);
        }
        tell(notices, plan.notices, &self.context.events);
        let kept: BTreeSet<Key> = plan.steps.iter().map(Step::of).collect();
        let under_way = &self.under_way;
        self.backoff
            .retain(|key| kept.contains(key) || under_way.contains_key(key));
        let changed = std::mem::take(&mut self.changed);
        let mut is_changed = false;
        for step in plan.steps {
            let key = step.of();
            if self.under_way.contains_key(&key) {
                continue;
            }
            let is_another = step.driver().is_some_and(|it| changed.contains(it));
            if let Some(remaining) = self.backoff.remaining(&key, now).filter(|_| !is_another) {
                pause = Some(pause.map_or(remaining, |it| it.min(remaining)));
                continue;
            }
            is_changed |= self.carry_out(key, step, look, volumes);
        }
        (is_changed, pause)
    }

    /// Whether something was written.
    fn carry_out(
        &mut self,
        key: Key,
        step: Step,
        look: ClaimInputs<'_>,
        volumes: &mut Volumes,
    ) -> bool {
        let objects = look.objects;
        let (call, begun) = match step {
            Step::Write(write) => return self.write(*write),
            Step::Forget(kind, name) => return self.forget(kind, &name),
            Step::Remove(claim) => {
                self.remove(look.loaded, &claim);
                return false;
            }
            Step::Create(it) => (Call::Create(it), None),
            // What is to be done to it here isn't in what there is yet.
            Step::Delete(it) if volumes.are_wanted(&it.id()) => return false,
            Step::Delete(it) => (Call::Delete(it), None),
            Step::Grow(it) => {
                let begun = it.begun();
                (Call::Grow(it), Some(begun))
            }
            Step::GrowOnNode(it) => {
                let begun = it.begun();
                let Some(on_node) = OnNode::of(*it, look.pods, volumes) else {
                    return false;
                };
                (Call::OnNode(Box::new(on_node)), Some(begun))
            }
        };
        self.begin(key, call, objects, volumes) && begun.is_some_and(|begun| self.write(begun))
    }

    /// A claim that was deleted, and that no pod has any more.
    fn remove(&mut self, loaded: &LoadedManifests, name: &Name) {
        let kind = Kind::PersistentVolumeClaim;
        let deleted = Write::deleted(kind, name, &now());
        if !self.store.records().is_deleted(kind, name) && self.store_write(&deleted).is_none() {
            return;
        }
        match sources::remove(loaded, kind, name) {
            Ok(gone) => self.gone.push(gone),
            Err(error) => {
                self.backoff.fail(&(kind, name.clone()), Instant::now());
                let message = crust_state::sentence(&error);
                let events = &self.context.events;
                events.warning(Regarding::object(kind, name), "FailedDelete", message);
            }
        }
    }

    /// Manifests that were taken away since it was asked: what is written has to be read anew.
    pub(super) fn gone(&mut self) -> Vec<PathBuf> {
        std::mem::take(&mut self.gone)
    }

    /// A volume is to go. Whether it is one that was made here; others go with their manifests.
    pub(super) fn delete_volume(&mut self, name: &Name) -> Result<bool, StoreError> {
        let is_made = self.store.records().has_made(&name.name);
        if is_made {
            let deleted = Write::deleted(Kind::PersistentVolume, name, &now());
            self.store.write(&deleted)?;
        }
        Ok(is_made)
    }

    fn write(&mut self, write: Write) -> bool {
        let written = self.store_write(&write);
        // What is told again is counted, and tells that it was tried again.
        if let Some(notice) = write.notice.filter(|_| written.is_some()) {
            notice.tell(&self.context.events);
        }
        written == Some(true)
    }

    /// Whether it changes anything; `None` where it can't be written.
    fn store_write(&mut self, write: &Write) -> Option<bool> {
        let written = self.store.write(write);
        if let Err(error) = &written {
            self.failed(&(write.kind, write.name.clone()), error);
        }
        written.ok()
    }

    fn forget(&mut self, kind: Kind, name: &Name) -> bool {
        match self.store.forget(kind, name) {
            Ok(()) => true,
            Err(error) => {
                self.failed(&(kind, name.clone()), &error);
                false
            }
        }
    }

    fn failed(&mut self, key: &Key, error: &StoreError) {
        let (kind, name) = key;
        tracing::error!("{kind} {name}: {}", crust_state::sentence(error));
        self.backoff.fail(key, Instant::now());
    }

    /// Whether it is under way now: something else may be done to the volume, and then it waits.
    fn begin(
        &mut self,
        key: Key,
        call: Call,
        objects: &Arc<Objects>,
        volumes: &mut Volumes,
    ) -> bool {
        let turn = call.turn();
        if let Some((id, name)) = &turn
            && !volumes.reserve(id, name)
        {
            return false;
        }
        self.under_way.insert(key.clone(), turn.map(|(id, _)| id));
        let known = self.asking.known().get(call.driver()).cloned();
        let (context, objects, done) =
            (self.context.clone(), Arc::clone(objects), self.done.clone());
        if let Call::Create(create) = &call {
            create.begun().tell(&context.events);
        }
        tokio::spawn(async move {
            let ended = call.carry_out(&context, &objects, key, known).await;
            let _ = done.send(Done::Claim(ended));
        });
        true
    }

    fn ended(&mut self, key: &Key, volumes: &mut Volumes) {
        if let Some(id) = self.under_way.remove(key).flatten() {
            volumes.release(&id);
        }
    }

    /// Takes the result of a call. Returns whether a record was written.
    pub(super) fn take(&mut self, done: ClaimDone, volumes: &mut Volumes) -> bool {
        match done {
            ClaimDone::Asked(driver, abilities) => {
                self.asking.take(driver, abilities);
                false
            }
            ClaimDone::Other(key, driver, abilities) => {
                self.ended(&key, volumes);
                self.asking.learn(driver, abilities);
                // One that says something else each time isn't asked in a circle.
                self.backoff.fail(&key, Instant::now());
                false
            }
            ClaimDone::Step {
                key,
                is_ok,
                writes,
                forget,
                notice,
            } => {
                self.ended(&key, volumes);
                if is_ok {
                    self.backoff.succeed(&key);
                } else {
                    self.backoff.fail(&key, Instant::now());
                }
                if let Some(notice) = notice {
                    notice.tell(&self.context.events);
                }
                let mut is_changed = false;
                for write in writes {
                    is_changed |= self.write(write);
                }
                if let Some((kind, name)) = forget {
                    is_changed |= self.forget(kind, &name);
                }
                is_changed
            }
        }
    }

    /// How often what was written may lead to more at once.
    pub(super) const fn rounds() -> usize {
        ROUNDS
    }
}

/// Tells what wasn't told before.
fn tell(told: &mut Vec<Notice>, notices: Vec<Notice>, events: &Events) {
    for notice in &notices {
        if !told.contains(notice) {
            notice.clone().tell(events);
        }
    }
    *told = notices;
}

/// Returns the time in the form of `metadata.deletionTimestamp`.
fn now() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string()
}

/// Drivers that somebody may have a volume of.
fn drivers_of(objects: &Objects) -> BTreeSet<String> {
    let classes = objects.storage_classes.values();
    let classes = classes.map(|class| class.object.provisioner.clone());
    let volumes = objects.volumes.values().filter_map(|volume| {
        let csi = volume.spec.as_ref()?.csi.as_ref()?;
        Some(csi.driver.clone())
    });
    classes.chain(volumes).collect()
}
